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
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cleanDeadline bounds each step of a clean-up. The kernel lets go of a cgroup or
// a mount only after the last process in it has been torn down.
const cleanDeadline = 30 * time.Second

// netnsDir is where Nomad's client mounts network namespaces, by alloc ID.
const netnsDir = "/run/netns"

// site is everything on this machine that belongs to one run.
type site struct {
	dir     string
	bridges []string
	cgroups []string // parent cgroups of Docker daemons, relative to a hierarchy's root
	allocs  []string // IDs of allocations, besides those found in the directory
	netns   bool     // netnsDir was a mount before the run
	log     io.Writer
}

// newSite notes what the machine is like before the run.
func newSite(dir string, log io.Writer) *site {
	s := &site{dir: dir, log: log}
	s.netns = s.isMount(netnsDir)
	return s
}

// clean ends and removes all of it and returns what it could not remove.
func (s *site) clean(reap func()) []string {
	// Looked up first: the directories that name the allocations go away.
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
	// Nomad mounts the directory onto itself for the first namespace and leaves
	// it so. It is somebody else's as well when it is not empty.
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

	left := s.left(allocs)
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

// left lists what still exists, the directory itself apart.
func (s *site) left(allocs []string) []string {
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

// retry repeats a step until it says that it is done, or for cleanDeadline.
func (s *site) retry(step func() bool) {
	for deadline := time.Now().Add(cleanDeadline); !step() && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
}

// allocIDs lists the allocations that the run's agents know or knew.
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

// looksLikeID says whether a name is a UUID, as Nomad's IDs are.
func looksLikeID(name string) bool {
	return len(name) == 36 && strings.Count(name, "-") == 4
}

// thaw wakes frozen tasks: a frozen process cannot die.
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

// cgroupDirs lists the cgroups that exist of these allocations and of the run's
// Docker daemons, in every hierarchy.
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

// TaskCgroups lists the cgroups that exist of an agent's exec tasks.
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

// cgroupV2Root is where the unified hierarchy is mounted, when it is the only one.
const cgroupV2Root = "/sys/fs/cgroup"

// cgroupRoots lists the mounted hierarchies of cgroup v1 (and the unified one of
// a hybrid set-up).
func cgroupRoots() []string {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	for i, r := range roots {
		roots[i] = filepath.Dir(r)
	}
	return roots
}

// removeCgroup removes a cgroup and those below it, deepest first.
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

// isMount says whether a path is a mount point.
func (s *site) isMount(path string) bool {
	for _, point := range mountPoints() {
		if point == path {
			return true
		}
	}
	return false
}

// mounts lists mount points under the run's directory and the network namespaces
// of these allocations, deepest first.
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

// mountPoints lists all mount points.
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

// unescapeMount undoes the octal escapes of mountinfo.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// descendants lists the processes below one process, zombies apart.
func descendants(root int) []int {
	children := make(map[int][]int)
	zombie := make(map[int]bool)
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		parent, state, err := parentOf(pid)
		if err != nil {
			continue // it has ended meanwhile
		}
		children[parent] = append(children[parent], pid)
		zombie[pid] = state == "Z"
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

// parentOf reads a process's parent and state.
func parentOf(pid int) (parent int, state string, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, "", err
	}
	// The command's name is in parentheses and may hold any character.
	rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0, "", fmt.Errorf("/proc/%d/stat is short", pid)
	}
	parent, err = strconv.Atoi(fields[1])
	return parent, fields[0], err
}

// commandLine is a process's command line, for people.
func commandLine(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " "))
}

// exists says whether a path exists.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
