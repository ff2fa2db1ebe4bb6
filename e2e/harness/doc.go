// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package harness runs real Nomad agents and Docker daemons on free loopback ports and in a
// separate directory, and removes every trace. Inputs: options per agent and daemon. Outputs: API
// clients and errors; it has no assertions, so that the demo can use it. Start with harness.go,
// then agent.go.
//
// A supervisor, a second process of the same binary, starts all other processes and is their
// subreaper. However its creator ends (return, panic, signal, go test's timeout), the supervisor
// detects the closed pipe, kills its descendants, unmounts everything under the directory, and
// removes cgroups, bridges and the directory. It finds processes by descent, never by name, so
// harnesses can run in parallel.
//
// # Known issues of Nomad 1.11.2
//
// The tests found these and work around them.
//
//   - network { mode = "none" } in a group always fails: "network already configured but not found
//     in state".
//   - nomad alloc exec of a command that does not exist hangs in the exec driver's executor, and
//     then the task's stop does, too.
//   - Two agents on one machine share Nomad's cgroups: while one runs a task with cores,
//     allocations on the other fail with "unable to update reserve cpuset".
//   - Job plans with a workload identity fail with an error 500 about the length of a UUID.
//   - A device plugin's mounts replace the task's volumes instead of being added to them.
//   - A job that found only unhealthy devices is not retried when they are healthy, unless an
//     attribute of the node or a device changes: Ebbtide's devices have healthy.
//   - The client stores a task's handle without the task's driver config.
//   - The agent does not end a plugin whose config is rejected. Ebbtide's plugins exit when the
//     agent has.
//   - A node is down after one to two times min_heartbeat_ttl plus heartbeat_grace without a
//     heartbeat; until then Nomad places allocations on it. After its start the server waits
//     failover_heartbeat_ttl, five minutes, for each node's first heartbeat.
//   - A new version of a batch job re-runs completed allocations of older versions, even of
//     unchanged groups. The index enforced by a registration does not change when a job completes.
//   - The replacement of a lost allocation migrates its disk from that allocation only, not from
//     an earlier one.
//   - For an unreachable agent the API returns 404 ("No path to node"), or 200 with the error as
//     the file's contents.
//   - While Docker is suspended (SIGSTOP), no output reaches Nomad's log files, and a task that
//     fills the pipe blocks.
//   - The docker driver's log collector is stopped when the container ends: on a loaded machine a
//     short task's last lines are lost.
//   - If the allocations' disk is full, Nomad's log collector fails, and SIGPIPE ends a task that
//     keeps printing, under any driver.
package harness
