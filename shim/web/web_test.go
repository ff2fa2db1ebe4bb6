// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	for range 500 {
		resp, err := http.Get(url)
		if err != nil {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		must.NoError(t, err)
		return resp.StatusCode, string(data)
	}
	t.Fatal("it does not answer")
	return 0, ""
}

func TestServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	address := l.Addr().String()
	must.NoError(t, l.Close())
	m := NewMetrics()
	m.Moves.WithLabelValues("specon-migrate", "moved").Inc()
	m.Nodes.Set(3)
	var problem atomic.Value
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, address, m, func() error {
			if err, ok := problem.Load().(error); ok {
				return err
			}
			return nil
		})
	}()
	status, body := get(t, "http://"+address+"/health")
	must.Eq(t, http.StatusOK, status)
	must.Eq(t, "ok\n", body)
	problem.Store(errors.New("no cluster"))
	status, body = get(t, "http://"+address+"/health")
	must.Eq(t, http.StatusServiceUnavailable, status)
	must.Eq(t, "no cluster\n", body)
	_, body = get(t, "http://"+address+"/metrics")
	must.StrContains(t, body, `ebbtide_shim_moves_total{policy="specon-migrate",result="moved"} 1`)
	must.StrContains(t, body, "ebbtide_shim_nodes 3")
	must.StrContains(t, body, "ebbtide_shim_build_info{")
	must.StrContains(t, body, "go_goroutines ")
	status, _ = get(t, "http://"+address+"/other")
	must.Eq(t, http.StatusNotFound, status)

	must.ErrorContains(t, Serve(t.Context(), address, m, nil), "serving metrics")
	cancel()
	must.NoError(t, <-done)
}
