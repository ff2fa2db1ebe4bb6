// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// creatorEnv makes the test binary create a harness and exit without Close.
const creatorEnv = "EBBTIDE_HARNESS_TEST_CREATOR"

func TestMain(m *testing.M) {
	if how := os.Getenv(creatorEnv); how != "" {
		creator(how)
	}
	os.Exit(m.Run())
}

// creator starts processes and mounts that are hard to clean up.
func creator(how string) {
	os.Unsetenv(creatorEnv)
	h, err := New(Options{})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	// A daemonised, suspended shell that ignores SIGTERM, and a mount.
	p, err := h.Start(context.Background(), "stubborn", []string{"/bin/sh", "-c",
		`mkdir m && mount -t tmpfs none m && trap '' TERM INT HUP
		 (setsid sh -c 'trap "" TERM INT HUP; echo $$ > child; kill -STOP $$; sleep 1000' &) ; sleep 1000`}, nil)
	if err == nil {
		err = Poll(context.Background(), "the child runs", func(context.Context) error {
			_, err := readPID(filepath.Join(h.Dir, "child"))
			return err
		})
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	child, _ := readPID(filepath.Join(h.Dir, "child"))
	fmt.Println("ready", h.Dir, p.PID, child, h.super.cmd.Process.Pid)
	switch how {
	case "exit":
		os.Exit(0)
	case "panic":
		go panic("on purpose")
	case "close":
		err := h.Close()
		fmt.Println("closed", err)
		os.Exit(0)
	}
	select {}
}

func readPID(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

func TestCleanUpAfterAnyEnd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, how := range []string{"exit", "panic", "close", "INT", "KILL", "QUIT"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env = append(os.Environ(), creatorEnv+"="+how, "TMPDIR="+t.TempDir())
			out, err := cmd.StdoutPipe()
			must.NoError(t, err)
			must.NoError(t, cmd.Start())
			lines := bufio.NewScanner(out)
			must.True(t, lines.Scan())
			var dir string
			var pid, child, super int
			n, err := fmt.Sscanf(lines.Text(), "ready %s %d %d %d", &dir, &pid, &child, &super)
			must.NoError(t, err, must.Sprint(lines.Text()))
			must.Eq(t, 4, n)

			if sig := unix.SignalNum("SIG" + how); sig != 0 {
				must.NoError(t, cmd.Process.Signal(sig))
			}
			if how == "close" {
				must.True(t, lines.Scan())
				must.Eq(t, "closed <nil>", lines.Text())
			}
			_ = cmd.Wait()
			must.NoError(t, Poll(ctx, "everything is gone", func(context.Context) error {
				for _, p := range []int{pid, child, super} {
					if Alive(p) {
						return fmt.Errorf("process %d lives", p)
					}
				}
				if exists(dir) {
					return fmt.Errorf("%s is there", dir)
				}
				return nil
			}))
		})
	}
}

func TestProcessTellsItsEnd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	h, err := New(Options{Logf: t.Logf, BaseDir: t.TempDir()})
	must.NoError(t, err)
	defer h.Close()

	p, err := h.Start(ctx, "three", []string{"/bin/sh", "-c", "echo hello; exit 3"}, nil)
	must.NoError(t, err)
	must.NoError(t, p.Wait(ctx))
	must.ErrorContains(t, p.Err(), "exit status 3")
	text, err := tail(p.Log, 10)
	must.NoError(t, err)
	must.Eq(t, "hello", text)

	p, err = h.Start(ctx, "sleep", []string{"/bin/sleep", "1000"}, nil)
	must.NoError(t, err)
	must.NoError(t, p.Err())
	must.NoError(t, p.Signal(unix.SIGKILL))
	must.NoError(t, p.Wait(ctx))
	must.ErrorContains(t, p.Err(), "SIGKILL")
	must.Error(t, p.Signal(unix.SIGKILL))

	_, err = h.Start(ctx, "missing", []string{"/no/such/program"}, nil)
	must.ErrorContains(t, err, "/no/such/program")
	must.NoError(t, h.Close())
	must.NoError(t, h.Close())
}

func TestLeftoversAreNamed(t *testing.T) {
	dir := t.TempDir()
	s := &site{dir: filepath.Join(dir, "none"), log: os.Stderr}
	must.SliceEmpty(t, s.remaining(nil))
	if os.Geteuid() != 0 {
		return
	}
	name := fmt.Sprintf("ebbt%05x", os.Getpid()&0xfffff)
	s.bridges = []string{name}
	err := createBridge(name, net.IPNet{IP: net.IPv4(172, 30, 251, 1), Mask: net.CIDRMask(24, 32)})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOPKG) {
		t.Skipf("no bridges here: %v", err)
	}
	must.NoError(t, err)
	must.Eq(t, []string{"bridge " + name}, s.remaining(nil))
	must.NoError(t, deleteBridge(name))
	must.NoError(t, deleteBridge(name))
	must.SliceEmpty(t, s.remaining(nil))
}

func TestBlocksOfPortsAreExclusive(t *testing.T) {
	t.Parallel()
	a, b := &portBlocks{}, &portBlocks{}
	defer a.release()
	defer b.release()
	first, err := a.take()
	must.NoError(t, err)
	second, err := b.take()
	must.NoError(t, err)
	must.GreaterEq(t, blockPorts, max(first, second)-min(first, second))
}

func TestNomadVersion(t *testing.T) {
	t.Parallel()
	root, err := FindRoot()
	must.NoError(t, err)
	version, err := NewTools(root, nil).NomadVersion()
	must.NoError(t, err)
	must.StrHasPrefix(t, "v1.", version)
}

func TestKernelOfOurselves(t *testing.T) {
	t.Parallel()
	k, err := ReadKernel(os.Getpid())
	if err != nil {
		t.Skipf("no cpu controller here: %v", err)
	}
	must.Positive(t, k.Shares)
	pids, err := k.Processes()
	must.NoError(t, err)
	must.SliceContains(t, pids, os.Getpid())
}

func TestUnescapeMount(t *testing.T) {
	t.Parallel()
	must.Eq(t, "/a b\tc\\d", unescapeMount(`/a\040b\011c\134d`))
}
