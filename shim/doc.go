// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package shim is a daemon that places and moves training jobs in a Nomad cluster: FlowCon's
// Algorithm 4 for new tasks, SpeCon's Algorithms 2 and 3 for converged ones, and relocation of
// tasks that would finish much sooner on another node. One shim leads; the others stand by. If it
// fails, jobs keep running where Nomad placed them.
//
// Inputs: Nomad's listing and event stream (packages cluster, stream), the drivers' status files
// (allocfs), the configuration (config), the operators' pause and orders (store). Outputs: job
// registrations and signals (move), records and a report in Nomad variables (store), metrics and health
// (web).
//
// Start with pass.go, one decision about the cluster: each policy turns a snapshot into a plan. Then
// executor.go, which carries plans out within the limits, leadership.go, whose steps own all state
// while background runs what waits for Nomad or a node, and move/move.go. ARCHITECTURE.md follows an
// event to a move.
package shim
