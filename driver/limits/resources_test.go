// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

func (m *machine) link(name, target string) {
	m.t.Helper()
	name = filepath.Join(m.dir, name)
	must.NoError(m.t, os.MkdirAll(filepath.Dir(name), 0o755))
	_ = os.Remove(name)
	must.NoError(m.t, os.Symlink(target, name))
}

func (m *machine) network(pid, ns, dev string) {
	m.link("proc/"+pid+"/ns/net", "net:["+ns+"]")
	m.file("proc/"+pid+"/net/dev", "Inter-|   Receive                            |  Transmit\n"+
		" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"+dev)
}

func equal(t *testing.T, want, got Resources, settings ...must.Setting) {
	t.Helper()
	must.Eq(t, fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got), settings...)
}

var unknown = math.NaN()

const (
	throttled = "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 12288\n254:0 Async 0\n254:0 Discard 77\n254:0 Total 12288\n" +
		"8:0 Read 1\n8:0 Write 2\n8:0 Total 3\nTotal 12291\n"
	nothingCounted = "Total 0\n"
	iostat         = "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=77 dios=1\n8:0 rbytes=1 wbytes=2 rios=1 wios=1 dbytes=0 dios=0\n253:0 \n"
	devices        = "    lo: 1000000    5000    0    0    0     0          0         0  1000000    5000    0    0    0     0       0          0\n" +
		"  eth0:    1500      10    0    0    0     0          0         0      700       9    0    0    0     0       0          0\n" +
		"eth1:20 1 0 0 0 0 0 0 3 1 0 0 0 0 0 0\n"
)

// v1Blkio returns a common version 1 machine with a separate blkio controller.
func v1Blkio(t *testing.T, files map[string]string) (*machine, *Cgroup) {
	m := newMachine(t)
	m.mounts("32 31 0:29 / @/cg/cpu rw - cgroup cgroup rw,cpu,cpuacct,memory\n36 31 0:33 / @/cg/blkio rw - cgroup cgroup rw,blkio")
	m.proc("self", "R", "2:blkio:/", "1:cpu,cpuacct,memory:/", "0::/")
	m.proc("77", "S", "2:blkio:/nomad/t", "1:cpu,cpuacct,memory:/t", "0::/")
	m.cgroup("cg/cpu/t", filesV1)
	m.file("cg/cpu/t/cgroup.procs", "77\n")
	m.cgroup("cg/blkio/nomad/t", files)
	c, err := m.finder().FindFor(77, "")
	must.NoError(t, err)
	return m, c
}

func TestResources_v1(t *testing.T) {
	m, c := v1Blkio(t, map[string]string{
		"blkio.throttle.io_service_bytes":           "Total 0\n",
		"blkio.throttle.io_service_bytes_recursive": throttled,
	})
	equal(t, Resources{3000, 12291, unknown}, c.Resources())

	// Linux before 5.4 has no recursive counts; CFQ had its own files.
	m.file("cg/blkio/nomad/t/blkio.throttle.io_service_bytes", "8:0 Read 5\n")
	must.NoError(t, os.Remove(filepath.Join(m.dir, "cg/blkio/nomad/t/blkio.throttle.io_service_bytes_recursive")))
	equal(t, Resources{3000, 5, unknown}, c.Resources())
	m.file("cg/blkio/nomad/t/blkio.io_service_bytes_recursive", "8:0 Read 6\n")
	equal(t, Resources{3000, 6, unknown}, c.Resources())
}

// Writes to a logical volume are counted again at its disk.
func TestResources_stackedDevices(t *testing.T) {
	stack := func(m *machine) {
		m.file("sys/dev/block/254:0/slaves/vda2", "")
		m.file("sys/dev/block/8:0/dev", "8:0\n")
		must.NoError(t, os.Mkdir(filepath.Join(m.dir, "sys/dev/block/8:0/slaves"), 0o755))
	}
	m, c := v1Blkio(t, map[string]string{"blkio.throttle.io_service_bytes_recursive": throttled})
	stack(m)
	equal(t, Resources{3000, 3, unknown}, c.Resources())
	m, c, dir := newCgroup(t, 2)
	m.file(dir+"/io.stat", iostat)
	stack(m)
	equal(t, Resources{3000, 3, unknown}, c.Resources())
}

func TestResources_v1NotCounting(t *testing.T) {
	const file = "blkio.throttle.io_service_bytes_recursive"
	m, c := v1Blkio(t, map[string]string{file: nothingCounted})
	m.file("cg/blkio/"+file, nothingCounted)
	equal(t, Resources{3000, unknown, unknown}, c.Resources())

	// Fall back to the processes, with those of child cgroups.
	m.file("cg/cpu/t/cgroup.procs", "77\n0\nx\n79\n")
	m.file("cg/cpu/t/sub/cgroup.procs", "78\n")
	m.file("proc/77/io", "rchar: 5\nwchar: 6\nsyscr: 1\nsyscw: 1\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 5\n")
	m.file("proc/78/io", "read_bytes: 1\nwrite_bytes: odd\n")
	equal(t, Resources{3000, 12289, unknown}, c.Resources())

	// Another cgroup has counts: the 0 is real.
	m.file("cg/blkio/"+file, throttled)
	equal(t, Resources{3000, 0, unknown}, c.Resources())
}

