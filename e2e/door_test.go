// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// door is a proxy before Nomad's API. A test stops requests there, and with them who
// sends them, in the phase of a move that it wants.
type door struct {
	*httptest.Server
	t     *testing.T
	shut  atomic.Bool // nothing comes through
	mu    sync.Mutex
	stops []*stop
}

// stop is where the first request of a kind waits, until it is let go.
type stop struct {
	kind    kind
	reached chan struct{} // closed when one waits
	passed  chan struct{} // closed to let it go
	once    sync.Once
	taken   bool
}

// pass lets the request go.
func (s *stop) pass() { s.once.Do(func() { close(s.passed) }) }

// kind is a kind of request.
type kind struct {
	is func(r *http.Request, body string) bool
	// answered: it waits when Nomad has done it, before the answer is told.
	answered bool
}

// newDoor makes one before an API.
func newDoor(t *testing.T, address string) *door {
	t.Helper()
	to, err := url.Parse(address)
	must.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1 // of a stream, each line
	proxy.Transport = &http.Transport{}
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) {
		panic(http.ErrAbortHandler) // as when the server itself is gone
	}
	d := &door{t: t}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.shut.Load() {
			panic(http.ErrAbortHandler)
		}
		body := ""
		if r.Method == http.MethodPut || r.Method == http.MethodPost {
			data, err := io.ReadAll(r.Body)
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			body, r.Body = string(data), io.NopCloser(bytes.NewReader(data))
		}
		if s := d.stopFor(r, body, false); s != nil {
			s.wait(r)
			if r.Context().Err() != nil {
				return
			}
		}
		s := d.stopFor(r, body, true)
		if s == nil {
			proxy.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		proxy.ServeHTTP(answer, r)
		s.wait(r)
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	t.Cleanup(func() {
		d.mu.Lock()
		for _, s := range d.stops {
			s.pass()
		}
		d.mu.Unlock()
		d.CloseClientConnections()
		d.Close()
	})
	return d
}

// wait waits until the request is let go, or whoever sent it is gone.
func (s *stop) wait(r *http.Request) {
	close(s.reached)
	select {
	case <-s.passed:
	case <-r.Context().Done():
	}
}

// stopFor is where a request is to wait, before it is passed on or when it is answered.
func (d *door) stopFor(r *http.Request, body string, answered bool) *stop {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.stops, func(s *stop) bool {
		return !s.taken && s.kind.answered == answered && s.kind.is(r, body)
	})
	if i < 0 {
		return nil
	}
	d.stops[i].taken = true
	return d.stops[i]
}

// stop stops the next request of a kind.
func (d *door) stop(k kind) *stop {
	s := &stop{kind: k, reached: make(chan struct{}), passed: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stops = append(d.stops, s)
	return s
}

// await waits until one has come.
func (s *stop) await(t *testing.T, what string) {
	t.Helper()
	select {
	case <-s.reached:
	case <-deadline(t, startDeadline).Done():
		must.NoError(t, errors.New("it did not come to this: "+what))
	}
}

// client is one that goes through the door.
func (d *door) client() *api.Client {
	c, err := api.NewClient(&api.Config{Address: d.URL})
	must.NoError(d.t, err)
	return c
}

// The requests of a move.

// asksToSave is that a task is to save; it is saving when it is answered.
func asksToSave(alloc string, answered bool) kind {
	return kind{answered: answered, is: func(r *http.Request, body string) bool {
		return strings.HasSuffix(r.URL.Path, "/client/allocation/"+alloc+"/signal") && strings.Contains(body, "EBBTIDE_CHECKPOINT")
	}}
}

// binds is that a job is to be bound to a node; it is when it is answered.
func binds(job string, answered bool) kind {
	return kind{answered: answered, is: func(r *http.Request, body string) bool {
		return registers(r, body, job) && strings.Contains(body, "node.unique.id")
	}}
}

// frees is that it is to be set free again.
func frees(job string) kind {
	return kind{is: func(r *http.Request, body string) bool {
		return registers(r, body, job) && !strings.Contains(body, "node.unique.id")
	}}
}

func registers(r *http.Request, body, job string) bool {
	return r.Method == http.MethodPut && r.URL.Path == "/v1/jobs" && strings.Contains(body, `"ID":"`+job+`"`)
}
