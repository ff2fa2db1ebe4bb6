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

// UI configures the web page (package top/page).
type UI struct {
	Address           string // host:port; "" disables serving
	CertFile, KeyFile string // TLS; required unless Address is a loopback address
}

// Validate reports all errors. They name options by the given names, which depend on where the
// options are set.
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

// Loopback reports whether a host is a loopback name or address.
func Loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
