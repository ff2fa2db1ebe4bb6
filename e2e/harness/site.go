// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// cleanDeadline bounds each clean-up step: the kernel releases cgroups and mounts only after
// their last process.
const cleanDeadline = 30 * time.Second

// netnsDir is where Nomad mounts network namespaces by allocation ID.
const netnsDir = "/run/netns"

// site is everything on this machine that belongs to a run.
type site struct {
	dir     string
	bridges []string
	cgroups []string // parents of Docker daemons, relative to a hierarchy's root
	allocs  []string // in addition to those in dir
	netns   bool     // netnsDir was already a mount
	log     io.Writer
}

// newSite records the initial state.
func newSite(dir string, log io.Writer) *site {
	s := &site{dir: dir, log: log}
	s.netns = s.isMount(netnsDir)
	return s
}

// clean removes everything and returns what remains.
func (s *site) clean(reap func()) []string {
	// Before their directories are removed.
	allocs := s.allocIDs()

	s.retry(func() bool {
		s.thaw(allocs)
		left := descendants(os.Getpid())
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		reap()
		return len(left) == 0
	})
	s.retry(func() bool {
		left := s.mounts(allocs)
		for _, m := range left {
			_ = unix.Unmount(m, unix.MNT_DETACH)
		}
		return len(left) == 0
	})
	for _, id := range allocs {
		_ = os.Remove(filepath.Join(netnsDir, id))
	}
	// Nomad leaves a self-mount for the first namespace. If it is not empty, it is in use.
	if entries, err := os.ReadDir(netnsDir); !s.netns && err == nil && len(entries) == 0 && s.isMount(netnsDir) {
		_ = unix.Unmount(netnsDir, 0)
	}
	s.retry(func() bool {
		left := s.cgroupDirs(allocs)
		for _, dir := range left {
			removeCgroup(dir)
		}
		return len(left) == 0
	})
	for _, b := range s.bridges {
		if err := deleteBridge(b); err != nil {
			fmt.Fprintf(s.log, "removing bridge %s: %v\n", b, err)
		}
	}

	left := s.remaining(allocs)
	for _, what := range left {
		fmt.Fprintf(s.log, "left over: %s\n", what)
	}
	if len(left) == 0 {
		if err := os.RemoveAll(s.dir); err != nil {
			left = append(left, fmt.Sprintf("directory %s: %v", s.dir, err))
		}
	}
	return left
}

// remaining lists everything that still exists, except the directory.
func (s *site) remaining(allocs []string) []string {
	var left []string
	for _, pid := range descendants(os.Getpid()) {
		left = append(left, fmt.Sprintf("process %d: %s", pid, commandLine(pid)))
	}
	for _, m := range s.mounts(allocs) {
		left = append(left, "mount "+m)
	}
	for _, dir := range s.cgroupDirs(allocs) {
		left = append(left, "cgroup "+dir)
	}
	for _, b := range s.bridges {
		if _, err := os.Stat("/sys/class/net/" + b); err == nil {
			left = append(left, "bridge "+b)
		}
	}
	return left
}

// retry repeats a step until it succeeds, for at most cleanDeadline.
func (s *site) retry(step func() bool) {
	for deadline := time.Now().Add(cleanDeadline); !step() && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
}

// allocIDs lists the allocations of the run's agents.
func (s *site) allocIDs() []string {
	seen := make(map[string]bool)
	for _, id := range s.allocs {
		seen[id] = true
	}
	for _, pattern := range []string{"*/data/alloc/*", "*/mounts/*"} {
		paths, _ := filepath.Glob(filepath.Join(s.dir, pattern))
		for _, p := range paths {
			if id := filepath.Base(p); looksLikeID(id) {
				seen[id] = true
			}
		}
	}
	ids := make([]string, 0, len(seen))
	for id := range seen {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	return ids
}

func looksLikeID(name string) bool {
	return len(name) == 36 && strings.Count(name, "-") == 4
}

// thaw thaws tasks, as frozen processes do not exit.
func (s *site) thaw(allocs []string) {
	for _, dir := range s.cgroupDirs(allocs) {
		_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil
			case e.Name() == "freezer.state":
				_ = os.WriteFile(path, []byte("THAWED"), 0)
			case e.Name() == "cgroup.freeze":
				_ = os.WriteFile(path, []byte("0"), 0)
			}
			return nil
		})
	}
}

