// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package store

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

// recordSchema is the version of a record's layout. New fields that an older shim may ignore keep it:
// it must not take a suspension, or the resumption of a suspended job, for a move.
const (
	recordSchema = 2
	moveSchema   = 1
)

func schemaOf(r move.Record) int {
	if r.Suspend || r.Left != "" {
		return recordSchema
	}
	return moveSchema
}

// stored is a record as stored. Records of versions before the schema have 0.
type stored struct {
	Schema int `json:"schema"`
	move.Record
}

func (c Claims) Write(ctx context.Context, r move.Record) (index uint64, err error) {
	data, err := json.Marshal(stored{schemaOf(r), r})
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
	if conflict.Conflict == nil {
		return move.ErrClaimed
	}
	r, err := record(conflict.Conflict)
	if err != nil {
		return fmt.Errorf("%w: %w", move.ErrClaimed, err)
	}
	return fmt.Errorf("%w: %s of %s", move.ErrClaimed, r.ID, r.Owner)
}

// unreadable is the error of a record.
type unreadable struct{ move.Unreadable }

func (u unreadable) Error() string { return u.String() }

func record(v *api.Variable) (move.Record, error) {
	no := unreadable{move.Unreadable{Path: v.Path}}
	var head struct {
		Schema             int
		ID, Namespace, Job string
	}
	data := []byte(v.Items["record"])
	err := json.Unmarshal(data, &head)
	no.Namespace, no.Job = head.Namespace, head.Job
	switch {
	case err != nil:
		no.Why = err.Error()
		return move.Record{}, no
	case head.Schema > recordSchema:
		no.Why = fmt.Sprintf("a newer version has written it (schema %d, this one reads up to %d)", head.Schema, recordSchema)
		return move.Record{}, no
	case head.ID == "" || head.Namespace == "" || head.Job == "":
		no.Why = "it names no move, namespace or job"
		return move.Record{}, no
	}
	var r stored
	if err := json.Unmarshal(data, &r); err != nil {
		no.Why = err.Error()
		return move.Record{}, no
	}
	r.Index = v.ModifyIndex
	return r.Record, nil
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

func (c Claims) List(ctx context.Context) (all []move.Record, skipped []move.Unreadable, err error) {
	paths, err := c.list(ctx, "claims")
	if err != nil {
		return nil, nil, err
	}
	for _, p := range paths {
		r, err := c.at(ctx, p)
		var no unreadable
		switch {
		case errors.As(err, &no):
			skipped = append(skipped, no.Unreadable)
		case err != nil:
			return nil, nil, err
		case r.Index != 0:
			all = append(all, r)
		}
	}
	return all, skipped, nil
}
