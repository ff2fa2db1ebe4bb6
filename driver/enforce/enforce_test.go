// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package enforce

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/limits"
)

type kernel struct {
	mu      sync.Mutex
	limits  limits.Limits
	readErr error
	setErr  error
	ignore  bool // accept, but do nothing
	takes   time.Duration
	sets    []limits.Limits
}

func (k *kernel) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
}

func (k *kernel) Read() (limits.Limits, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.limits, k.readErr
}

func (k *kernel) InForce(want, got limits.Limits) bool { return want == got }

func (k *kernel) Set(want limits.Limits) error {
	time.Sleep(k.takes)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sets = append(k.sets, want)
	if k.setErr == nil && !k.ignore {
		k.limits = want
	}
	return k.setErr
}

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, half, third := limits.Limits{Shares: 1000}, limits.Limits{Shares: 500}, limits.Limits{Shares: 333}
		k := &kernel{limits: base, takes: time.Second}
		var changed atomic.Int32
		l, err := New(k, func() { changed.Add(1) })
		must.NoError(t, err)
		must.Eq(t, State{Want: base, InForce: base}, l.State())

		l.Set(t.Context(), base)
		must.SliceEmpty(t, k.sets, must.Sprint("the kernel has it"))

		l.Set(t.Context(), half)
		l.Set(t.Context(), third) // while the first is being set
		must.True(t, l.State().Setting)
		must.Eq(t, base, l.State().InForce)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		must.Eq(t, State{Want: third, InForce: third}, l.State())
		must.Eq(t, []limits.Limits{half, third}, k.sets)
		must.Eq(t, 2, changed.Load())

		k.change(func() { k.limits = limits.Limits{Shares: 77} }) // by others
		l.Set(t.Context(), third)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		must.Eq(t, third, k.limits)
	})
}

func TestLimiter_fails(t *testing.T) {
	for name, fail := range map[string]func(*kernel, bool){
		"refused": func(k *kernel, on bool) {
			k.setErr = nil
			if on {
				k.setErr = errors.New("permission denied")
			}
		},
		"not taken": func(k *kernel, on bool) { k.ignore = on },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &kernel{limits: limits.Limits{Shares: 1000}}
				l, err := New(k, nil)
				must.NoError(t, err)
				k.change(func() { fail(k, true) })
				for range 600 {
					l.Set(t.Context(), limits.Limits{Shares: 500})
					time.Sleep(time.Second)
				}
				synctest.Wait()
				must.Error(t, l.State().Err)
				must.Between(t, 10, len(k.sets), 20)
				k.change(func() { fail(k, false) })
				time.Sleep(time.Minute)
				l.Set(t.Context(), limits.Limits{Shares: 500})
				synctest.Wait()
				must.NoError(t, l.State().Err)
				must.Eq(t, 500, k.limits.Shares)
			})
		})
	}
}

func TestLimiter_unreadable(t *testing.T) {
	k := &kernel{readErr: errors.New("no such file")}
	l, err := New(k, nil)
	must.ErrorContains(t, err, "reading the limits in force: no such file")
	must.Eq(t, State{}, l.State())
}
