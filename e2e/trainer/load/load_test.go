// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package load

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func service(t *testing.T, f http.HandlerFunc) *url.URL {
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	must.NoError(t, err)
	return u
}

func one(u *url.URL) Config { return Config{Target: u, Concurrency: 1, Timeout: 30 * time.Second} }

func TestClosedLoop(t *testing.T) {
	t.Parallel()
	var under, most, bodies atomic.Int64
	u := service(t, func(_ http.ResponseWriter, r *http.Request) {
		n := under.Add(1)
		defer under.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		body, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodPost && r.URL.Path == "/predict" && string(body) == `{"work": 2.5}` && r.Header.Get("Content-Type") == "application/json" {
			bodies.Add(1)
		}
		time.Sleep(2 * time.Millisecond)
	})
	c := one(u)
	var each atomic.Int64
	c.Concurrency, c.Requests, c.Work, c.Each = 3, 60, 2.5, func(Result) { each.Add(1) }
	l := New(c)
	l.Run(context.Background())
	must.Eq(t, 3, most.Load())
	must.Eq(t, 60, bodies.Load())
	must.Eq(t, 60, each.Load())
	must.Eq(t, 60, l.Total().Responses.Count())
	must.Eq(t, 0, l.Total().Failed())
	must.Greater(t, 0.002, l.Total().Responses.Mean())
	taken := l.Take()
	must.Eq(t, 60, taken.Responses.Count())
	taken = l.Take()
	must.Eq(t, 0, taken.Responses.Count())
}

func TestOpenLoop(t *testing.T) {
	t.Parallel()
	for _, even := range []bool{false, true} {
		var requests atomic.Int64
		u := service(t, func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if len(body) == 0 && r.URL.Path == "/other" {
				requests.Add(1)
			}
		})
		l := New(Config{Target: u.JoinPath("other"), Rate: 500, Even: even, Open: 1000, Requests: 100, Timeout: 30 * time.Second})
		began := time.Now()
		l.Run(context.Background())
		must.Eq(t, 100, requests.Load())
		must.Eq(t, 100, l.Total().Responses.Count())
		must.Greater(t, 0.1, time.Since(began).Seconds()) // 0.2 s, at random
	}
}

// An open loop continues without responses, up to a bound, and response times count from when
// requests were due.
func TestOpenLoopOverload(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var arrived atomic.Int64
	u := service(t, func(http.ResponseWriter, *http.Request) {
		arrived.Add(1)
		<-release
	})
	var each atomic.Int64
	l := New(Config{Target: u, Rate: 1000, Open: 5, Requests: 50, Timeout: 30 * time.Second, Each: func(Result) { each.Add(1) }})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(context.Background())
	}()
	for each.Load() < 45 {
		time.Sleep(time.Millisecond)
	}
	close(release)
	<-ended
	must.Eq(t, 5, arrived.Load())
	must.Eq(t, 5, l.Total().Responses.Count())
	must.Eq(t, map[string]int64{ErrorDropped: 45}, l.Total().Errors)
}

