// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package leader

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

const ttl = 15 * time.Second

// server holds one lock, as Nomad does.
type server struct {
	mu     sync.Mutex
	holder *client
	until  time.Time
}

type client struct {
	*server
	fail     func() error // returns requests' errors
	renewals int
}

func (c *client) Acquire(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.fail != nil && c.fail() != nil:
		return c.fail()
	case c.holder != nil && time.Now().Before(c.until):
		return ErrHeld
	}
	c.holder, c.until = c, time.Now().Add(2*ttl)
	return nil
}

func (c *client) Renew(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renewals++
	switch {
	case c.fail != nil && c.fail() != nil:
		return c.fail()
	case c.holder != c || !time.Now().Before(c.until):
		return ErrLost
	}
	c.until = time.Now().Add(2 * ttl)
	return nil
}

func (c *client) Release(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder != c {
		return ErrLost
	}
	c.holder = nil
	return nil
}

type reports struct {
	mu   sync.Mutex
	errs []error
}

func (r *reports) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

func (r *reports) options() Options { return Options{TTL: ttl, Retry: ttl / 5, Report: r.add} }

func TestRun_leadsUntilItIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told reports
		c := &client{server: &server{}}
		ctx, cancel := context.WithCancel(t.Context())
		// Between two checks of lead, not at one.
		go func() { time.Sleep(time.Hour + time.Second/2); cancel() }()
		var led *Term
		err := Run(ctx, c, told.options(), func(ctx context.Context, term *Term) error {
			led = term
			for ctx.Err() == nil {
				must.NoError(t, term.Held())
				time.Sleep(time.Second)
			}
			return ctx.Err()
		})
		must.ErrorIs(t, err, context.Canceled)
		must.ErrorIs(t, led.Held(), ErrLost)
		must.Nil(t, c.holder, must.Sprint("it was given back"))
		must.Between(t, 700, c.renewals, 730) // every 5 s
		must.SliceEmpty(t, told.errs)
	})
}

// A leader told to stop reverts its work while it still leads.
func TestRun_undoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told reports
		s := &server{}
		ctx, cancel := context.WithCancel(t.Context())
		var ended time.Time
		standby := make(chan time.Time, 1)
		go func() {
			time.Sleep(ttl + time.Second)
			go func() {
				_ = Run(t.Context(), &client{server: s}, told.options(), func(context.Context, *Term) error {
					standby <- time.Now()
					return nil
				})
			}()
			cancel()
		}()
		err := Run(ctx, &client{server: s}, told.options(), func(ctx context.Context, term *Term) error {
			<-ctx.Done()
			for range 100 {
				time.Sleep(time.Second)
				must.NoError(t, term.Held())
			}
			ended = time.Now()
			return ctx.Err()
		})
		must.ErrorIs(t, err, context.Canceled)
		must.False(t, (<-standby).Before(ended))
	})
}

func TestRun_leadReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told reports
		c := &client{server: &server{}}
		broken := errors.New("broken")
		must.ErrorIs(t, Run(t.Context(), c, told.options(), func(context.Context, *Term) error { return broken }), broken)
		must.Nil(t, c.holder)
		must.NoError(t, Run(t.Context(), c, told.options(), func(context.Context, *Term) error { return nil }))
	})
}

// A standby takes over from a dead leader, and reports once that another leads.
func TestRun_standby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told reports
		s := &server{}
		dead := &client{server: s}
		must.NoError(t, dead.Acquire(t.Context())) // never renewed
		begun := time.Now()
		must.NoError(t, Run(t.Context(), &client{server: s}, told.options(), func(context.Context, *Term) error { return nil }))
		must.Between(t, 2*ttl, time.Since(begun), 2*ttl+ttl/3)
		must.Len(t, 1, told.errs)
		must.ErrorIs(t, told.errs[0], ErrHeld)
	})
}

