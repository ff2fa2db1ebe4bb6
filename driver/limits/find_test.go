// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

// machine is a fake procfs and fake cgroup mounts in a directory.
type machine struct {
	t   *testing.T
	dir string
}

func newMachine(t *testing.T) *machine {
	return &machine{t: t, dir: t.TempDir()}
}

func (m *machine) finder() Finder { return Finder{Proc: filepath.Join(m.dir, "proc")} }

func (m *machine) file(name, content string) {
	m.t.Helper()
	name = filepath.Join(m.dir, name)
	must.NoError(m.t, os.MkdirAll(filepath.Dir(name), 0o755))
	must.NoError(m.t, os.WriteFile(name, []byte(content), 0o644))
}

func (m *machine) read(name string) string {
	m.t.Helper()
	b, err := os.ReadFile(filepath.Join(m.dir, name))
	must.NoError(m.t, err)
	return string(b)
}

func (m *machine) proc(pid, state string, lines ...string) {
	m.file("proc/"+pid+"/cgroup", strings.Join(lines, "\n")+"\n")
	m.file("proc/"+pid+"/stat", "1 (a) b (c) "+state+" 1 1 1\n")
}

// mounts writes mountinfo; @ stands for the machine's directory.
func (m *machine) mounts(lines ...string) {
	text := strings.Join(lines, "\n") + "\n"
	m.file("proc/self/mountinfo", strings.ReplaceAll(text, "@", m.dir))
}

func (m *machine) cgroup(dir string, files map[string]string) {
	m.file(dir+"/cgroup.procs", "")
	for name, content := range files {
		m.file(dir+"/"+name, content)
	}
}

var filesV1 = map[string]string{
	"cpu.shares":            "1024\n",
	"cpu.cfs_quota_us":      "-1\n",
	"cpu.cfs_period_us":     "100000\n",
	"cpu.stat":              "nr_periods 20\nnr_throttled 10\nthrottled_time 2500000000\nwait_sum 5\n",
	"cpuacct.usage":         "12500000000\n",
	"memory.usage_in_bytes": "5000\n",
	"memory.stat":           "cache 3000\ninactive_file 1\ntotal_inactive_file 2000\n",
}

var filesV2 = map[string]string{
	"cpu.weight":     "100\n",
	"cpu.max":        "max 100000\n",
	"cpu.stat":       "usage_usec 12500000\nuser_usec 1\nnr_periods 20\nnr_throttled 10\nthrottled_usec 2500000\n",
	"memory.current": "5000\n",
	"memory.stat":    "anon 1\ninactive_file 2000\n",
}

const (
	mountApart  = "31 23 0:28 / @/cg rw - tmpfs tmpfs rw,mode=755\n32 31 0:29 / @/cg/cpu rw shared:9 - cgroup cgroup rw,cpu\n33 31 0:30 / @/cg/cpuacct rw - cgroup cgroup rw,cpuacct\n35 31 0:32 / @/cg/memory rw - cgroup cgroup rw,memory\n41 31 0:38 / @/cg/unified rw - cgroup2 cgroup2 rw"
	mountJoint  = "32 31 0:29 / @/cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n35 31 0:32 / @/cg/memory rw - cgroup cgroup rw,memory"
	mountV2     = "26 24 0:30 / @/cg rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
	mountBlanks = `26 24 0:30 / @/c\040g rw,nosuid shared:9 - cgroup2 cgroup2 rw`
)

