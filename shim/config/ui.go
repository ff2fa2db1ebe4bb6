// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// UI says where the web page is served (package webui).
type UI struct {
	Address           string // host:port; "" = nowhere
	CertFile, KeyFile string // TLS; required unless Address is a loopback one
}

// Validate reports everything that is wrong. Its errors name options by what they are called
// where they are set.
func (u UI) Validate(address, cert, key string) error {
	var errs []error
	host, port, err := net.SplitHostPort(u.Address)
	if err != nil || port == "" {
		errs = append(errs, fmt.Errorf("%s: must be host:port, got %q", address, u.Address))
	}
	switch {
	case (u.CertFile == "") != (u.KeyFile == ""):
		errs = append(errs, fmt.Errorf("%s and %s must be set together, got %q and %q", cert, key, u.CertFile, u.KeyFile))
	case err == nil && u.CertFile == "" && !Loopback(host):
		errs = append(errs, fmt.Errorf("%s: must be a loopback address like 127.0.0.1:4680, or %s and %s must be set: viewers send their Nomad tokens; got %q",
			address, cert, key, u.Address))
	}
	return errors.Join(errs...)
}

// Loopback says whether a host is this machine, to itself.
func Loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
