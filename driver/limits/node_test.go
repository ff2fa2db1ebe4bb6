// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"io/fs"
	"testing"

	"github.com/shoenig/test/must"
)

func TestSharedCPUs(t *testing.T) {
	v1, v2 := "30 23 0:28 / @/cg/cpuset rw - cgroup cgroup rw,cpuset", mountV2
	for _, tc := range []struct {
		mount, dir, list string
		want             []int
	}{
		{v1, "cg/cpuset/nomad/share", "0-3,7\n", []int{0, 1, 2, 3, 7}},
		{v2, "cg/nomad.slice/share.slice", "1\n", []int{1}},
	} {
		m := newMachine(t)
		m.mounts(tc.mount)
		_, err := m.finder().SharedCPUs()
		must.ErrorIs(t, err, fs.ErrNotExist)
		m.file(tc.dir+"/cpuset.cpus", "\n") // no task yet
		_, err = m.finder().SharedCPUs()
		must.ErrorIs(t, err, fs.ErrNotExist)
		m.file(tc.dir+"/cpuset.cpus", tc.list)
		cpus, err := m.finder().SharedCPUs()
		must.NoError(t, err)
		must.Eq(t, tc.want, cpus)
		for _, bad := range []string{"a", "3-1", "-1", "1,"} {
			m.file(tc.dir+"/cpuset.cpus", bad)
			_, err = m.finder().SharedCPUs()
			must.ErrorContains(t, err, "CPU list")
		}
	}
}

func TestOwnQuota(t *testing.T) {
	for name, tc := range map[string]struct {
		mounts string
		self   []string
		files  map[string]string
		want   float64
	}{
		"systemd unit, v2": {mountV2, []string{"0::/system.slice/nomad.service"}, map[string]string{
			"cg/cgroup.procs": "", "cg/system.slice/cpu.max": "max 100000\n", "cg/system.slice/nomad.service/cpu.max": "150000 100000\n",
		}, 1.5},
		"above the unit, v1": {mountApart, []string{"2:cpu:/a/b", "0::/"}, map[string]string{
			"cg/cpu/a/cpu.cfs_quota_us": "50000\n", "cg/cpu/a/cpu.cfs_period_us": "100000\n",
			"cg/cpu/a/b/cpu.cfs_quota_us": "-1\n", "cg/cpu/a/b/cpu.cfs_period_us": "100000\n",
		}, 0.5},
		"a container, v1": {"32 31 0:29 /docker/c1 @/cg rw - cgroup cgroup rw,cpu", []string{"2:cpu:/docker/c1"}, map[string]string{
			"cg/cpu.cfs_quota_us": "400000\n", "cg/cpu.cfs_period_us": "100000\n",
		}, 4},
		"a container, v2": {mountV2, []string{"0::/"}, map[string]string{"cg/cpu.max": "300000 100000\n"}, 3},
		"none":            {mountV2, []string{"0::/"}, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.mounts(tc.mounts)
			m.proc("self", "R", tc.self...)
			for _, dir := range []string{"cg", "cg/cpu/a/b", "cg/system.slice/nomad.service"} {
				m.cgroup(dir, nil)
			}
			for file, content := range tc.files {
				m.file(file, content)
			}
			cores, err := m.finder().OwnQuota()
			must.NoError(t, err)
			must.Eq(t, tc.want, cores)
		})
	}

	m := newMachine(t)
	_, err := m.finder().OwnQuota()
	must.ErrorIs(t, err, fs.ErrNotExist)
	m.mounts(mountV2)
	m.proc("self", "R", "2:cpu:/")
	_, err = m.finder().OwnQuota()
	must.ErrorIs(t, err, ErrNoController)
}

// CPUs that tasks own, or that are reserved, are no part of the pool.
func TestIdleTimes(t *testing.T) {
	m := newMachine(t)
	m.file("proc/stat", "cpu  9 0 9 1000 100 0 0 0 0 0\ncpu0 1 0 1 300 20 0 0 0 0 0\ncpu1 1 0 1 400 0 0 0 0 0 0\ncpu2 1 0 1 500 30 0 0 0 0 0\n")
	idle, err := m.finder().IdleTimes(nil)
	must.NoError(t, err)
	must.Eq(t, map[int]float64{0: 3.2, 1: 4, 2: 5.3}, idle)
	idle, err = m.finder().IdleTimes([]int{1, 2})
	must.NoError(t, err)
	must.Eq(t, map[int]float64{1: 4, 2: 5.3}, idle)
}
