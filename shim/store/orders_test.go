// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package store

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/cluster"
)

func TestStore_orders(t *testing.T) {
	s, v := store(t)
	orders, err := s.LoadOrders(t.Context())
	must.NoError(t, err)
	must.Eq(t, Orders{}, orders)

	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	hold := Order{DoHold, Act{By: "ada", Why: "no data yet", Since: at}}
	must.Eq(t, "since 2026-01-02T03:04:05Z by ada: no data yet", hold.String())
	must.NoError(t, s.UpdateOrders(t.Context(), func(o *Orders) error {
		o.Jobs["ml/a/b"], o.Drained = hold, &Act{By: "bob", Since: at}
		return nil
	}))
	must.Eq(t, `{"jobs":{"ml/a/b":{"do":"hold","by":"ada","why":"no data yet","since":"2026-01-02T03:04:05Z"}},"drained":{"by":"bob","why":"","since":"2026-01-02T03:04:05Z"}}`,
		v.items["ebbtide/shim/orders"][item])
	orders, err = s.LoadOrders(t.Context())
	must.NoError(t, err)
	must.Eq(t, hold, orders.Of(cluster.JobKey{Namespace: "ml", ID: "a/b"}))
	must.Eq(t, Order{}, orders.Of(cluster.JobKey{Namespace: "ml", ID: "a"}))
	must.Eq(t, "bob", orders.Drained.By)

	// A refused change writes nothing.
	no := errors.New("no")
	must.ErrorIs(t, s.UpdateOrders(t.Context(), func(o *Orders) error { clear(o.Jobs); return no }), no)
	orders, err = s.LoadOrders(t.Context())
	must.NoError(t, err)
	must.MapLen(t, 1, orders.Jobs)

	v.items["ebbtide/shim/orders"] = api.VariableItems{item: "["}
	must.ErrorContains(t, s.UpdateOrders(t.Context(), func(*Orders) error { return nil }), "reading variable ebbtide/shim/orders")
	v.deny = true
	must.ErrorContains(t, s.UpdateOrders(t.Context(), func(*Orders) error { return nil }), "reading variable ebbtide/shim/orders")
}

// Operators at the same time do not lose each other's orders.
func TestStore_UpdateOrders_concurrent(t *testing.T) {
	s, _ := store(t)
	const operators = 8
	var wait sync.WaitGroup
	for i := range operators {
		wait.Go(func() {
			if err := s.UpdateOrders(t.Context(), func(o *Orders) error {
				o.Jobs[fmt.Sprint("ml/", i)] = Order{Do: DoTop}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	orders, err := s.LoadOrders(t.Context())
	must.NoError(t, err)
	must.MapLen(t, operators, orders.Jobs)
}
