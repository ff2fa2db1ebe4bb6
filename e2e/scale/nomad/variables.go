// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// variables are Nomad's, with locks.
type variables struct {
	now func() time.Time

	mu    sync.Mutex
	index uint64
	all   map[place]*variable
}

type place struct{ namespace, path string }

type variable struct {
	api.Variable
	ends, free time.Time // zero without a lock
}

func newVariables(now func() time.Time) *variables {
	return &variables{now: now, index: firstIndex, all: make(map[place]*variable)}
}

// Errors with Nomad's status codes.
var (
	errNoVariable = errors.New("variable not found")
	errLocked     = errors.New("attempting to modify locked variable")
)

// holder returns the current lock's ID, "" for none.
func (v *variable) holder(now time.Time) string {
	if v.Lock == nil || !now.Before(v.ends) {
		return ""
	}
	return v.Lock.ID
}

func (vs *variables) serve(w http.ResponseWriter, r *http.Request) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	at := place{r.URL.Query().Get("namespace"), r.PathValue("path")}
	if at.namespace == "" {
		at.namespace = api.DefaultNamespace
	}
	var in api.Variable
	if r.Method == http.MethodPut {
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	var out any
	var err error
	switch kind := variableKind(r); {
	case r.Method == http.MethodGet:
		out, err = vs.read(at)
	case r.Method == http.MethodDelete:
		err = vs.remove(at)
	case kind == kindAcquire:
		out, err = vs.acquire(at, in)
	case kind == kindRenew:
		out, err = vs.renew(at, in)
	case kind == kindRelease:
		out, err = vs.release(at, in)
	default:
		out, err = vs.write(at, in)
	}
	meta(w, vs.index)
	switch {
	case errors.Is(err, errNoVariable):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, errLocked):
		// The API's CASConflict expects an object.
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(api.VariableMetadata{Namespace: at.namespace, Path: at.path})
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
	case out == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		_ = json.NewEncoder(w).Encode(out)
	}
}

func (vs *variables) list(w http.ResponseWriter, r *http.Request) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	metas := []*api.VariableMetadata{}
	for at, v := range vs.all {
		if strings.HasPrefix(at.path, r.URL.Query().Get("prefix")) {
			metas = append(metas, v.Metadata())
		}
	}
	slices.SortFunc(metas, func(a, b *api.VariableMetadata) int { return strings.Compare(a.Path, b.Path) })
	meta(w, vs.index)
	_ = json.NewEncoder(w).Encode(metas)
}

func (vs *variables) read(at place) (any, error) {
	if v := vs.all[at]; v != nil {
		return v.Variable, nil
	}
	return nil, errNoVariable
}

func (vs *variables) write(at place, in api.Variable) (any, error) {
	if len(in.Items) == 0 {
		return nil, errors.New("variable missing required Items object")
	}
	if v := vs.all[at]; v != nil && v.holder(vs.now()) != in.LockID() {
		return nil, errLocked
	}
	return vs.put(at, in.Items).Variable, nil
}

func (vs *variables) remove(at place) error {
	if v := vs.all[at]; v != nil && v.holder(vs.now()) != "" {
		return errLocked
	}
	delete(vs.all, at)
	vs.index++
	return nil
}

func (vs *variables) acquire(at place, in api.Variable) (any, error) {
	if in.Lock == nil {
		return nil, errors.New("no lock was given")
	}
	ttl, delay, err := times(*in.Lock)
	if err != nil {
		return nil, err
	}
	now := vs.now()
	if v := vs.all[at]; v != nil && v.Lock != nil && now.Before(v.free) {
		return nil, errLocked
	}
	v := vs.put(at, in.Items)
	v.Lock = &api.VariableLock{ID: fmt.Sprintf("00000000-0000-0000-0000-%012x", vs.index), TTL: ttl.String(), LockDelay: delay.String()}
	v.ends, v.free = now.Add(2*ttl), now.Add(2*ttl+delay)
	return v.Variable, nil
}

func (vs *variables) renew(at place, in api.Variable) (any, error) {
	v, err := vs.held(at, in)
	if err != nil {
		return nil, err
	}
	ttl, delay, err := times(*v.Lock)
	if err != nil {
		return nil, err
	}
	now := vs.now()
	v.ends, v.free = now.Add(2*ttl), now.Add(2*ttl+delay)
	return v.Metadata(), nil
}

func (vs *variables) release(at place, in api.Variable) (any, error) {
	v, err := vs.held(at, in)
	if err != nil {
		return nil, err
	}
	vs.index++
	v.Lock, v.ModifyIndex = nil, vs.index
	v.ends, v.free = time.Time{}, time.Time{}
	return v.Variable, nil
}

// held returns the variable if the request holds its lock.
func (vs *variables) held(at place, in api.Variable) (*variable, error) {
	v := vs.all[at]
	switch {
	case v == nil:
		return nil, errNoVariable
	case in.LockID() == "" || v.holder(vs.now()) != in.LockID():
		return nil, errLocked
	}
	return v, nil
}

// put keeps a variable's lock.
func (vs *variables) put(at place, items api.VariableItems) *variable {
	vs.index++
	v := vs.all[at]
	if v == nil {
		v = &variable{}
		v.Namespace, v.Path, v.CreateIndex, v.CreateTime = at.namespace, at.path, vs.index, vs.now().UnixNano()
		vs.all[at] = v
	}
	v.Items, v.ModifyIndex, v.ModifyTime = items, vs.index, vs.now().UnixNano()
	return v
}

func times(l api.VariableLock) (ttl, delay time.Duration, err error) {
	if ttl, err = time.ParseDuration(l.TTL); err != nil {
		return 0, 0, fmt.Errorf("TTL: %w", err)
	}
	if delay, err = time.ParseDuration(l.LockDelay); err != nil {
		return 0, 0, fmt.Errorf("LockDelay: %w", err)
	}
	return ttl, delay, nil
}
