// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package driver calls CUDA's checkpoint functions, which act on any process of the host, in a
// helper process: if CUDA's library crashes or hangs, only the helper does. The helper is the
// plugin's own binary with other arguments (package libcuda), and keeps running, because loading
// the library takes seconds. Requests and answers are JSON lines on its standard input and
// output.
package driver

import (
	"errors"
	"fmt"
)

var (
	// ErrUnsupported: processes cannot be parked on this machine.
	ErrUnsupported = errors.New("CUDA cannot move a process's memory to the host here")
	// ErrHelper: the helper could not be started, or ended before it answered: the outcome is
	// unknown.
	ErrHelper = errors.New("the helper that calls CUDA has exited")
	// ErrStuck: CUDA does not answer. It wraps ErrHelper.
	ErrStuck  = fmt.Errorf("%w: CUDA does not answer", ErrHelper)
	ErrClosed = errors.New("the helper that calls CUDA has been stopped")
)

// State is a process's CUDA state (CUprocessState).
type State int

// States. Drivers may have more.
const (
	Running      State = iota
	Locked             // its CUDA calls block
	Checkpointed       // locked, with its memory on the host
	Failed             // it cannot continue
)

func (s State) String() string {
	if names := []string{"running", "locked", "checkpointed", "failed"}; s >= 0 && int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("state %d", int(s))
}

// Result is a CUresult as an error.
type Result int

const (
	Success        Result = 0
	InvalidValue   Result = 1
	OutOfMemory    Result = 2
	NotInitialized Result = 3
	IllegalState   Result = 401
	NotReady       Result = 600 // a lock's timeout
	NotSupported   Result = 801
)

// Error returns CUDA's number, with the name if known.
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

// Calls are CUDA's checkpoint functions. Pids are in this process's namespace.
type Calls interface {
	State(pid int) (State, Result)
	// Lock blocks the process's CUDA calls once its submitted work is done. After the timeout, in
	// ms, the process continues.
	Lock(pid int, timeoutMS uint32) Result
	Checkpoint(pid int) Result
	// Restore leaves the process locked.
	Restore(pid int) Result
	Unlock(pid int) Result
}

const (
	callState      = "state"
	callLock       = "lock"
	callCheckpoint = "checkpoint"
	callRestore    = "restore"
	callUnlock     = "unlock"
)

type hello struct {
	// CUDA is the driver's CUDA version, 1000 · major + 10 · minor.
	CUDA int `json:"cuda"`
	// Unsupported is why processes cannot be parked, or "".
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
