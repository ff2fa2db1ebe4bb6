// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bridges are made by ioctl: it needs no tool that a small machine may lack.

// createBridge makes a network bridge with an IPv4 address and brings it up.
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

// deleteBridge takes a bridge down and removes it. One that is gone is no error.
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

// setLink brings an interface up or down.
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

// bridgeIoctl is an ioctl whose argument is a name.
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
