// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Serve is the helper's side. It reports what CUDA can do (its version, and why it cannot park,
// or ""), then handles requests. It returns when ctx or the input has ended and the calls in
// progress are done, or have taken longer than grace: interrupting a restore may lose the
// process.
func Serve(ctx context.Context, in io.Reader, out io.Writer, calls Calls, cuda int, unsupported string, grace time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	enc := json.NewEncoder(out)
	if err := enc.Encode(hello{CUDA: cuda, Unsupported: unsupported}); err != nil {
		return fmt.Errorf("sending hello: %w", err)
	}
	if unsupported != "" {
		return nil
	}
	requests := make(chan request)
	bad := make(chan error, 1)
	go func() {
		defer cancel()
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			var r request
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				bad <- fmt.Errorf("reading a request: %w", err)
				return
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	var under sync.WaitGroup
	for ctx.Err() == nil {
		select {
		case r := <-requests:
			under.Go(func() {
				a := do(calls, r)
				mu.Lock()
				defer mu.Unlock()
				_ = enc.Encode(a) // the parent may be gone
			})
		case <-ctx.Done():
		}
	}
	done := make(chan struct{})
	go func() { under.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(grace):
		return fmt.Errorf("ending: CUDA calls have not returned within %v", grace)
	}
	select {
	case err := <-bad:
		return err
	default:
		return nil
	}
}

func do(calls Calls, r request) answer {
	a := answer{ID: r.ID, Result: InvalidValue}
	switch r.Call {
	case callState:
		a.State, a.Result = calls.State(r.PID)
	case callLock:
		a.Result = calls.Lock(r.PID, r.TimeoutMS)
	case callCheckpoint:
		a.Result = calls.Checkpoint(r.PID)
	case callRestore:
		a.Result = calls.Restore(r.PID)
	case callUnlock:
		a.Result = calls.Unlock(r.PID)
	}
	return a
}
