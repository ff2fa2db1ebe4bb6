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
package harness