// cgroupDirs lists the cgroups of these allocations and the Docker daemons, in all hierarchies.
func (s *site) cgroupDirs(allocs []string) []string {
	var dirs []string
	for _, root := range append(cgroupRoots(), cgroupV2Root) {
		for _, c := range s.cgroups {
			if dir := filepath.Join(root, c); exists(dir) {
				dirs = append(dirs, dir)
			}
		}
		for _, pattern := range []string{"nomad/*.*", "nomad/*/*.*", "nomad.slice/*/*.scope"} {
			paths, _ := filepath.Glob(filepath.Join(root, pattern))
			for _, p := range paths {
				id, _, _ := strings.Cut(filepath.Base(p), ".")
				if i := sort.SearchStrings(allocs, id); i < len(allocs) && allocs[i] == id {
					dirs = append(dirs, p)
				}
			}
		}
	}
	return dirs
}

// TaskCgroups lists the cgroups of an agent's exec tasks.
func TaskCgroups(a *Agent) ([]string, error) {
	stubs, _, err := a.servers().Allocations().List(nil)
	if err != nil {
		return nil, fmt.Errorf("listing allocations: %w", err)
	}
	var ids []string
	for _, s := range stubs {
		ids = append(ids, s.ID)
	}
	found := (&site{dir: a.h.Dir, allocs: ids}).allocIDs()
	return (&site{}).cgroupDirs(found), nil
}

// cgroupV2Root is the unified hierarchy if there is no other.
const cgroupV2Root = "/sys/fs/cgroup"

// cgroupRoots lists the hierarchies of cgroup v1, and the unified one of a hybrid setup.
func cgroupRoots() []string {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	for i, r := range roots {
		roots[i] = filepath.Dir(r)
	}
	return roots
}

func removeCgroup(dir string) {
	var dirs []string
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0; i-- {
		_ = unix.Rmdir(dirs[i])
	}
}

func (s *site) isMount(path string) bool {
	for _, point := range mountPoints() {
		if point == path {
			return true
		}
	}
	return false
}

// mounts lists the run's mounts, including network namespaces, deepest first.
func (s *site) mounts(allocs []string) []string {
	netns := make(map[string]bool)
	for _, id := range allocs {
		netns[filepath.Join(netnsDir, id)] = true
		netns[filepath.Join("/var", netnsDir, id)] = true
	}
	var points []string
	for _, point := range mountPoints() {
		if strings.HasPrefix(point, s.dir+"/") || netns[point] {
			points = append(points, point)
		}
	}
	sort.Slice(points, func(i, j int) bool { return len(points[i]) > len(points[j]) })
	return points
}

func mountPoints() []string {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var points []string
	for _, line := range strings.Split(string(data), "\n") {
		if fields := strings.Fields(line); len(fields) >= 5 {
			points = append(points, unescapeMount(fields[4]))
		}
	}
	return points
}

// unescapeMount decodes mountinfo's octal escapes.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// descendants lists the processes below root, without zombies.
func descendants(root int) []int {
	children := make(map[int][]int)
	zombie := make(map[int]bool)
	procs, _ := procfs.AllProcs()
	for _, p := range procs {
		st, err := p.Stat()
		if err != nil {
			continue
		}
		children[st.PPID] = append(children[st.PPID], p.PID)
		zombie[p.PID] = st.State == "Z"
	}
	var all []int
	for todo := []int{root}; len(todo) > 0; todo = todo[1:] {
		for _, pid := range children[todo[0]] {
			todo = append(todo, pid)
			if !zombie[pid] {
				all = append(all, pid)
			}
		}
	}
	return all
}

func statOf(pid int) (procfs.ProcStat, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}, err
	}
	return p.Stat()
}

func commandLine(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " "))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
