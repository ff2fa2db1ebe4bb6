// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

const (
	helperFile    = "EBBTIDE_LIMITS_FILE"
	blockBytes    = 8 << 20
	packets       = 100
	bytesInPacket = 1000
	touchedBytes  = 8 << 20
)

// touchMemory is the helper of TestKernel_memoryOfResources: after a byte on stdin,
// when it is in its cgroup, it touches memory.
func touchMemory() {
	var one [1]byte
	if _, err := io.ReadFull(os.Stdin, one[:]); err != nil {
		return
	}
	b := make([]byte, touchedBytes)
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(b)
}

// writeBlocks is the helper of TestKernel_blockBytes: after a byte on stdin, when it is
// in its cgroup, it writes past the page cache.
func writeBlocks() {
	var one [1]byte
	if _, err := io.ReadFull(os.Stdin, one[:]); err != nil {
		return
	}
	f, err := os.OpenFile(os.Getenv(helperFile), os.O_WRONLY|os.O_CREATE|unix.O_DIRECT, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// mmap aligns for direct I/O.
	b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	for written := 0; err == nil && written < blockBytes; written += len(b) {
		_, err = f.Write(b)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// receivePackets is the helper of TestKernel_networkBytes: a network interface of its
// own receives packets.
func receivePackets() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	tun, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
	fail(err)
	ifr, err := unix.NewIfreq("ebbtide0")
	fail(err)
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	fail(unix.IoctlIfreq(tun, unix.TUNSETIFF, ifr))
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	fail(err)
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	fail(unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, ifr))
	packet := make([]byte, bytesInPacket)
	packet[0] = 0x45 // IPv4, all addresses 0
	for range packets {
		_, err = unix.Write(tun, packet)
		fail(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func eventually(t *testing.T, read func() float64, ok func(float64) bool) float64 {
	t.Helper()
	v := math.NaN()
	for range 1500 {
		if v = read(); ok(v) {
			return v
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("it stayed %v", v)
	return v
}

func TestKernel_memoryOfResources(t *testing.T) {
	k := newKernel(t)
	pid, stdin := k.child("task").startTalking("touch", -1)
	c, err := FindFor(pid, "")
	must.NoError(t, err)
	_, err = stdin.Write([]byte{'\n'})
	must.NoError(t, err)
	// Memory from before it joined the group is not charged to the group.
	eventually(t, func() float64 { return c.Resources().MemoryBytes }, func(v float64) bool { return v >= touchedBytes })
	must.True(t, math.IsNaN(c.Resources().NetworkBytes), must.Sprint("it is on the host's network"))
}

func TestKernel_blockBytes(t *testing.T) {
	k := newKernel(t)
	dir := os.Getenv("TMPDIR")
	if dir == "" {
		dir = "/var/tmp"
	}
	file := filepath.Join(dir, fmt.Sprintf("ebbtide-blocks-%d", os.Getpid()))
	t.Setenv(helperFile, file)
	t.Cleanup(func() { _ = os.Remove(file) })
	pid, stdin := k.child("task").startTalking("write", -1)
	c, err := FindFor(pid, "")
	must.NoError(t, err)
	before := c.Resources().BlockBytes
	must.False(t, math.IsNaN(before))

	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC {
		t.Logf("%s is on no block device: %.0f bytes are known, and that must do", dir, before)
		return
	}
	_, err = stdin.Write([]byte{'\n'})
	must.NoError(t, err)
	after := eventually(t, func() float64 { return c.Resources().BlockBytes },
		func(v float64) bool { return v-before >= blockBytes })
	t.Logf("%d bytes written, %.0f counted (controller of version %d, %v)", blockBytes, after-before, c.blk.version, c.blk.err)
	must.Less(t, 2*blockBytes, after-before)
}

func TestKernel_networkBytes(t *testing.T) {
	k := newKernel(t)
	g := k.child("task")
	g.attr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	c, err := FindFor(g.start("sleep", -1), "")
	must.NoError(t, err)
	must.Zero(t, c.Resources().NetworkBytes)

	if f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0); err != nil {
		t.Logf("this kernel makes no network interface for a test, and that must do: %v", err)
		return
	} else {
		_ = f.Close()
	}
	g = k.child("other")
	g.attr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	c, err = FindFor(g.start("receive", -1), "")
	must.NoError(t, err)
	const want = packets * bytesInPacket
	got := eventually(t, func() float64 { return c.Resources().NetworkBytes }, func(v float64) bool { return v >= want })
	must.Less(t, 1.5*want, got) // slack: the kernel announces itself on the interface
}
