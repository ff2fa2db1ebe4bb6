// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// newBridge creates a bridge with an unused subnet, and returns its name and address.
func (h *Harness) newBridge(ctx context.Context, user string) (name string, addr net.IPNet, err error) {
	sum := fnv.New32a()
	_, _ = io.WriteString(sum, h.Dir+user)
	for i := range uint32(50) {
		n := sum.Sum32() + i
		name = fmt.Sprintf("ebb%05x", n&0xfffff)
		// 172.30.0.0/16 in /24s; Docker's and Nomad's defaults are elsewhere.
		addr = net.IPNet{IP: net.IPv4(172, 30, byte(n), 1), Mask: net.CIDRMask(24, 32)}
		if exists("/sys/class/net/"+name) || addressTaken(addr.IP) {
			continue
		}
		// Registered first, so the supervisor removes it.
		if _, err := h.super.do(ctx, request{Op: "bridge", Args: []string{name}}); err != nil {
			return "", addr, err
		}
		if err := createBridge(name, addr); err != nil {
			return "", addr, err
		}
		return name, addr, nil
	}
	return "", addr, errors.New("no free subnet in 172.30.0.0/16")
}

func addressTaken(ip net.IP) bool {
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.Contains(ip) {
			return true
		}
	}
	return false
}

// ErrNoCNI means that the CNI plugins are missing.
var ErrNoCNI = errors.New("the CNI plugins are not installed (Debian: containernetworking-plugins)")

// CNINetwork is the CNI network of `network { mode = "cni/ebbtide" }`.
const CNINetwork = "ebbtide"

// CNI creates a network for groups and returns HCL for the client block. (Nomad's "bridge" mode
// changes the firewall, and its "none" mode fails in 1.11.2.)
func (h *Harness) CNI(ctx context.Context) (clientHCL string, err error) {
	plugins := ""
	for _, dir := range []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"} {
		if exists(filepath.Join(dir, "bridge")) && exists(filepath.Join(dir, "host-local")) {
			plugins = dir
			break
		}
	}
	if plugins == "" {
		return "", ErrNoCNI
	}
	dir := filepath.Join(h.Dir, "cni")
	if exists(dir) {
		return "", errors.New("a run has one CNI network")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	name, addr, err := h.newBridge(ctx, "cni")
	if err != nil {
		return "", err
	}
	addr.IP = addr.IP.Mask(addr.Mask)
	config, err := json.MarshalIndent(map[string]any{
		"cniVersion": "0.4.0", "name": CNINetwork,
		"plugins": []any{map[string]any{
			"type": "bridge", "bridge": name, "isGateway": false, "ipMasq": false,
			"ipam": map[string]any{
				"type": "host-local", "dataDir": filepath.Join(h.Dir, "cni-addresses"),
				"ranges": [][]any{{map[string]any{"subnet": addr.String()}}},
			},
		}, map[string]any{
			"type": "loopback", // sets the interface up
		}},
	}, "", "  ")
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, CNINetwork+".conflist"), config, 0o644); err != nil {
		return "", err
	}
	return fmt.Sprintf("cni_path = %q\ncni_config_dir = %q\n", plugins, dir), nil
}

// Bridges are created by ioctl, without tools.

func createBridge(name string, addr net.IPNet) error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a socket: %w", err)
	}
	defer unix.Close(sock)
	if err := bridgeIoctl(sock, unix.SIOCBRADDBR, name); err != nil {
		return fmt.Errorf("creating bridge %s: %w", name, err)
	}
	set := func(req uint, ip net.IP) error {
		ifr, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		if err := ifr.SetInet4Addr(ip.To4()); err != nil {
			return err
		}
		return unix.IoctlIfreq(sock, req, ifr)
	}
	if err := set(unix.SIOCSIFADDR, addr.IP); err != nil {
		return fmt.Errorf("setting the address of bridge %s: %w", name, err)
	}
	if err := set(unix.SIOCSIFNETMASK, net.IP(addr.Mask)); err != nil {
		return fmt.Errorf("setting the netmask of bridge %s: %w", name, err)
	}
	return setLink(sock, name, true)
}

// deleteBridge deletes a bridge if it exists.
func deleteBridge(name string) error {
	if !exists("/sys/class/net/" + name) {
		return nil
	}
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening a socket: %w", err)
	}
	defer unix.Close(sock)
	if err := setLink(sock, name, false); err != nil {
		return err
	}
	return bridgeIoctl(sock, unix.SIOCBRDELBR, name)
}

func setLink(sock int, name string, up bool) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(sock, unix.SIOCGIFFLAGS, ifr); err != nil {
		return fmt.Errorf("reading the flags of %s: %w", name, err)
	}
	flags := ifr.Uint16() &^ unix.IFF_UP
	if up {
		flags |= unix.IFF_UP
	}
	ifr.SetUint16(flags)
	if err := unix.IoctlIfreq(sock, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("setting the flags of %s: %w", name, err)
	}
	return nil
}

func bridgeIoctl(sock int, req uint, name string) error {
	buf, err := unix.ByteSliceFromString(name)
	if err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(sock), uintptr(req), uintptr(unsafe.Pointer(&buf[0]))); errno != 0 {
		return errno
	}
	return nil
}
