// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package shim is a daemon that places and moves training jobs in a Nomad cluster: FlowCon's
// Algorithm 4 for new tasks, SpeCon's Algorithms 2 and 3 for converged ones, and relocation of
// tasks that would finish much sooner on another node. One shim leads; the others stand by. If it
// fails, jobs keep running where Nomad placed them.
//
// Inputs: Nomad's listing and event stream (packages cluster, stream), the drivers' status files
// (allocfs), the configuration (config), the operators' pause (memory). Outputs: job registrations
// and signals (move), records and a report in Nomad variables (memory), metrics and health (web).
//
// Start with shim.go, whose loop owns all state (background runs everything that waits for Nomad or
// a node), then decide.go, one reconcile pass, and move/move.go. heldJobs and release place jobs
// that wait (move.Release). ARCHITECTURE.md follows an event to a move.
package shim
