// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package prometheus

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/progress"
)

func TestReachBeforeStart(t *testing.T) {
	isolated := &Reach{Namespace: func(context.Context) (*os.File, error) { panic("opened before the task runs") }}
	onHost := &Reach{Ports: []Port{{netip.MustParseAddrPort("10.1.2.3:20000"), 9100}, {netip.MustParseAddrPort("[fd00::1]:20001"), 20001}}}
	const name, given = "must be localhost or an IP address", "it has 10.1.2.3:20000, [fd00::1]:20001"
	for _, c := range []struct{ host, inside, onHost string }{
		{"localhost:20000", "", ""},
		{"127.0.0.1:20000", "", ""},
		{"[::1]:20001", "", ""},
		{"[::ffff:127.0.0.1]:20000", "", ""},
		{"10.1.2.3:20000", "", ""},
		{"[fd00::1]:20001", "", ""},
		{"[fd00::1]:20000", "", given},
		{"10.1.2.4:20000", "", given},
		{"localhost:9100", "", given},
		{"localhost:4646", "", given},
		{"localhost", "", given},
		{"[fe80::1%25eth0]:20000", "with a zone", "with a zone"},
		{"[fd00::1%25eth0]:20001", "with a zone", "with a zone"},
		{"[fe80::1]:20000", "write localhost", "write localhost"},
		{"169.254.169.254:20000", "write localhost", "write localhost"},
		{"0.0.0.0:20000", "write localhost", "write localhost"},
		{"[::]:20000", "write localhost", "write localhost"},
		{"224.0.0.1:20000", "write localhost", "write localhost"},
		{"localhost:0", "from 1 to 65535", "from 1 to 65535"},
		{"localhost:65536", "from 1 to 65535", "from 1 to 65535"},
		{"example.com:20000", name, name},
		{"localhost.:20000", name, name},
		{"127.1:20000", name, name},
		{"2130706433:20000", name, name},
		{"0x7f.0.0.1:20000", name, name},
	} {
		u, err := url.Parse("http://" + c.host + "/metrics")
		must.NoError(t, err)
		for reach, problem := range map[*Reach]string{isolated: c.inside, onHost: c.onHost} {
			if err := reach.Check(u); problem == "" {
				must.NoError(t, err, must.Sprint(c.host))
			} else {
				must.ErrorContains(t, err, problem, must.Sprint(c.host))
			}
		}
	}
	var nothing Reach
	must.ErrorContains(t, nothing.Check(&url.URL{Scheme: "http", Host: "localhost:80"}), "it has none")
}

// netns is a network namespace that lasts as long as the process.
type netns struct{ *os.File }

func newNetns(t *testing.T) netns {
	t.Helper()
	var ns netns
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			ns.File, err = os.Open(ownNamespace)
		}
	}()
	<-done
	must.NoError(t, err)
	ns.ip(t, "link set lo up")
	return ns
}

func (n netns) open(context.Context) (*os.File, error) {
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", n.Fd()))
}

func (n netns) ip(t *testing.T, args string) {
	t.Helper()
	_, err := inNamespace(n.File, func() (net.Conn, error) {
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
		return nil, err
	})
	must.NoError(t, err)
}

// serve answers with a value of the metric m, or a redirect.
func (n netns) serve(t *testing.T, address, answer string) {
	t.Helper()
	_, err := inNamespace(n.File, func() (net.Conn, error) {
		l, err := net.Listen("tcp", address)
		if err == nil {
			go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(answer, "http:") {
					http.Redirect(w, r, answer, http.StatusFound)
				}
				fmt.Fprintf(w, "m %s\n", answer)
			}))
		}
		return nil, err
	})
	must.NoError(t, err)
}

func (n netns) link(t *testing.T, to netns, port, address string) {
	t.Helper()
	n.ip(t, fmt.Sprintf("link add %s type veth peer name eth0 netns /proc/%d/fd/%d", port, os.Getpid(), to.Fd()))
	n.ip(t, "link set "+port+" up")
	to.ip(t, "addr add "+address+" dev eth0")
	to.ip(t, "link set eth0 up")
}

