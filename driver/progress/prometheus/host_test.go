// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package prometheus

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func TestCheckHost(t *testing.T) {
	look := func() ([]network, error) {
		return []network{
			{netip.MustParsePrefix("10.1.2.3/16"), false},
			{netip.MustParsePrefix("172.17.0.1/16"), true},
			{netip.MustParsePrefix("fd00::1/64"), true},
		}, nil
	}
	for host, problem := range map[string]string{
		"localhost":             "",
		"127.0.0.1":             "",
		"127.1.2.3":             "",
		"::1":                   "",
		"::ffff:127.0.0.1":      "",
		"10.1.2.3":              "",
		"::ffff:10.1.2.3":       "",
		"172.17.0.1":            "",
		"172.17.255.7":          "",
		"fd00::abcd":            "",
		"10.1.2.4":              "is not on this host; allowed are",
		"172.18.0.1":            "is not on this host",
		"169.254.169.254":       "is not on this host",
		"fd00:0:0:1::1":         "is not on this host",
		"0.0.0.0":               "write localhost",
		"::":                    "write localhost",
		"224.0.0.1":             "write localhost",
		"example.com":           "must be an address",
		"localhost.":            "must be an address",
		"LOCALHOST":             "must be an address",
		"127.1":                 "must be an address",
		"2130706433":            "must be an address",
		"0x7f.0.0.1":            "must be an address",
		"":                      "must be an address",
		"localhost.example.com": "must be an address",
	} {
		err := checkHost(host, look)
		if problem == "" {
			must.NoError(t, err, must.Sprint(host))
		} else {
			must.ErrorContains(t, err, problem, must.Sprint(host))
		}
	}
	err := checkHost("10.1.2.3", func() ([]network, error) { return nil, errors.New("no interfaces today") })
	must.ErrorContains(t, err, "cannot be compared with the addresses of this host: no interfaces today")
}

func TestNetworks(t *testing.T) {
	all, err := networks("/sys/class/net")
	must.NoError(t, err)
	must.SliceNotEmpty(t, all)
	addrs, err := net.InterfaceAddrs()
	must.NoError(t, err)
	for _, a := range addrs {
		must.NoError(t, CheckHost(a.(*net.IPNet).IP.String()))
	}

	// Which bridges have only containers behind them.
	sys := t.TempDir()
	mkdir := func(path string) { must.NoError(t, os.MkdirAll(filepath.Join(sys, path), 0o700)) }
	mkdir("lo")
	mkdir("eth0/device")
	mkdir("veth1")
	mkdir("docker0/bridge")
	mkdir("docker0/brif/veth1")
	mkdir("br0/bridge")
	mkdir("br0/brif/veth1")
	mkdir("br0/brif/eth0")
	mkdir("odd/bridge")
	for name, want := range map[string]bool{"lo": false, "eth0": false, "docker0": true, "br0": false, "odd": false, "none": false} {
		must.Eq(t, want, bridge(sys, name), must.Sprint(name))
	}
}