func TestFinder_layouts(t *testing.T) {
	cases := []struct {
		name   string
		mounts string
		self   []string
		task   []string
		id     string
		dirs   []string // created, with all files of the version
		want   string   // directory of the cpu controller
	}{
		{
			name:   "v1 apart, hybrid",
			mounts: mountApart,
			self:   []string{"4:memory:/", "2:cpuacct:/", "1:cpu:/", "0::/"},
			task:   []string{"4:memory:/nomad/a.web", "2:cpuacct:/nomad/a.web", "1:cpu:/nomad/a.web", "0::/"},
			dirs:   []string{"cg/cpu/nomad/a.web", "cg/cpuacct/nomad/a.web", "cg/memory/nomad/a.web", "cg/unified"},
			want:   "cg/cpu/nomad/a.web",
		},
		{
			name:   "v1 joint",
			mounts: mountJoint,
			self:   []string{"4:memory:/", "1:cpu,cpuacct:/system.slice/nomad.service", "0::/"},
			task:   []string{"4:memory:/docker/c1", "1:cpu,cpuacct:/docker/c1", "0::/"},
			dirs:   []string{"cg/cpu,cpuacct/docker/c1", "cg/memory/docker/c1"},
			want:   "cg/cpu,cpuacct/docker/c1",
		},
		{
			name:   "v1 seen from within a container",
			mounts: "32 31 0:29 /docker/outer @/cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n33 31 0:29 /docker/outer @/cg/memory rw - cgroup cgroup rw,memory",
			self:   []string{"4:memory:/docker/outer", "1:cpu,cpuacct:/docker/outer"},
			task:   []string{"4:memory:/docker/outer/t", "1:cpu,cpuacct:/docker/outer/t"},
			dirs:   []string{"cg/cpu/t", "cg/memory/t"},
			want:   "cg/cpu/t",
		},
		{
			name:   "v2 exec driver",
			mounts: mountV2,
			self:   []string{"0::/system.slice/nomad.service"},
			task:   []string{"0::/nomad.slice/share.slice/a.web.scope"},
			id:     "a.web",
			dirs:   []string{"cg/nomad.slice/share.slice/a.web.scope"},
			want:   "cg/nomad.slice/share.slice/a.web.scope",
		},
		{
			name:   "v2 docker with systemd, and systemd inside",
			mounts: mountV2,
			self:   []string{"0::/"},
			task:   []string{"0::/system.slice/docker-c0ffee.scope/init.scope"},
			id:     "c0ffee",
			dirs:   []string{"cg/system.slice/docker-c0ffee.scope", "cg/system.slice/docker-c0ffee.scope/init.scope"},
			want:   "cg/system.slice/docker-c0ffee.scope",
		},
		{
			name:   "v2 sibling namespace mounted from its parent",
			mounts: "26 24 0:30 /.. @/cg rw - cgroup2 cgroup2 rw",
			self:   []string{"0::/"},
			task:   []string{"0::/../task"},
			dirs:   []string{"cg/task"},
			want:   "cg/task",
		},
		{
			name:   "mount point with a blank, path with a colon",
			mounts: mountBlanks,
			self:   []string{"0::/"},
			task:   []string{"0::/a:b"},
			dirs:   []string{"c g/a:b"},
			want:   "c g/a:b",
		},
		{
			name:   "the mount on top hides the one below",
			mounts: "26 24 0:30 / @/gone rw - cgroup2 cgroup2 rw\n27 24 0:30 / @/cg rw - cgroup2 cgroup2 rw\n28 24 0:30 / @/hidden rw - cgroup2 cgroup2 rw",
			self:   []string{"0::/"},
			task:   []string{"0::/t"},
			dirs:   []string{"cg/t"},
			want:   "cg/t",
		},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.mounts(tc.mounts)
			m.proc("self", "R", tc.self...)
			m.proc("77", "S", tc.task...)
			files := filesV1
			if len(tc.task) == 1 {
				files = filesV2
			}
			for _, dir := range tc.dirs {
				m.cgroup(dir, files)
			}
			c, err := m.finder().FindFor(77, tc.id)
			must.NoError(t, err)
			must.Eq(t, filepath.Join(m.dir, tc.want), c.cpu.dir)

			u, err := c.Usage()
			must.NoError(t, err)
			must.Eq(t, Usage{CPUSeconds: 12.5, Periods: 20, Throttled: 10, ThrottledSeconds: 2.5}, u)
			mem, err := c.Memory()
			must.NoError(t, err)
			must.Eq(t, 3000, mem)
			l, err := c.Read()
			must.NoError(t, err)
			must.Eq(t, Limits{Shares: 1024}, l)
		})
	}
}

