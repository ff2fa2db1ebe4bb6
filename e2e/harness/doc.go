// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package harness runs real Nomad agents and Docker daemons on free loopback ports and in a
// directory of their own, and removes every trace. In: options per agent and daemon. Out: API
// clients and errors; there are no assertions, so that the demo can use it. Start with
// harness.go, then agent.go.
//
// Everything is started by a supervisor, a second process of the same binary and the subreaper
// of all processes below. However its creator ends (return, panic, signal, go test's timeout),
// the supervisor notices the closed pipe, kills its descendants, unmounts what is under the
// directory, and removes cgroups, bridges and the directory. It finds processes by descent,
// never by name, so harnesses can run in parallel.
package harness
