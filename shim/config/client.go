// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// Client makes a client of the cluster. What is empty is taken from the environment.
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
	if n.TokenFile != "" {
		token, err := os.ReadFile(n.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("nomad.token_file: %w", err)
		}
		c.SecretID = strings.TrimSpace(string(token))
	}
	client, err := api.NewClient(c)
	if err != nil {
		return nil, fmt.Errorf("nomad: %w", err)
	}
	return client, nil
}
