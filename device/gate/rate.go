// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"bufio"
	"io"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/wire"
)

// newReader reads several messages with one call of the system.
func newReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 64*wire.Size) }

// rateLimiter lets so many messages a second pass, and a burst of them at once. It is safe for
// concurrent use.
type rateLimiter struct {
	each, burst time.Duration

	mu  sync.Mutex
	due time.Time // when all that have passed would have, one after the other
}

func newRateLimiter(now time.Time, rate, burst int) *rateLimiter {
	each := time.Second / time.Duration(rate)
	return &rateLimiter{each: each, burst: each * time.Duration(burst), due: now}
}

// next returns how long the next message has to wait.
func (p *rateLimiter) next(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(p.each)
	return max(0, p.due.Sub(now)-p.burst)
}