func TestResources_v2(t *testing.T) {
	m, c, dir := newCgroup(t, 2)
	equal(t, Resources{3000, unknown, unknown}, c.Resources())
	m.file(dir+"/io.stat", "")
	equal(t, Resources{3000, 0, unknown}, c.Resources())
	m.file(dir+"/io.stat", iostat)
	equal(t, Resources{3000, 12291, unknown}, c.Resources())

	must.NoError(t, os.RemoveAll(filepath.Join(m.dir, dir)))
	equal(t, Resources{unknown, unknown, unknown}, c.Resources())
}

func TestFinder_blockIO(t *testing.T) {
	t.Run("cpu on v1, io on v2", func(t *testing.T) {
		m := newMachine(t)
		m.mounts("32 31 0:29 / @/cg/cpu rw - cgroup cgroup rw,cpu,cpuacct,memory\n41 31 0:38 / @/cg/unified rw - cgroup2 cgroup2 rw")
		m.proc("self", "R", "1:cpu,cpuacct,memory:/", "0::/")
		m.proc("77", "S", "1:cpu,cpuacct,memory:/t", "0::/u")
		m.cgroup("cg/cpu/t", filesV1)
		m.cgroup("cg/unified/u", map[string]string{"io.stat": iostat, "io.weight": "default 100\n"})
		c, err := m.finder().FindFor(77, "")
		must.NoError(t, err)
		must.Eq(t, 1, c.Version())
		equal(t, Resources{3000, 12291, unknown}, c.Resources())
	})
	t.Run("cpu on v2, blkio on v1", func(t *testing.T) {
		m := newMachine(t)
		m.mounts("26 24 0:30 / @/cg rw - cgroup2 cgroup2 rw\n36 31 0:33 / @/blkio rw - cgroup cgroup rw,blkio")
		m.proc("self", "R", "2:blkio:/", "0::/")
		m.proc("77", "S", "2:blkio:/b", "0::/t")
		m.cgroup("cg/t", filesV2)
		m.cgroup("blkio/b", map[string]string{"blkio.throttle.io_service_bytes_recursive": throttled, "blkio.bfq.weight": "100\n"})
		c, err := m.finder().FindFor(77, "")
		must.NoError(t, err)
		must.Eq(t, 2, c.Version())
		equal(t, Resources{3000, 12291, unknown}, c.Resources())
	})
	t.Run("not the task's own", func(t *testing.T) {
		m := newMachine(t)
		m.mounts("32 31 0:29 / @/cg/cpu rw - cgroup cgroup rw,cpu,cpuacct,memory\n36 31 0:33 / @/cg/blkio rw - cgroup cgroup rw,blkio")
		m.proc("self", "R", "2:blkio:/", "1:cpu,cpuacct,memory:/")
		m.proc("77", "S", "2:blkio:/", "1:cpu,cpuacct,memory:/t")
		m.cgroup("cg/cpu/t", filesV1)
		m.cgroup("cg/blkio", map[string]string{"blkio.throttle.io_service_bytes_recursive": throttled, "blkio.bfq.weight": "100\n"})
		c, err := m.finder().FindFor(77, "")
		must.NoError(t, err)
		equal(t, Resources{3000, unknown, unknown}, c.Resources())
	})
	t.Run("none", func(t *testing.T) {
		_, c, _ := newCgroup(t, 1)
		equal(t, Resources{3000, unknown, unknown}, c.Resources())
	})
}

func TestResources_network(t *testing.T) {
	m, c, dir := newCgroup(t, 2)
	m.file(dir+"/cgroup.procs", "78\n77\n")
	network := func() float64 { return c.Resources().NetworkBytes }
	must.True(t, math.IsNaN(network()))

	m.network("self", "1", devices)
	m.network("77", "1", devices)
	m.network("78", "1", devices)
	must.True(t, math.IsNaN(network())) // the host's

	m.network("78", "2", devices)
	must.Eq(t, 2223, network())
	m.network("77", "3", "eth0: 1 0 0 0 0 0 0 0 2 0\nodd: x 0 0 0 0 0 0 0 3\nshort: 1 2\nnothing\n")
	must.Eq(t, 6, network()) // the lowest pid

	m.network("self", "9", devices)
	m.network("1", "3", devices)
	must.Eq(t, 2223, network())
	m.network("1", "2", devices)
	must.Eq(t, 6, network())

	m.network("1", "1", devices)
	must.NoError(t, os.Remove(filepath.Join(m.dir, "proc/77/net/dev")))
	must.Eq(t, 2223, network()) // exited in between

	must.NoError(t, os.RemoveAll(filepath.Join(m.dir, "proc/1/ns/net")))
	m.file("proc/1/ns/net", "no link")
	must.Eq(t, 2223, network())
}

// The search is bounded whatever a task forks.
func TestCgroup_pidsBounded(t *testing.T) {
	m, c, dir := newCgroup(t, 2)
	text := ""
	for i := range 2000 {
		text = fmt.Sprintln(100+i) + text
	}
	m.file(dir+"/a/cgroup.procs", text)
	for i := range 300 {
		m.file(fmt.Sprintf("%s/b%d/cgroup.procs", dir, i), "5\n")
	}
	got := c.pids()
	must.Len(t, maxPids, got)
	must.SliceContains(t, got, 100)
}
