// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// Over returns n with its empty fields set from under.
func (n Nomad) Over(under Nomad) Nomad {
	if n.Token != "" {
		under.TokenFile = "" // n's token takes precedence
	}
	n.Address = cmp.Or(n.Address, under.Address)
	n.Region = cmp.Or(n.Region, under.Region)
	n.Token = cmp.Or(n.Token, under.Token)
	n.TokenFile = cmp.Or(n.TokenFile, under.TokenFile)
	n.CAFile = cmp.Or(n.CAFile, under.CAFile)
	n.CertFile = cmp.Or(n.CertFile, under.CertFile)
	n.KeyFile = cmp.Or(n.KeyFile, under.KeyFile)
	n.TLSServerName = cmp.Or(n.TLSServerName, under.TLSServerName)
	return n
}

// Agent returns a client of the agent of a node, at the address that the node advertises. Agents'
// certificates name their role and region.
func (n Nomad) Agent(node *api.Node) (*api.Client, error) {
	n.Address = "http://" + node.HTTPAddr
	if node.TLSEnabled {
		n.Address = "https://" + node.HTTPAddr
		n.TLSServerName = "client." + cmp.Or(n.Region, os.Getenv("NOMAD_REGION"), api.GlobalRegion) + ".nomad"
	}
	return n.Client()
}

// Client returns a client of the cluster. Empty fields default to the environment.
func (n Nomad) Client() (*api.Client, error) {
	c := api.DefaultConfig()
	set := func(into *string, value string) {
		if value != "" {
			*into = value
		}
	}
	set(&c.Address, n.Address)
	set(&c.Region, n.Region)
	set(&c.TLSConfig.CACert, n.CAFile)
	set(&c.TLSConfig.ClientCert, n.CertFile)
	set(&c.TLSConfig.ClientKey, n.KeyFile)
	set(&c.TLSConfig.TLSServerName, n.TLSServerName)
	set(&c.SecretID, n.Token)
	if u, err := url.Parse(c.Address); err != nil || !slices.Contains([]string{"http", "https", "unix"}, u.Scheme) {
		return nil, fmt.Errorf("the address of Nomad's API must be a URL like https://127.0.0.1:4646, got %q", c.Address)
	}
	if creds := (&credentials{tokenFile: n.TokenFile, tls: c.TLSConfig}); len(creds.files()) > 0 {
		if socket, ok := strings.CutPrefix(c.Address, "unix://"); ok {
			c.Address, creds.socket = "http://127.0.0.1", socket
		}
		if err := creds.read(); err != nil {
			return nil, err
		}
		if n.TokenFile != "" {
			c.SecretID = "" // from NOMAD_TOKEN
		}
		c.HttpClient = &http.Client{Transport: creds}
	}
	client, err := api.NewClient(c)
	if err != nil {
		return nil, fmt.Errorf("nomad: %w", err)
	}
	return client, nil
}