func TestErrorsAreCounted(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	end := make(chan struct{})
	u := service(t, func(w http.ResponseWriter, r *http.Request) {
		switch n.Add(1) {
		case 1:
			http.Error(w, "no", http.StatusServiceUnavailable)
		case 2:
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case 3:
			panic(http.ErrAbortHandler) // the connection breaks
		case 4:
			_, _ = io.Copy(w, strings.NewReader(strings.Repeat("x", maxAnswer+1)))
		case 5:
			select {
			case <-r.Context().Done():
			case <-end:
			}
		case 6:
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "short")
		case 7:
			c, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = io.WriteString(c, "SMTP ready\r\n\r\n")
				_ = c.Close()
			}
		}
	})
	defer close(end)
	c := one(u)
	c.Requests, c.Timeout = 9, 3*time.Second
	l := New(c)
	l.Run(context.Background())
	errs := l.Total().Errors
	must.Eq(t, 1, errs["status 503"])
	must.Eq(t, 1, errs["status 302"])
	must.Eq(t, 1, errs[ErrorTimeout])
	must.Eq(t, 2, errs[ErrorAnswer])  // too long; not HTTP
	must.Eq(t, 2, errs[ErrorConnect]) // broken before the answer, and within it
	must.Eq(t, 7, l.Total().Failed())
	must.Eq(t, 2, l.Total().Responses.Count())
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	u := closedPort(t)
	c := one(u)
	c.Requests = 3
	l := New(c)
	l.Run(context.Background())
	must.Eq(t, map[string]int64{ErrorConnect: 3}, l.Total().Errors)

	err := l.Wait(context.Background(), 2*time.Second)
	must.ErrorIs(t, err, ErrNotUp)
	must.StrContains(t, err.Error(), u.String())
	must.StrContains(t, err.Error(), "refused")

	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	must.ErrorIs(t, l.Wait(ctx, time.Hour), context.Canceled)
}

func closedPort(t *testing.T) *url.URL {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	must.NoError(t, l.Close())
	return &url.URL{Scheme: "http", Host: l.Addr().String()}
}

func TestWait(t *testing.T) {
	t.Parallel()
	var n atomic.Int64
	u := service(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/healthz" || r.URL.RawQuery != "":
			t.Error(r.URL)
		case n.Add(1) < 3:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusNotFound) // up, without such a page
		}
	})
	u.RawQuery = "a=b"
	must.NoError(t, New(one(u)).Wait(context.Background(), time.Minute))
	must.Eq(t, 3, n.Load())

	n.Store(-1 << 40)
	err := New(one(u)).Wait(context.Background(), 2*time.Second)
	must.ErrorIs(t, err, ErrNotUp)
	must.StrContains(t, err.Error(), "503")
}

func TestEndsPromptly(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"closed": func(c *Config) { c.Concurrency = 4 },
		"open":   func(c *Config) { c.Concurrency, c.Rate, c.Open = 0, 1000, 4 },
	} {
		t.Run(name, func(t *testing.T) {
			end := make(chan struct{})
			var arrived atomic.Int64
			u := service(t, func(_ http.ResponseWriter, r *http.Request) {
				arrived.Add(1)
				select {
				case <-r.Context().Done():
				case <-end:
				}
			})
			defer close(end)
			c := one(u)
			change(&c)
			l := New(c)
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				l.Run(ctx)
			}()
			for arrived.Load() < 4 {
				time.Sleep(time.Millisecond)
			}
			cancel()
			<-ended // does not wait for responses that never come
			must.Eq(t, 0, l.Total().Responses.Count())
			delete(l.Total().Errors, ErrorDropped)
			must.MapEmpty(t, l.Total().Errors) // the end of the load is not the service's error
		})
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	u := &url.URL{Scheme: "http", Host: "h:1", User: url.UserPassword("a", "secret")}
	l := New(one(u))
	s := l.Summary(0)
	must.Nil(t, s.ResponseS)
	must.Nil(t, s.LongestS)
	must.StrNotContains(t, s.Target, "secret")
	text, err := json.Marshal(s)
	must.NoError(t, err)
	must.StrContains(t, string(text), `"errors":{},"per_second":0,"response_s":null`)

	for _, v := range []float64{1, 2, 3} {
		l.count(Result{Seconds: v})
	}
	l.count(Result{Error: ErrorTimeout})
	s = l.Summary(2 * time.Second)
	must.Eq(t, 3, s.Answered)
	must.Eq(t, 1, s.Failed)
	must.Eq(t, 1.5, s.PerSecond)
	must.Eq(t, 2.0, *s.ResponseS)
	must.Eq(t, 3.0, *s.LongestS)
	must.Less(t, 0.03, math.Abs(*s.P50S-2))
	must.Nil(t, finite(math.Inf(1)))
}
