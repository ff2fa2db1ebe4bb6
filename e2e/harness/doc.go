// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package harness runs real Nomad agents and Docker daemons for tests and demos,
// on free loopback ports and in one directory of their own, and takes every trace
// of them away again.
//
// What is started is started by a supervisor: a second process of the same
// binary, which is the subreaper of everything below it. When its creator ends,
// in whatever way (return, panic, SIGINT, SIGKILL, the time-out of go test), the
// supervisor sees the end of its pipe and kills its descendants, unmounts what
// lies under the directory and removes cgroups, bridges and the directory itself.
// It finds processes by descent, never by name, so that harnesses can run side by
// side.
//
// The package holds no assertions: it returns errors, so that the demo can use it.
package harness
