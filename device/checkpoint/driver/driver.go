// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package driver calls CUDA's checkpoint functions in a process of its own.
//
// These functions act on any process of the host, given its pid. They are in the driver's
// library, which is not to be loaded into the plugin: if it crashes or hangs, a helper
// does. The helper stays, since to load the library and to initialise it costs seconds.
// It is the plugin's own binary, started with other arguments; package libcuda has what it
// does then. Requests and answers are JSON, one to a line, on its standard input and
// output. It says first what it can (hello). It works on any number of requests at once,
// since a lock may take as long as its time-out.
package driver

import (
	"errors"
	"fmt"
)

var (
	// ErrUnsupported says that processes cannot be parked on this machine, and why.
	ErrUnsupported = errors.New("CUDA cannot move a process's memory away here")
	// ErrHelper says that the helper could not be started, or ended before it answered. What
	// has become of the call is not known.
	ErrHelper = errors.New("the helper that calls CUDA is gone")
	// ErrStuck says that CUDA does not answer. It wraps ErrHelper.
	ErrStuck = fmt.Errorf("%w: CUDA does not answer", ErrHelper)
	// ErrClosed says that the client was closed.
	ErrClosed = errors.New("the helper that calls CUDA has been stopped")
)

// State is what a process's CUDA is in (CUprocessState).
type State int

// States. Drivers may know more of them.
const (
	Running      State = iota // it goes on
	Locked                    // its calls of CUDA wait
	Checkpointed              // Locked, and its memory is in the host's
	Failed                    // it cannot go on any more
)

// String is for messages.
func (s State) String() string {
	if names := []string{"running", "locked", "checkpointed", "failed"}; s >= 0 && int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", int(s))
}

// Result is what CUDA answers (CUresult), as an error.
type Result int

// Results that are told apart here.
const (
	Success        Result = 0
	InvalidValue   Result = 1
	OutOfMemory    Result = 2
	NotInitialized Result = 3
	IllegalState   Result = 401
	NotReady       Result = 600 // a lock's time-out
	NotSupported   Result = 801
)

// Error is CUDA's name of it, where there is one here, and its number.
func (r Result) Error() string {
	name := map[Result]string{
		InvalidValue: "invalid value", OutOfMemory: "out of memory", NotInitialized: "not initialised", 100: "no device",
		101: "invalid device", 304: "a call of the operating system failed", IllegalState: "illegal state", 500: "not found",
		NotReady: "not ready", NotSupported: "not supported", 803: "the library and the kernel's driver are of different versions",
		999: "unknown error",
	}[r]
	if name == "" {
		return fmt.Sprintf("CUDA's error %d", int(r))
	}
	return fmt.Sprintf("CUDA's error %d (%s)", int(r), name)
}

// Calls are CUDA's checkpoint functions. A pid is one as this process sees it.
type Calls interface {
	// State asks for the state of a process.
	State(pid int) (State, Result)
	// Lock makes calls of CUDA wait in the process, once what it has submitted is done. After
	// a time-out, in ms, it goes on as before.
	Lock(pid int, timeoutMS uint32) Result
	// Checkpoint moves the memory of a locked process to the host's.
	Checkpoint(pid int) Result
	// Restore moves it back. The process stays locked.
	Restore(pid int) Result
	// Unlock lets a locked process go on.
	Unlock(pid int) Result
}

// The helper's calls.
const (
	callState      = "state"
	callLock       = "lock"
	callCheckpoint = "checkpoint"
	callRestore    = "restore"
	callUnlock     = "unlock"
)

// hello is what the helper says first.
type hello struct {
	// CUDA is the version of CUDA that the driver has, 1000 · major + 10 · minor.
	CUDA int `json:"cuda"`
	// Unsupported says why it can do nothing. "" if it can.
	Unsupported string `json:"unsupported,omitempty"`
}

type request struct {
	ID        uint64 `json:"id"`
	Call      string `json:"call"`
	PID       int    `json:"pid"`
	TimeoutMS uint32 `json:"timeout_ms,omitempty"`
}

type answer struct {
	ID     uint64 `json:"id"`
	Result Result `json:"result"`
	State  State  `json:"state,omitempty"`
}