func TestFinder_refuses(t *testing.T) {
	v1 := func(path string) []string {
		return []string{"4:memory:" + path, "2:cpuacct:" + path, "1:cpu:" + path, "0::/"}
	}
	cases := []struct {
		name   string
		mounts string
		self   []string
		task   []string
		state  string
		id     string
		is     error
		says   string
	}{
		{"root v1", mountApart, v1("/x"), v1("/"), "S", "", ErrNotExclusive, "root cgroup"},
		{"root v2", mountV2, []string{"0::/x"}, []string{"0::/"}, "S", "", ErrNotExclusive, "root cgroup"},
		{"ours v1", mountApart, v1("/x"), v1("/x"), "S", "", ErrNotExclusive, "the plugin's own"},
		{"ours v2", mountV2, []string{"0::/x"}, []string{"0::/x"}, "S", "", ErrNotExclusive, "the plugin's own"},
		{"above ours", mountV2, []string{"0::/x/y"}, []string{"0::/x"}, "S", "", ErrNotExclusive, "contains the plugin's own"},
		{"shared by tasks", mountApart, v1("/"), v1("/nomad"), "S", "", ErrNotExclusive, "shared by tasks"},
		{"shared slice", mountV2, []string{"0::/s"}, []string{"0::/nomad.slice/share.slice"}, "S", "", ErrNotExclusive, "shared by tasks"},
		{"another task's", mountV2, []string{"0::/s"}, []string{"0::/nomad.slice/share.slice/a.web2.scope"}, "S", "a.web", ErrNotExclusive, "not named after"},
		{"outside of our namespace", mountV2, []string{"0::/"}, []string{"0::/../x"}, "S", "", ErrNotExclusive, "namespace"},
		{"above our namespace", "26 24 0:30 /../.. @/cg rw - cgroup2 cgroup2 rw", []string{"0::/"}, []string{"0::/../.."}, "S", "", ErrNotExclusive, "contains the plugin's own"},
		{"the container we run in", "26 24 0:30 /docker/c1 @/cg rw - cgroup2 cgroup2 rw", []string{"0::/docker/c1/plugin"}, []string{"0::/docker/c1"}, "S", "", ErrNotExclusive, "contains the plugin's own"},
		{"the topmost there is", "26 24 0:30 /docker/c2 @/cg rw - cgroup2 cgroup2 rw", []string{"0::/docker/c1"}, []string{"0::/docker/c2"}, "S", "", ErrNotExclusive, "topmost"},
		{"zombie on v1", mountApart, v1("/x"), v1("/"), "Z", "", ErrGone, "exited"},
		{"cgroup removed", mountV2, []string{"0::/"}, []string{"0::/x (deleted)"}, "S", "", ErrGone, "removed"},
		{"controller not mounted", mountV2, v1("/"), v1("/t"), "S", "", ErrNoController, "cpu controller: "},
		{"no hierarchy", mountApart, []string{"1:name=systemd:/"}, []string{"1:name=systemd:/t"}, "S", "", ErrNoController, "no cgroup hierarchy"},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.mounts(tc.mounts)
			m.proc("self", "R", tc.self...)
			m.proc("77", tc.state, tc.task...)
			for _, dir := range []string{"cg/cpu", "cg/cpuacct", "cg/memory", "cg"} {
				m.cgroup(dir, nil)
			}
			_, err := m.finder().FindFor(77, tc.id)
			must.ErrorIs(t, err, tc.is)
			must.ErrorContains(t, err, tc.says)
			must.ErrorContains(t, err, "process 77")
		})
	}

	t.Run("no such process", func(t *testing.T) {
		m := newMachine(t)
		for _, pid := range []int{78, 0, -1} {
			_, err := m.finder().FindFor(pid, "")
			must.ErrorIs(t, err, ErrGone)
		}
	})
	t.Run("garbage", func(t *testing.T) {
		m := newMachine(t)
		m.proc("77", "S", "what is this")
		_, err := m.finder().FindFor(77, "")
		must.ErrorContains(t, err, "what is this")
	})
}