// At no time do two lead, whatever happens to the first one's network: each checks its term
// before a change.
func TestRun_never2(t *testing.T) {
	down := errors.New("connection refused")
	for name, fail := range map[string]func(since time.Duration) error{
		"no network":      func(time.Duration) error { return down },
		"comes and goes":  func(since time.Duration) error { return map[bool]error{true: down}[int(since/(20*time.Second))%2 == 0] },
		"comes back late": func(since time.Duration) error { return map[bool]error{true: down}[since < 5*ttl] },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
				defer cancel()
				s := &server{}
				var told reports
				var mu sync.Mutex
				leading := map[int]int{} // seconds led
				var last time.Time
				lead := func(who int) func(context.Context, *Term) error {
					return func(ctx context.Context, term *Term) error {
						for ctx.Err() == nil {
							if term.Held() == nil {
								mu.Lock()
								must.False(t, time.Now().Equal(last), must.Sprint("two lead"))
								last = time.Now()
								leading[who]++
								mu.Unlock()
							}
							time.Sleep(time.Second)
						}
						return ctx.Err()
					}
				}
				begun := time.Now()
				one := &client{server: s}
				one.fail = func() error {
					if since := time.Since(begun) - 2*ttl; since > 0 {
						return fail(since)
					}
					return nil
				}
				two := &client{server: s}
				done := make(chan error)
				go func() { done <- Run(ctx, one, told.options(), lead(1)) }()
				go func() { time.Sleep(ttl / 2); done <- Run(ctx, two, told.options(), lead(2)) }()
				must.ErrorIs(t, <-done, context.DeadlineExceeded)
				must.ErrorIs(t, <-done, context.DeadlineExceeded)
				must.Positive(t, leading[1])
				must.Greater(t, 1600, leading[1]+leading[2], must.Sprint("there is a leader nearly all the time"))
			})
		})
	}
}

// A refused renewal ends the term at once; Run waits for lead.
func TestRun_refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told reports
		s := &server{}
		c := &client{server: s}
		terms := 0
		err := Run(t.Context(), c, told.options(), func(ctx context.Context, term *Term) error {
			if terms++; terms == 2 {
				return nil
			}
			s.mu.Lock()
			s.holder = nil // the variable was deleted
			s.mu.Unlock()
			begun := time.Now()
			<-ctx.Done()
			must.LessEq(t, ttl/3, time.Since(begun))
			must.ErrorIs(t, context.Cause(ctx), ErrLost)
			must.ErrorIs(t, term.Held(), ErrLost)
			return ctx.Err()
		})
		must.NoError(t, err)
		must.Eq(t, 2, terms)
	})
}

func TestVariable(t *testing.T) {
	type request struct {
		query string
		v     api.Variable
	}
	var asked request
	status := http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = request{query: r.URL.RawQuery}
		must.Eq(t, "/v1/var/ebbtide/shim/leader", r.URL.Path)
		must.NoError(t, json.NewDecoder(r.Body).Decode(&asked.v))
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(api.Variable{Path: asked.v.Path, Lock: &api.VariableLock{ID: "the-lock"}})
	}))
	defer srv.Close()
	nomad, err := api.NewClient(&api.Config{Address: srv.URL})
	must.NoError(t, err)
	v := &Variable{Client: nomad, Namespace: "ml", Path: "ebbtide/shim/leader", TTL: ttl, Delay: 10 * time.Second, Holder: "host-1"}

	must.NoError(t, v.Acquire(t.Context()))
	must.StrContains(t, asked.query, "lock-acquire")
	must.StrContains(t, asked.query, "namespace=ml")
	must.Eq(t, &api.VariableLock{TTL: "15s", LockDelay: "10s"}, asked.v.Lock)
	must.Eq(t, "host-1", asked.v.Items["holder"])
	must.NoError(t, v.Renew(t.Context()))
	must.StrContains(t, asked.query, "lock-renew")
	must.Eq(t, "the-lock", asked.v.Lock.ID)
	must.NoError(t, v.Release(t.Context()))
	must.StrContains(t, asked.query, "lock-release")
	must.Eq(t, "the-lock", asked.v.Lock.ID)

	status = http.StatusConflict
	must.ErrorIs(t, v.Acquire(t.Context()), ErrHeld)
	must.ErrorIs(t, v.Renew(t.Context()), ErrLost)
	must.ErrorIs(t, v.Release(t.Context()), ErrLost)
	status = http.StatusInternalServerError
	err = v.Renew(t.Context())
	must.ErrorContains(t, err, "500")
	must.False(t, errors.Is(err, ErrLost))
	status = http.StatusNotFound
	must.ErrorIs(t, v.Renew(t.Context()), ErrLost)
}
