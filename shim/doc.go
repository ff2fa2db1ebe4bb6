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
// Start with shim.go. An event becomes a move as follows:
//
//	listen      reads the event stream and posts each batch to the loop
//	apply       updates cluster.State; a held job expedites the next pass
//	reconcile   is one pass: it reads the pause, recovers abandoned moves, and calls
//	decide      which selects due policies, surveys the nodes' summaries, and calls
//	place, migrate, relocate, rebalance
//	            which build a policy's input and run its pure Choose or Decide
//	startMove   checks pause and limits (actuator.Gate) and runs, off the loop,
//	move.Move   which claims, freezes, binds, verifies and unbinds the job
//	finish      records the result and updates limits and back-off
//
// heldJobs and release do the same for jobs held for placement (move.Release). One loop owns all
// state; background runs everything that waits for Nomad or a node.
package shim