func TestFinder_partOfV1(t *testing.T) {
	m := newMachine(t)
	m.mounts(mountApart)
	m.proc("self", "R", "4:memory:/", "2:cpuacct:/", "1:cpu:/")
	m.proc("77", "S", "4:memory:/", "2:cpuacct:/", "1:cpu:/nomad/a.web")
	m.cgroup("cg/cpu/nomad/a.web", filesV1)
	c, err := m.finder().FindFor(77, "")
	must.NoError(t, err)
	must.NoError(t, c.SetShares(512))
	_, err = c.Usage()
	must.ErrorIs(t, err, ErrNotExclusive)
	must.ErrorContains(t, err, "cpuacct")
	_, err = c.Memory()
	must.ErrorIs(t, err, ErrNotExclusive)
}

func newCgroup(t *testing.T, version int) (*machine, *Cgroup, string) {
	t.Helper()
	m := newMachine(t)
	dir := "cg/cpu/t"
	if version == 1 {
		m.mounts("32 31 0:29 / @/cg/cpu rw - cgroup cgroup rw,cpu,cpuacct,memory")
		m.proc("self", "R", "1:cpu,cpuacct,memory:/")
		m.proc("77", "S", "1:cpu,cpuacct,memory:/t")
		m.cgroup(dir, filesV1)
	} else {
		dir = "cg/t"
		m.mounts(mountV2)
		m.proc("self", "R", "0::/")
		m.proc("77", "S", "0::/t")
		m.cgroup(dir, filesV2)
	}
	c, err := m.finder().FindFor(77, "")
	must.NoError(t, err)
	must.Eq(t, version, c.Version())
	return m, c, dir
}

func TestCgroup_writesV1(t *testing.T) {
	m, c, dir := newCgroup(t, 1)
	must.NoError(t, c.SetShares(1))
	must.StrHasPrefix(t, "2", m.read(dir+"/cpu.shares"))
	must.NoError(t, c.SetShares(1<<40))
	must.StrHasPrefix(t, "262144", m.read(dir+"/cpu.shares"))

	m.file(dir+"/cpu.cfs_quota_us", "0\n")
	must.NoError(t, c.SetQuota(1.5))
	must.Eq(t, "150000", m.read(dir+"/cpu.cfs_quota_us"))
	l, err := c.Read()
	must.NoError(t, err)
	must.Eq(t, 1.5, l.QuotaCores)

	// The job's own period is kept …
	m.file(dir+"/cpu.cfs_quota_us", "0\n")
	m.file(dir+"/cpu.cfs_period_us", "20000\n")
	must.NoError(t, c.SetQuota(1.5))
	must.Eq(t, "30000", m.read(dir+"/cpu.cfs_quota_us"))
	// … unless the kernel would refuse the quota.
	m.file(dir+"/cpu.cfs_quota_us", "0\n")
	m.file(dir+"/cpu.cfs_period_us", "1000\n")
	must.NoError(t, c.SetQuota(0.5))
	must.StrHasPrefix(t, "50000", m.read(dir+"/cpu.cfs_quota_us"))
	must.StrHasPrefix(t, "100000", m.read(dir+"/cpu.cfs_period_us"))

	m.file(dir+"/cpu.cfs_quota_us", "0\n")
	must.NoError(t, c.SetQuota(0))
	must.Eq(t, "-1", m.read(dir+"/cpu.cfs_quota_us"))
}

