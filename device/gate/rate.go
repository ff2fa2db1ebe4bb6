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

// newReader returns a buffered reader: one system call reads several messages.
func newReader(r io.Reader) *bufio.Reader { return bufio.NewReaderSize(r, 64*wire.Size) }

// rateLimiter allows a number of messages per second, with bursts. It is safe for concurrent use.
type rateLimiter struct {
	each, burst time.Duration

	mu  sync.Mutex
	due time.Time // when all messages so far would have passed at that rate
}

func newRateLimiter(now time.Time, rate, burst int) *rateLimiter {
	each := time.Second / time.Duration(rate)
	return &rateLimiter{each: each, burst: each * time.Duration(burst), due: now}
}

// next returns how long to delay the next message.
func (p *rateLimiter) next(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(p.each)
	return max(0, p.due.Sub(now)-p.burst)
}
