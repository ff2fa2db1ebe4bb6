// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package prometheus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Reach limits the address of a task's metrics endpoint to the addresses of the task's
// network namespace and to the allocation's ports on the host. The driver runs as root
// in the host's namespace, so a job must not make it call what the job cannot. A Reach
// derives from Nomad only, never from the job's env or meta.
//
// The zero value allows nothing.
type Reach struct {
	// Ports are the allocation's ports on the host.
	Ports []Port
	// Namespace opens the task's network namespace when connecting; nil means the
	// host's.
	Namespace func(context.Context) (*os.File, error)
}

// Port is a host port that leads to an allocation.
type Port struct {
	// Host is the assigned address and port; an unknown address is zero.
	Host netip.AddrPort
	// Inside is the port in the allocation's network namespace.
	Inside uint16
}

// refusal explains why an address is not allowed.
type refusal string

func (r refusal) Error() string { return string(r) }

// Check returns an error for a URL that Dial would refuse, as far as known before the
// task runs.
func (r *Reach) Check(u *url.URL) error {
	port := u.Port()
	if port == "" {
		port = u.Scheme // http or https
	}
	to, err := parseTarget(u.Hostname(), port)
	if err == nil && r.Namespace == nil {
		_, err = r.onHost(to)
	}
	return err
}

// Dial connects from within the task's network namespace. In the host's it allows only
// the allocation's ports, and localhost stands for their assigned addresses.
func (r *Reach) Dial(ctx context.Context, _, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	to, err := parseTarget(host, port)
	if err != nil {
		return nil, err
	}
	if r.Namespace != nil {
		ns, err := r.Namespace(ctx)
		if err != nil {
			return nil, &net.OpError{Op: "dial", Err: fmt.Errorf("opening the task's network namespace: %w", err)}
		}
		defer ns.Close()
		if host, err := hostNamespace(ns); err != nil {
			return nil, &net.OpError{Op: "dial", Err: fmt.Errorf("looking at the task's network namespace: %w", err)}
		} else if !host {
			return inNamespace(ns, func() (net.Conn, error) { return r.dialInside(ctx, to) })
		}
	}
	at, err := r.onHost(to)
	if err != nil {
		return nil, err
	}
	return dial(ctx, at)
}

// parseTarget parses a URL's host and port. The address is zero for localhost.
func parseTarget(host, port string) (to netip.AddrPort, err error) {
	var addr netip.Addr
	if host != "localhost" {
		if addr, err = netip.ParseAddr(host); err != nil {
			return to, refusal("the host must be localhost or an IP address, since names are not looked up")
		}
		switch addr = addr.Unmap(); {
		case addr.Zone() != "":
			return to, refusal("the host must not be an address with a zone, which is one of the host's interfaces")
		case addr.IsUnspecified() || addr.IsMulticast() || addr.IsLinkLocalUnicast():
			return to, refusal("the host must be the address of one host, of more than one link; for the task itself, write localhost")
		}
	}
	number, err := net.LookupPort("tcp", port)
	if err != nil || number == 0 {
		return to, refusal("the port must be a number from 1 to 65535")
	}
	return netip.AddrPortFrom(addr, uint16(number)), nil
}

func local(to netip.AddrPort) bool { return !to.Addr().IsValid() || to.Addr().IsLoopback() }

// onHost returns the addresses of a target in the host's namespace, where any process
// may listen on a loopback address.
func (r *Reach) onHost(to netip.AddrPort) (at []netip.AddrPort, err error) {
	for _, p := range r.Ports {
		switch known := p.Host.Addr().IsValid() && !p.Host.Addr().IsUnspecified(); {
		case p.Host.Port() != to.Port():
		case !known && local(to):
			at = append(at, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.Port()))
		case known && (local(to) || p.Host.Addr() == to.Addr()):
			at = append(at, p.Host)
		}
	}
	if at == nil {
		return nil, refusal("in the host's network it must be a port that Nomad has given this allocation; it has " + r.ports())
	}
	return at, nil
}

func (r *Reach) ports() string {
	if len(r.Ports) == 0 {
		return "none"
	}
	all := make([]string, len(r.Ports))
	for i, p := range r.Ports {
		all[i] = p.Host.String()
		if !p.Host.Addr().IsValid() {
			all[i] = fmt.Sprint("localhost:", p.Host.Port())
		}
	}
	return strings.Join(all, ", ")
}

// dialInside connects from within the task's own namespace, but only to the task's own
// addresses.
func (r *Reach) dialInside(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	port := to.Port()
	own, err := addresses()
	if err != nil {
		return nil, &net.OpError{Op: "dial", Err: fmt.Errorf("listing the addresses of the task: %w", err)}
	}
	mine := func(a netip.Addr) bool { return a == to.Addr() }
	switch i := slices.IndexFunc(r.Ports, func(p Port) bool { return p.Host == to }); {
	case i >= 0:
		port, mine = r.Ports[i].Inside, func(netip.Addr) bool { return true }
	case !to.Addr().IsValid():
		mine = netip.Addr.IsLoopback
	case to.Addr().IsLoopback():
		own = []netip.Addr{to.Addr()} // all of 127.0.0.0/8
	}
	var at []netip.AddrPort
	for _, a := range own {
		if mine(a) {
			at = append(at, netip.AddrPortFrom(a, port))
		}
	}
	if at == nil {
		return nil, refusal("it must be localhost, an address of the task's own network namespace, or a port that Nomad has given this allocation; it has " + r.ports())
	}
	return dial(ctx, at)
}

func addresses() (out []netip.Addr, err error) {
	all, err := net.InterfaceAddrs()
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(ip.IP); ok && !addr.IsLinkLocalUnicast() {
				out = append(out, addr.Unmap())
			}
		}
	}
	return out, err
}

func dial(ctx context.Context, at []netip.AddrPort) (net.Conn, error) {
	var d net.Dialer
	var errs []error
	for _, a := range at {
		conn, err := d.DialContext(ctx, "tcp", a.String())
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// hostNamespace reports whether a network namespace is this process's or, if readable,
// that of process 1.
func hostNamespace(ns *os.File) (bool, error) {
	it, err := ns.Stat()
	if err != nil {
		return false, err
	}
	own, err := os.Stat(ownNamespace)
	if err != nil {
		return false, err
	}
	first, err := os.Stat("/proc/1/ns/net")
	return os.SameFile(it, own) || err == nil && os.SameFile(it, first), nil
}

// ownNamespace is the thread's: the first thread may be stuck in a task's namespace.
const ownNamespace = "/proc/thread-self/ns/net"

// inNamespace runs a function on a thread in a network namespace. Sockets stay in the
// namespace of their creation.
func inNamespace(ns *os.File, do func() (net.Conn, error)) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var own *os.File
		if own, err = os.Open(ownNamespace); err == nil {
			defer own.Close()
			err = os.NewSyscallError("setns", unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET))
		}
		if err != nil {
			runtime.UnlockOSThread()
			err = &net.OpError{Op: "dial", Err: fmt.Errorf("entering the task's network namespace: %w", err)}
			return
		}
		conn, err = do()
		if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // otherwise the thread is discarded
		}
	}()
	<-done
	return conn, err
}
