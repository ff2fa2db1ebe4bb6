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

// apiProxy is a proxy in front of Nomad's API that stops a move in a given phase by holding its
// requests.
type apiProxy struct {
	*httptest.Server
	t       *testing.T
	blocked atomic.Bool // drop all requests
	refused atomic.Bool // refuse all requests
	mu      sync.Mutex
	stops   []*hold
}

// hold holds the first request of a kind until it is released.
type hold struct {
	kind     kind
	reached  chan struct{} // closed when a request is held
	released chan struct{} // closed to release it
	once     sync.Once
	taken    bool
}

func (s *hold) release() { s.once.Do(func() { close(s.released) }) }

type kind struct {
	is func(r *http.Request, body string) bool
	// answered holds the response instead of the request.
	answered bool
}

func newAPIProxy(t *testing.T, address string) *apiProxy {
	t.Helper()
	to, err := url.Parse(address)
	must.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1 // flush each line of a stream
	proxy.Transport = &http.Transport{}
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) {
		panic(http.ErrAbortHandler) // as if the server were down
	}
	d := &apiProxy{t: t}
	d.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.blocked.Load() {
			panic(http.ErrAbortHandler)
		}
		if d.refused.Load() {
			http.Error(w, "refused", http.StatusForbidden)
			return
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
			s.release()
		}
		d.mu.Unlock()
		d.CloseClientConnections()
		d.Close()
	})
	return d
}

// wait returns when the request is released or its client disconnects.
func (s *hold) wait(r *http.Request) {
	close(s.reached)
	select {
	case <-s.released:
	case <-r.Context().Done():
	}
}

func (d *apiProxy) stopFor(r *http.Request, body string, answered bool) *hold {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.stops, func(s *hold) bool {
		return !s.taken && s.kind.answered == answered && s.kind.is(r, body)
	})
	if i < 0 {
		return nil
	}
	d.stops[i].taken = true
	return d.stops[i]
}

// hold holds the next request of a kind.
func (d *apiProxy) hold(k kind) *hold {
	s := &hold{kind: k, reached: make(chan struct{}), released: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stops = append(d.stops, s)
	return s
}

// kill cuts the mover off for good, as if its process had been killed: it gives up when it is refused.
func (d *apiProxy) kill() {
	d.refused.Store(true)
	d.CloseClientConnections()
}

func (s *hold) await(t *testing.T, what string) {
	t.Helper()
	select {
	case <-s.reached:
	case <-deadline(t, startDeadline).Done():
		must.NoError(t, errors.New("it did not come to this: "+what))
	}
}

// client returns a client of the proxy.
func (d *apiProxy) client() *api.Client {
	c, err := api.NewClient(&api.Config{Address: d.URL})
	must.NoError(d.t, err)
	return c
}

// asksToSave matches the request to save; once it is answered, the task is saving.
func asksToSave(alloc string, answered bool) kind {
	return kind{answered: answered, is: func(r *http.Request, body string) bool {
		return strings.HasSuffix(r.URL.Path, "/client/allocation/"+alloc+"/signal") && strings.Contains(body, "EBBTIDE_CHECKPOINT")
	}}
}

// asksToSuspend matches the request to suspend; once it is answered, the suspension is certain.
func asksToSuspend(alloc string, answered bool) kind {
	return kind{answered: answered, is: func(r *http.Request, body string) bool {
		return strings.HasSuffix(r.URL.Path, "/client/allocation/"+alloc+"/signal") && strings.Contains(body, "EBBTIDE_SUSPEND")
	}}
}

func binds(job string, answered bool) kind {
	return kind{answered: answered, is: func(r *http.Request, body string) bool {
		return registers(r, body, job) && strings.Contains(body, "node.unique.id")
	}}
}

func unbinds(job string) kind {
	return kind{is: func(r *http.Request, body string) bool {
		return registers(r, body, job) && !strings.Contains(body, "node.unique.id")
	}}
}

func registers(r *http.Request, body, job string) bool {
	return r.Method == http.MethodPut && r.URL.Path == "/v1/jobs" && strings.Contains(body, `"ID":"`+job+`"`)
}
