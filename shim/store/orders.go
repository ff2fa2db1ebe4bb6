// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/cluster"
)

const ordersName = "orders"

// Orders are operators' orders for the queue.
type Orders struct {
	// Jobs are by namespace and ID, with a slash between them.
	Jobs map[string]Order `json:"jobs"`
	// Drained means that all jobs leave the queue; nil if they wait in it.
	Drained *Act `json:"drained"`
}

// Of returns a job's order, the zero one if there is none.
func (o Orders) Of(key cluster.JobKey) Order { return o.Jobs[key.String()] }

// What is ordered for a job.
const (
	DoHold  = "hold"  // it does not start
	DoStop  = "stop"  // the same, and if it runs, it is suspended
	DoTop   = "top"   // it comes before all others, the latest first
	DoLeave = "leave" // it is no more the queue's, but Nomad's
)

// Order is what is ordered for a job. Each replaces the one before it.
type Order struct {
	Do string `json:"do"`
	Act
}

// Act is who did something, when, and why.
type Act struct {
	By    string    `json:"by"`
	Why   string    `json:"why"`
	Since time.Time `json:"since"`
}

func (a Act) String() string {
	text := fmt.Sprintf("since %s by %s", a.Since.UTC().Format(time.RFC3339), a.By)
	if a.Why != "" {
		text += ": " + a.Why
	}
	return text
}

func (s Store) LoadOrders(ctx context.Context) (Orders, error) {
	o, err := readJSON[Orders](ctx, s, ordersName)
	if err != nil || o == nil {
		return Orders{}, err
	}
	return *o, nil
}

// UpdateOrders changes the orders, and repeats that while others do so at the same time. An error of
// change ends it.
func (s Store) UpdateOrders(ctx context.Context, change func(*Orders) error) error {
	full := path.Join(s.Path, ordersName)
	for {
		v, err := s.readVariable(ctx, full)
		if err != nil {
			return err
		}
		next := &api.Variable{Namespace: s.Namespace, Path: full}
		var o Orders
		if v != nil {
			next.ModifyIndex = v.ModifyIndex
			if err := json.Unmarshal([]byte(v.Items[item]), &o); err != nil {
				return fmt.Errorf("reading variable %s: %w", full, err)
			}
		}
		if o.Jobs == nil {
			o.Jobs = make(map[string]Order)
		}
		if err := change(&o); err != nil {
			return err
		}
		data, err := json.Marshal(o)
		if err != nil {
			return fmt.Errorf("writing variable %s: %w", full, err)
		}
		next.Items = api.VariableItems{item: string(data)}
		_, _, err = s.Client.Variables().CheckedUpdate(next, (&api.WriteOptions{Namespace: s.Namespace}).WithContext(ctx))
		if errors.As(err, new(api.ErrCASConflict)) {
			continue
		}
		if err != nil {
			return fmt.Errorf("writing variable %s: %w", full, err)
		}
		return nil
	}
}
