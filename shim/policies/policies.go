// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package policies lists the cluster policies, which decide the node of a task.
package policies

import (
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/optin"
	"github.com/ebbtide/ebbtide/shim/migration"
	"github.com/ebbtide/ebbtide/shim/placement"
	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/shim/rebalance"
	"github.com/ebbtide/ebbtide/shim/relocate"
)

// Names of the policies, on the command line and in records.
const (
	Relocate        = optin.Relocate
	FlowConPlace    = optin.FlowConPlace
	SpeConMigrate   = optin.SpeConMigrate
	SpeConRebalance = optin.SpeConRebalance
	Queue           = "queue"
)

// All returns the policies in the order in which they apply to a task.
func All() []policy.Query {
	return []policy.Query{
		policy.NewQuery(Relocate, "the task that would finish much sooner on another node",
			relocate.Input{Params: relocate.DefaultParams()}, relocate.Example(), relocate.Decide),
		policy.NewQuery(FlowConPlace, "the node on which a task can learn fastest (FlowCon, Algorithm 4)",
			placement.Input{Params: placement.DefaultParams()}, placement.Example(), placement.Decide, placement.Departures()...),
		policy.NewQuery(SpeConMigrate, "the node to which a converged task moves (SpeCon, Algorithm 2)",
			migration.Input{Params: migration.DefaultParams()}, migration.Example(), migration.Decide, migration.Departures()...),
		policy.NewQuery(SpeConRebalance, "which tasks move when all have converged (SpeCon, Algorithm 3)",
			rebalance.Input{}, rebalance.Example(), rebalance.Decide, rebalance.Departures()...),
		policy.NewQuery(Queue, "which jobs have their places, if there is not room for all (fair finish)",
			queue.Input{Params: queue.DefaultParams()}, queue.Example(), queue.Decide),
	}
}
