// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestRateLimiter(t *testing.T) {
	now := time.Unix(1e9, 0)
	p := newRateLimiter(now, 10, 5)
	for range 5 {
		must.Eq(t, 0, p.next(now))
	}
	must.Eq(t, 100*time.Millisecond, p.next(now))
	must.Eq(t, 200*time.Millisecond, p.next(now))
	now = now.Add(time.Second)
	must.Eq(t, 0, p.next(now))
	now = now.Add(time.Hour) // an idle hour allows one burst
	for range 5 {
		must.Eq(t, 0, p.next(now))
	}
	must.Greater(t, 0, p.next(now))
}
