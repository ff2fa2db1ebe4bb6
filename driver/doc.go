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
// Start with driver.go: SetConfig, StartTask, supervise. wait.go waits for a task's result,
// finish.go handles targets, move.go and adopt.go moves.
//
// # From a report to the kernel
//
//	source.Open                     the task's output, file or endpoint
//	progress.Logs.Poll              lines to Parser.Parse, a Report each
//	measure.Observer.poll, take     one point per poll
//	growth.Estimator.Add, Measure   growth; remaining.Estimator.Estimate: work left
//	control.Controller.tick         adopts each Observer's Latest measurement
//	control.Controller.decide       takeSnapshot, advanceTwins (package twin)
//	policy.Decider.Decide           a Decision per task, by the configured policy
//	control.Controller.enforce      plan.Limits, plan.Damper.Next
//	enforce.Limiter.Set             off the loop, with retries
//	engine.Engine.Apply             Docker's update API, or
//	limits.Cgroup.SetShares         cpu.weight (v2) or cpu.shares (v1)
//	limits.Cgroup.SetQuota          cpu.max (v2) or cpu.cfs_quota_us (v1)
//	limits.Cgroup.Read, InForce     read back by the Limiter
//	publish.Task.Write              status, history, picture
package driver
