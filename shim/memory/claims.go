// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/move"
)

// Claims stores each move's record in a variable.
type Claims struct{ Store }

var _ move.Claims = Claims{}

// name is a hash: Nomad limits paths to 128 characters.
func (c Claims) name(namespace, job string) string {
	sum := sha256.Sum256([]byte(namespace + "\x00" + job))
	return path.Join(c.Path, "claims", hex.EncodeToString(sum[:16]))
}

func (c Claims) Write(ctx context.Context, r move.Record) (index uint64, err error) {
	data, err := json.Marshal(r)
	if err != nil {
		return 0, fmt.Errorf("writing the record of move %s: %w", r.ID, err)
	}
	v := &api.Variable{Namespace: c.Namespace, Path: c.name(r.Namespace, r.Job), ModifyIndex: r.Index, Items: api.VariableItems{"record": string(data)}}
	out, _, err := c.Client.Variables().CheckedUpdate(v, (&api.WriteOptions{Namespace: c.Namespace}).WithContext(ctx))
	if err != nil {
		return 0, fmt.Errorf("writing variable %s: %w", v.Path, asClaimed(err))
	}
	return out.ModifyIndex, nil
}

// asClaimed converts a check-and-set conflict to move.ErrClaimed.
func asClaimed(err error) error {
	var conflict api.ErrCASConflict
	if !errors.As(err, &conflict) {
		return err
	}
	if r, err := record(conflict.Conflict); err == nil {
		return fmt.Errorf("%w: %s of %s", move.ErrClaimed, r.ID, r.Owner)
	}
	return move.ErrClaimed
}

func record(v *api.Variable) (r move.Record, err error) {
	if v == nil {
		return r, errors.New("there is none")
	}
	if err := json.Unmarshal([]byte(v.Items["record"]), &r); err != nil {
		return r, fmt.Errorf("variable %s: %w", v.Path, err)
	}
	r.Index = v.ModifyIndex
	return r, nil
}

func (c Claims) Read(ctx context.Context, namespace, job string) (move.Record, error) {
	return c.at(ctx, c.name(namespace, job))
}

func (c Claims) at(ctx context.Context, full string) (move.Record, error) {
	v, _, err := c.Client.Variables().Read(full, (&api.QueryOptions{Namespace: c.Namespace}).WithContext(ctx))
	if errors.Is(err, api.ErrVariablePathNotFound) {
		return move.Record{}, nil
	}
	if err != nil {
		return move.Record{}, fmt.Errorf("reading variable %s: %w", full, err)
	}
	return record(v)
}

func (c Claims) Remove(ctx context.Context, r move.Record) error {
	full := c.name(r.Namespace, r.Job)
	_, err := c.Client.Variables().CheckedDelete(full, r.Index, (&api.WriteOptions{Namespace: c.Namespace}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("removing variable %s: %w", full, asClaimed(err))
	}
	return nil
}

func (c Claims) List(ctx context.Context) ([]move.Record, error) {
	paths, err := c.list(ctx, "claims")
	if err != nil {
		return nil, err
	}
	var all []move.Record
	for _, p := range paths {
		r, err := c.at(ctx, p)
		if err != nil {
			return nil, err
		}
		if r.Index != 0 {
			all = append(all, r)
		}
	}
	return all, nil
}
