// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package prometheus

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
)

// network is an address of this host, and what its interface is.
type network struct {
	prefix netip.Prefix
	bridge bool // of containers: a bridge that no hardware is part of
}

// CheckHost returns an error unless host, of a URL, is on this machine: a loopback
// address or localhost, an address of one of its interfaces, or one in the network of
// a bridge that has containers behind it. A bridge that a network card is part of
// leads to other machines and does not count. Other names are refused: what they mean
// may change.
//
// A job must not be able to make the driver, which is no part of it, call whom it
// likes.
func CheckHost(host string) error {
	return checkHost(host, func() ([]network, error) { return networks("/sys/class/net") })
}

func checkHost(host string, look func() ([]network, error)) error {
	const allowed = "allowed are localhost, the addresses of this host, and those behind its container bridges"
	if host == "localhost" {
		return nil
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return fmt.Errorf("must be an address, since names other than localhost are not looked up; %s", allowed)
	}
	addr = addr.WithZone("").Unmap()
	if addr.IsLoopback() {
		return nil
	}
	if addr.IsUnspecified() || addr.IsMulticast() {
		return errors.New("is not the address of one host; for this one, write localhost")
	}
	all, err := look()
	if err != nil {
		return fmt.Errorf("cannot be compared with the addresses of this host: %w", err)
	}
	for _, n := range all {
		if n.prefix.Addr() == addr || n.bridge && n.prefix.Contains(addr) {
			return nil
		}
	}
	return fmt.Errorf("is not on this host; %s", allowed)
}

// networks lists the addresses of this host's interfaces.
func networks(sys string) ([]network, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var all []network
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			continue // it is gone
		}
		inner := bridge(sys, i.Name)
		for _, a := range addrs {
			ip, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			addr, ok := netip.AddrFromSlice(ip.IP)
			if !ok {
				continue
			}
			ones, bits := ip.Mask.Size()
			addr = addr.Unmap()
			if bits-ones > addr.BitLen() || bits == 0 {
				continue
			}
			all = append(all, network{netip.PrefixFrom(addr, addr.BitLen()-(bits-ones)), inner})
		}
	}
	return all, nil
}

// bridge says whether an interface is a bridge, and no port of it is hardware.
func bridge(sys, name string) bool {
	if _, err := os.Stat(filepath.Join(sys, name, "bridge")); err != nil {
		return false
	}
	ports, err := os.ReadDir(filepath.Join(sys, name, "brif"))
	if err != nil {
		return false
	}
	for _, p := range ports {
		if _, err := os.Stat(filepath.Join(sys, p.Name(), "device")); err == nil {
			return false
		}
	}
	return true
}
