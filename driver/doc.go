// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package driver is the Nomad task driver plugin "ebbtide". It decorates Nomad's docker or exec
// driver (package engine), which behaves as in stock Nomad, and adds a control loop (package
// control) that reads each task's progress and shifts the node's CPU to the tasks that gain most
// from it. If the loop fails, tasks run as under plain Nomad.
//
// Inputs: the plugin's options (package config), a jobspec's blocks and meta (package options), a
// task's output and metrics (package progress), cgroups (package limits), the shim's signals
// (move.go, runs.go), the device plugin's reports (gpu.go). Outputs: CPU limits, status files and
// events (package publish), the private directory (package private).
//
// Start with driver.go (SetConfig, StartTask, supervise), then control/decide.go, one decision from
// the snapshot to the limits, and a policy such as policy/fsp. wait.go waits for a task's result,
// finish.go handles targets, move.go and adopt.go moves. ARCHITECTURE.md follows a report to the
// kernel's file.
package driver