func TestCgroup_writesV2(t *testing.T) {
	m, c, dir := newCgroup(t, 2)
	m.file(dir+"/cpu.weight", "")
	must.NoError(t, c.SetShares(256))
	must.Eq(t, "35", m.read(dir+"/cpu.weight"))
	c.SetConversion(Linear)
	m.file(dir+"/cpu.weight", "")
	must.NoError(t, c.SetShares(1024))
	must.Eq(t, "39", m.read(dir+"/cpu.weight"))

	m.file(dir+"/cpu.max", "max 50000\n")
	must.NoError(t, c.SetQuota(2))
	must.Eq(t, "100000 50000", m.read(dir + "/cpu.max")[:12])
	m.file(dir+"/cpu.max", "10000 50000\n")
	must.NoError(t, c.SetQuota(0))
	must.StrHasPrefix(t, "max 50000", m.read(dir+"/cpu.max"))
	m.file(dir+"/cpu.max", "max 1000\n")
	must.NoError(t, c.SetQuota(0.004))
	must.StrHasPrefix(t, "1000 100000", m.read(dir+"/cpu.max"))
	must.True(t, c.InForce(Limits{QuotaCores: 0.004, Shares: 5}, Limits{QuotaCores: 0.01, Shares: 5}))
}

func TestCgroup_badQuota(t *testing.T) {
	_, c, _ := newCgroup(t, 2)
	nan := 0.0
	nan /= nan
	for _, q := range []float64{-1, nan} {
		must.ErrorContains(t, c.SetQuota(q), "≥ 0")
	}
}

func TestCgroup_errors(t *testing.T) {
	for _, version := range []int{1, 2} {
		m, c, dir := newCgroup(t, version)
		for _, f := range []string{"cpu.shares", "cpu.weight", "cpu.max", "cpu.cfs_quota_us"} {
			_ = os.Remove(filepath.Join(m.dir, dir, f))
		}
		err := c.SetShares(77)
		must.ErrorIs(t, err, ErrNoController)
		must.ErrorContains(t, err, "cpu.")
		must.ErrorContains(t, err, "cgroup.subtree_control")
		must.ErrorIs(t, c.SetQuota(1), ErrNoController)
		_, err = c.Read()
		must.ErrorIs(t, err, ErrNoController)

		m.file(dir+"/cpu.shares", "many\n")
		m.file(dir+"/cpu.weight", "many\n")
		_, err = c.Read()
		must.ErrorContains(t, err, "many")
		for _, text := range []string{"max", "a 100000", "max b"} {
			m.file(dir+"/cpu.max", text)
			m.file(dir+"/cpu.cfs_quota_us", text)
			must.ErrorContains(t, c.SetQuota(1), "cpu.")
		}

		must.NoError(t, os.RemoveAll(filepath.Join(m.dir, dir)))
		must.ErrorIs(t, c.SetShares(77), ErrGone)
		must.ErrorIs(t, c.SetQuota(1), ErrGone)
		_, err = c.Usage()
		must.ErrorIs(t, err, ErrGone)
		_, err = c.Memory()
		must.ErrorIs(t, err, ErrGone)
		_, err = c.Read()
		must.ErrorIs(t, err, ErrGone)
	}
}

func TestCgroup_refusedValue(t *testing.T) {
	m, c, dir := newCgroup(t, 2)
	must.NoError(t, os.Remove(filepath.Join(m.dir, dir, "cpu.weight")))
	must.NoError(t, os.Symlink("/dev/full", filepath.Join(m.dir, dir, "cpu.weight")))
	err := c.SetShares(1024)
	must.ErrorContains(t, err, `"100"`)
	must.ErrorContains(t, err, "cpu.weight")
}

func BenchmarkCgroup_poll(b *testing.B) {
	m := &machine{t: &testing.T{}, dir: b.TempDir()}
	m.mounts(mountV2)
	m.proc("self", "R", "0::/")
	m.proc("77", "S", "0::/t")
	m.cgroup("cg/t", filesV2)
	c, err := m.finder().FindFor(77, "")
	must.NoError(b, err)
	for b.Loop() {
		_, _ = c.Usage()
		_, _ = c.Read()
	}
}
