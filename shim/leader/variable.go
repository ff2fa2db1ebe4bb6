// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package leader

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Variable is a lock on a Nomad variable. Nomad frees it after two TTLs without renewal, and blocks
// other processes for another Delay.
type Variable struct {
	Client          *api.Client
	Namespace, Path string
	TTL, Delay      time.Duration // 10 s to 24 h each
	// Holder is stored in the variable for display.
	Holder string

	id string // of the lock held
}

var _ Lock = (*Variable)(nil)

func (v *Variable) Acquire(ctx context.Context) error {
	lock := v.variable("")
	lock.Items = api.VariableItems{"holder": v.Holder, "since": time.Now().UTC().Format(time.RFC3339)}
	out, _, err := v.Client.Variables().AcquireLock(lock, v.options(ctx))
	if err != nil {
		return asConflict(err, ErrHeld)
	}
	v.id = out.LockID()
	return nil
}

func (v *Variable) Renew(ctx context.Context) error {
	_, _, err := v.Client.Variables().RenewLock(v.variable(v.id), v.options(ctx))
	return asConflict(err, ErrLost)
}

func (v *Variable) Release(ctx context.Context) error {
	_, _, err := v.Client.Variables().ReleaseLock(v.variable(v.id), v.options(ctx))
	return asConflict(err, ErrLost)
}

func (v *Variable) variable(id string) *api.Variable {
	return &api.Variable{
		Namespace: v.Namespace, Path: v.Path,
		Lock: &api.VariableLock{ID: id, TTL: v.TTL.String(), LockDelay: v.Delay.String()},
	}
}

func (v *Variable) options(ctx context.Context) *api.WriteOptions {
	return (&api.WriteOptions{Namespace: v.Namespace}).WithContext(ctx)
}

// asConflict returns conflict if the lock conflicts or its variable does not exist, else err.
func asConflict(err, conflict error) error {
	var response api.UnexpectedResponseError
	if errors.As(err, &response) && (response.StatusCode() == http.StatusConflict || response.StatusCode() == http.StatusNotFound) {
		return conflict
	}
	return err
}
