// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
)

// credentials is a transport that re-reads its token and certificate files when they change, and
// keeps the last valid ones if they cannot be read.
type credentials struct {
	tokenFile string
	tls       *api.TLSConfig
	socket    string // path; "" to use the request's address

	mu    sync.Mutex
	seen  string // names, times and sizes of the files at the last read
	made  *http.Transport
	token string
}

func (c *credentials) files() (names []string) {
	for _, name := range []string{c.tokenFile, c.tls.CACert, c.tls.ClientCert, c.tls.ClientKey} {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

func (c *credentials) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	_ = c.read()
	made, token := c.made, c.token
	c.mu.Unlock()
	if token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("X-Nomad-Token", token)
	}
	return made.RoundTrip(r)
}

// read reads the files if they have changed.
func (c *credentials) read() error {
	seen := ""
	for _, name := range c.files() {
		if info, err := os.Stat(name); err == nil {
			seen += fmt.Sprintln(name, info.ModTime().UnixNano(), info.Size())
		}
	}
	if seen == c.seen && c.made != nil {
		return nil
	}
	token := ""
	if c.tokenFile != "" {
		data, err := os.ReadFile(c.tokenFile)
		if err != nil {
			return fmt.Errorf("nomad.token_file: %w", err)
		}
		token = strings.TrimSpace(string(data))
	}
	// Like Nomad's client.
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ForceAttemptHTTP2, t.TLSClientConfig, t.MaxIdleConnsPerHost = false, &tls.Config{MinVersion: tls.VersionTLS12}, 16
	if c.socket != "" {
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 30 * time.Second}).DialContext(ctx, "unix", c.socket)
		}
	}
	if err := api.ConfigureTLS(&http.Client{Transport: t}, c.tls); err != nil {
		return fmt.Errorf("nomad: %w", err)
	}
	if c.made != nil {
		c.made.CloseIdleConnections()
	}
	c.seen, c.made, c.token = seen, t, token
	return nil
}