// TestReach scrapes a task next to an agent, a neighbour and another machine. It runs in
// a process with its own network namespace, which acts as the host's.
func TestReach(t *testing.T) {
	const child = "EBBTIDE_TEST_REACH"
	if os.Getenv(child) == "" {
		if os.Geteuid() != 0 {
			t.Skip("makes network namespaces: needs root")
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestReach$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1", "HTTP_PROXY=http://127.0.0.1:4646")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
		return
	}

	file, err := os.Open(ownNamespace)
	must.NoError(t, err)
	host, task, neighbour, lan := netns{file}, newNetns(t), newNetns(t), newNetns(t)
	for _, args := range []string{
		"link set lo up",
		"link add br0 type bridge",
		"link set br0 up",
		"addr add 10.9.0.1/24 dev br0",
	} {
		host.ip(t, args)
	}
	host.link(t, task, "veth0", "10.9.0.2/24")
	host.link(t, neighbour, "veth1", "10.9.0.3/24")
	host.link(t, lan, "bond0", "10.8.0.7/24")
	host.ip(t, "link set veth0 master br0")
	host.ip(t, "link set veth1 master br0")
	host.ip(t, "addr add 10.8.0.1/24 dev bond0")
	task.ip(t, "route add default via 10.9.0.1")

	host.serve(t, "127.0.0.1:4646", "1") // the agent
	host.serve(t, "10.9.0.1:4646", "1")
	neighbour.serve(t, "10.9.0.3:9100", "2")
	lan.serve(t, "10.8.0.7:9100", "3")
	task.serve(t, "127.0.0.1:9100", "4")
	task.serve(t, "10.9.0.2:9200", "5")
	task.serve(t, "[::1]:9300", "6")
	task.serve(t, "127.0.0.1:9400", "http://127.0.0.1:4646/")
	task.serve(t, "127.0.0.1:9500", "http://10.9.0.3:9100/")
	host.serve(t, "10.9.0.1:20000", "7")  // instead of the forwarding to the task
	host.serve(t, "10.9.0.1:20002", "8")  // the task's, in the host's network
	host.serve(t, "127.0.0.1:20002", "9") // a foreign service

	// The neighbour and the other machine are reachable from here.
	for _, address := range []string{"10.9.0.3:9100", "10.8.0.7:9100"} {
		conn, err := net.DialTimeout("tcp", address, 10*time.Second)
		must.NoError(t, err)
		must.NoError(t, conn.Close())
	}

	isolated := &Reach{Namespace: task.open, Ports: []Port{{netip.MustParseAddrPort("10.9.0.1:20000"), 9100}, {netip.MustParseAddrPort("10.9.0.1:20001"), 9200}}}
	onHost := &Reach{Ports: []Port{{netip.MustParseAddrPort("10.9.0.1:20002"), 20002}}}
	turnsOut := &Reach{Ports: onHost.Ports, Namespace: host.open}
	gone := &Reach{Namespace: func(context.Context) (*os.File, error) { return nil, os.ErrNotExist }}
	const refused, elsewhere, notGiven = "cannot be reached: connection refused", "an address of the task's own network namespace", "a port that Nomad has given this allocation; it has 10.9.0.1:20002"
	for _, c := range []struct {
		reach *Reach
		host  string
		want  string // a value, or part of the error
	}{
		{isolated, "localhost:9100", "4"},
		{isolated, "127.0.0.1:9100", "4"},
		{isolated, "10.9.0.2:9200", "5"},
		{isolated, "localhost:9300", "6"},
		{isolated, "[::1]:9300", "6"},
		{isolated, "10.9.0.1:20000", "4"},
		{isolated, "10.9.0.1:20001", "5"},
		{isolated, "127.0.0.1:4646", refused},
		{isolated, "localhost:20002", refused},
		{isolated, "10.9.0.1:4646", elsewhere},
		{isolated, "10.9.0.3:9100", elsewhere},
		{isolated, "10.8.0.7:9100", elsewhere},
		{isolated, "10.8.0.1:9100", elsewhere},
		{isolated, "localhost:9400", "redirects are not followed"},
		{isolated, "localhost:9500", "redirects are not followed"},
		{gone, "localhost:9100", "cannot be reached"},
		{onHost, "localhost:20002", "8"},
		{onHost, "10.9.0.1:20002", "8"},
		{turnsOut, "localhost:20002", "8"},
		{turnsOut, "10.9.0.1:20002", "8"},
		{turnsOut, "localhost:4646", notGiven},
		{turnsOut, "10.9.0.3:9100", notGiven},
	} {
		t.Run(c.host, func(t *testing.T) {
			e, err := newEndpoint("http://"+c.host+"/metrics", progress.Config{Metric: "m"}, Options{Reach: c.reach, Timeout: 30 * time.Second})
			must.NoError(t, err)
			e.scrape(t.Context())
			e.client.CloseIdleConnections()
			reports, err := e.Poll(t.Context())
			if len(c.want) == 1 {
				must.NoError(t, err)
				must.Eq(t, []string{"m=" + c.want}, show(reports), must.Sprint(e.Note()))
				return
			}
			must.SliceEmpty(t, reports)
			must.StrContains(t, e.Note(), c.want)
			must.StrContains(t, e.Note(), c.host)
		})
	}

	// Threads leave the namespaces they entered.
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			conn, err := isolated.Dial(t.Context(), "tcp", "localhost:9100")
			must.NoError(t, err)
			must.NoError(t, conn.Close())
			own, err := hostNamespace(file)
			must.NoError(t, err)
			must.True(t, own)
		})
	}
	all.Wait()
}
