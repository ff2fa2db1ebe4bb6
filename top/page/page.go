// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package page serves a web page that shows live what Ebbtide does in a cluster: the contents of
// `ebbtide top`, with curves, past moves, time saved, and what each policy would decide.
//
// It only reads from Nomad's API. On a loopback address it uses the process's token; a request must
// then name a loopback host, to prevent DNS rebinding by web sites. On other addresses TLS is
// required, and each viewer supplies a Nomad token, which is used for everything the viewer sees.
//
// Inputs: the view of package top/gather, files of allocations, the shim's variables. Outputs: the
// static page, a stream of changes per viewer, and answers about a task and a node's policies.
// Start with page.go (routes and rights), then watch.go, which reads the cluster once per token,
// and static/app.js.
package page

import (
	"context"
	"crypto/tls"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/config"
)

// static has the files of the page.
//
//go:embed static
var static embed.FS

// TokenHeader carries the viewer's Nomad token, as in Nomad's own API.
const TokenHeader = "X-Nomad-Token"

// policyHeader is the page's content security policy: no external sources, no inline code or
// styles, and no strings as markup or code.
const policyHeader = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'; form-action 'none'; require-trusted-types-for 'script'"

// Options configure the page.
type Options struct {
	config.UI              // address and certificate
	Nomad     config.Nomad // how to connect to Nomad
	// ShimNamespace and ShimPath locate the shim's variables.
	ShimNamespace, ShimPath string
	Log                     hclog.Logger

	times times // set by tests; zero: defaults
}

// Serve serves the page until ctx ends, and then returns nil. It calls ready with the page's URL.
func Serve(ctx context.Context, o Options, ready func(url string)) error {
	var creds *tls.Config
	if o.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return fmt.Errorf("serving the page: reading the certificate: %w", err)
		}
		creds = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	}
	l, err := net.Listen("tcp", o.Address)
	if err != nil {
		return fmt.Errorf("serving the page: %w", err)
	}
	// A name like "localhost" has been resolved now.
	open := config.Loopback(hostOf(l.Addr().String()))
	if !open && creds == nil {
		_ = l.Close()
		return fmt.Errorf("serving the page: %s is not a loopback address: TLS is required", l.Addr())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := newServer(ctx, o, open)
	defer s.wait()
	server := &http.Server{
		Handler: s, TLSConfig: creds, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }, // streams end with ctx
		ErrorLog:    o.Log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		within, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer done()
		if server.Shutdown(within) != nil {
			_ = server.Close()
		}
	})
	scheme := "http"
	if creds != nil {
		scheme = "https"
	}
	ready(scheme + "://" + l.Addr().String() + "/")
	if creds != nil {
		err = server.ServeTLS(l, "", "")
	} else {
		err = server.Serve(l)
	}
	if !stop() {
		<-stopped
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the page: %w", err)
	}
	return nil
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return strings.Trim(address, "[]")
	}
	return host
}

// server handles the page's requests.
type server struct {
	opts    Options
	open    bool // on a loopback address: viewers may use the process's token
	watches *watches
	mux     *http.ServeMux
}

// newServer returns a handler whose goroutines end with ctx; wait waits for them.
func newServer(ctx context.Context, o Options, open bool) *server {
	s := &server{opts: o, open: open, watches: newWatches(ctx, o), mux: http.NewServeMux()}
	files, err := fs.Sub(static, "static")
	if err != nil {
		panic(err) // it is embedded
	}
	s.mux.Handle("GET /", http.FileServerFS(files))
	s.mux.HandleFunc("GET /api/events", s.api(s.events))
	s.mux.HandleFunc("PUT /api/visible", s.api(s.visible))
	s.mux.HandleFunc("GET /api/task", s.api(s.task))
	s.mux.HandleFunc("GET /api/policies", s.api(s.policies))
	return s
}

func (s *server) wait() { s.watches.wait() }

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policyHeader)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if s.open && !config.Loopback(hostOf(r.Host)) {
		// Any other host name may have been pointed here by a web site (DNS rebinding).
		refuse(w, http.StatusMisdirectedRequest, "this address is served to localhost only")
		return
	}
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	s.mux.ServeHTTP(w, r)
}

// api guards handlers that reveal data of the cluster.
func (s *server) api(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !sameOrigin(r) {
			refuse(w, http.StatusForbidden, "only this page may use its API")
			return
		}
		if !s.open && r.Header.Get(TokenHeader) == "" {
			refuse(w, http.StatusUnauthorized, "a Nomad token is required")
			return
		}
		handle(w, r)
	}
}

// sameOrigin reports whether a request comes from the page itself, or not from a browser.
func sameOrigin(r *http.Request) bool {
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" {
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host) && (u.Scheme == "https") == (r.TLS != nil)
}

// refuse responds with an error and a human-readable sentence.
func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, text)
}

// client returns a client with a viewer's token; "" is the process's.
func (o Options) client(token string) (*api.Client, error) {
	n := o.Nomad
	if token != "" {
		n = config.Nomad{Token: token}.Over(n)
	}
	return n.Client()
}
