// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

func FindFor(pid int, id string) (*Cgroup, error) { return Finder{}.FindFor(pid, id) }

// Finder finds cgroups. The zero value uses /proc.
type Finder struct {
	// Proc is procfs's mount point; "" means /proc. Sysfs is expected next to it.
	Proc string
}

func (f Finder) proc(elem ...string) string {
	root := f.Proc
	if root == "" {
		root = "/proc"
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

// FindFor finds the cgroup of a process from /proc/<pid>/cgroup and
// /proc/self/mountinfo, on cgroup v1 (controllers apart or joined, as in cpu,cpuacct),
// v2, and hybrid, where each controller is used in its own hierarchy.
//
// id is the container's ID or, for Nomad's exec driver, "<alloc>.<task>". The result is
// the outermost cgroup with that name, even if the process has moved into a child (as
// under systemd in a container). With an empty id it is the process's own cgroup.
//
// ErrGone if the process has exited or is a zombie. ErrNotExclusive if the cgroup is
// the root, the plugin's own or one above it, shared by tasks, outside the cgroup
// namespace, or not named after id, as after the reuse of a pid.
func (f Finder) FindFor(pid int, id string) (*Cgroup, error) {
	c, err := f.find(pid, id)
	if err != nil && !errors.Is(err, ErrGone) && f.exited(pid) {
		// It exited during the search, which explains any other error.
		err = fmt.Errorf("%w: it has exited", ErrGone)
	}
	if err != nil {
		return nil, fmt.Errorf("finding the cgroup of process %d: %w", pid, err)
	}
	return c, nil
}

func (f Finder) find(pid int, id string) (*Cgroup, error) {
	if pid < 1 {
		return nil, fmt.Errorf("%w: no such pid", ErrGone)
	}
	name := strconv.Itoa(pid)
	theirs, err := cgroups.ParseCgroupFile(f.proc(name, "cgroup"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return nil, err
	}
	// Checked after reading the memberships: a zombie on v1 shows "/" everywhere and
	// must be reported as gone, not as in the root cgroup.
	if f.zombie(name) {
		return nil, fmt.Errorf("%w: it has exited", ErrGone)
	}
	ours, mounts, err := f.self()
	if err != nil {
		return nil, err
	}

	l := locator{taskPaths: theirs, ownPaths: ours, mounts: mounts, id: id}
	c := &Cgroup{finder: f, cpu: l.find("cpu")}
	if c.cpu.err != nil {
		return nil, c.cpu.err
	}
	if c.cpu.version == 2 {
		c.conv = Quadratic
	}
	// A task can be limited without these; the error is returned on use.
	c.acct, c.mem, c.blk = l.find("cpuacct"), l.find("memory"), l.find("blkio")
	c.frz = c.cpu // every version 2 cgroup has a freezer
	if c.cpu.version == 1 {
		c.frz = l.find("freezer")
	}
	return c, nil
}

// self reads the plugin's own cgroup paths by controller ("" is version 2) and the
// cgroup mounts, latest first, because a later mount hides an earlier one.
func (f Finder) self() (map[string]string, []*mountinfo.Info, error) {
	ours, err := cgroups.ParseCgroupFile(f.proc("self", "cgroup"))
	if err != nil {
		return nil, nil, fmt.Errorf("finding the plugin's own cgroup: %w", err)
	}
	mounts, err := f.mounts()
	return ours, mounts, err
}

func (f Finder) mounts() ([]*mountinfo.Info, error) {
	file, err := os.Open(f.proc("self", "mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("finding the cgroup mounts: %w", err)
	}
	defer file.Close()
	mounts, err := mountinfo.GetMountsFromReader(file, mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("finding the cgroup mounts: %w", err)
	}
	slices.Reverse(mounts)
	return mounts, nil
}

// isHierarchy reports whether m is the version 1 hierarchy of a controller or, for "",
// version 2.
func isHierarchy(m *mountinfo.Info, controller string) bool {
	if controller == "" {
		return m.FSType == "cgroup2"
	}
	return m.FSType == "cgroup" && slices.Contains(strings.Split(m.VFSOptions, ","), controller)
}

func (f Finder) exited(pid int) bool {
	name := strconv.Itoa(pid)
	_, err := os.Stat(f.proc(name))
	return errors.Is(err, fs.ErrNotExist) || f.zombie(name)
}

// zombie reports whether the process is a zombie; false if its state is unreadable.
func (f Finder) zombie(pid string) bool {
	b, err := os.ReadFile(f.proc(pid, "stat"))
	if err != nil {
		return false
	}
	// "pid (comm) state …": comm may hold anything, even parentheses and newlines.
	_, after, ok := strings.Cut(string(b[max(strings.LastIndexByte(string(b), ')'), 0):]), " ")
	return ok && after != "" && strings.ContainsRune("ZXx", rune(after[0]))
}

// relativeTo makes path relative to root. In a cgroup namespace both may begin with
// "/..".
func relativeTo(root, path string) (string, bool) {
	if root == "/" {
		root = ""
	}
	if path != root && !strings.HasPrefix(path, root+"/") {
		return "", false
	}
	rel := strings.TrimPrefix(path[len(root):], "/")
	return rel, !slices.Contains(strings.Split(rel, "/"), "..")
}

type locator struct {
	taskPaths, ownPaths map[string]string // by controller; "" is version 2
	mounts              []*mountinfo.Info
	id                  string
}

// find finds the task's directory for a controller of version 1. A controller bound to
// a version 1 hierarchy, mounted or not, is unavailable in version 2.
func (l locator) find(controller string) control {
	c := control{version: 1}
	hierarchy := controller
	path, ok := l.taskPaths[hierarchy]
	if !ok {
		c.version, hierarchy = 2, ""
		path, ok = l.taskPaths[hierarchy]
	}
	if !ok {
		c.err = fmt.Errorf("%w: the process is in no cgroup hierarchy with the %s controller", ErrNoController, controller)
		return c
	}
	path, err := l.taskPath(path, l.ownPaths[hierarchy])
	if err == nil {
		c.dir, c.base, err = locate(l.mounts, hierarchy, path)
	}
	if err == nil && c.dir == c.base {
		// The top of the visible hierarchy: the root, or the plugin's container.
		err = fmt.Errorf("%w: it is in the topmost cgroup of %s, %q", ErrNotExclusive, c.base, path)
	}
	if err != nil {
		c.err = fmt.Errorf("%s controller: %w", controller, err)
	}
	return c
}

// locate finds the directory of a cgroup path in a hierarchy, and the mount point above
// which nothing is visible.
func locate(mounts []*mountinfo.Info, hierarchy, path string) (dir, base string, err error) {
	mounted := false
	for _, m := range mounts {
		if !isHierarchy(m, hierarchy) {
			continue
		}
		mounted = true
		rel, ok := relativeTo(m.Root, path)
		if !ok {
			continue
		}
		dir := filepath.Join(m.Mountpoint, rel)
		// Hidden by another mount: try the next.
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			continue
		}
		return dir, m.Mountpoint, nil
	}
	if !mounted {
		return "", "", fmt.Errorf("%w: its hierarchy is not mounted", ErrNoController)
	}
	return "", "", fmt.Errorf("%w: its cgroup %q is outside the plugin's cgroup namespace or mounts", ErrNotExclusive, path)
}

// sharedGroups are names of cgroups under which runtimes put many tasks.
var sharedGroups = map[string]bool{
	"nomad": true, "nomad.slice": true, "share.slice": true, "reserve.slice": true,
	"docker": true, "system.slice": true, "user.slice": true, "machine.slice": true,
}

// taskPath returns the cgroup path to limit: the process's own, or with an id the
// outermost named after it.
func (l locator) taskPath(path, ours string) (string, error) {
	if before, deleted := strings.CutSuffix(path, " (deleted)"); deleted {
		return "", fmt.Errorf("%w: cgroup %q was removed", ErrGone, before)
	}
	if l.id != "" {
		at, ok := outermostNamed(path, l.id)
		if !ok {
			return "", fmt.Errorf("%w: it is in %q, which is not named after %q", ErrNotExclusive, path, l.id)
		}
		path = at
	}
	switch {
	case path == "/":
		return "", fmt.Errorf("%w: it is in the root cgroup", ErrNotExclusive)
	case path == ours:
		return "", fmt.Errorf("%w: it is in the plugin's own, %q", ErrNotExclusive, path)
	case strings.HasPrefix(ours, path+"/"), strings.Trim(path, "/.") == "": // "/../..": above our namespace
		return "", fmt.Errorf("%w: %q contains the plugin's own, %q", ErrNotExclusive, path, ours)
	case sharedGroups[filepath.Base(path)]:
		return "", fmt.Errorf("%w: %q is shared by tasks", ErrNotExclusive, path)
	}
	return path, nil
}

// outermostNamed returns the shortest prefix of path whose last element is named after
// id: "<id>", "<id>.scope" or, with systemd, "<runtime>-<id>.scope".
func outermostNamed(path, id string) (string, bool) {
	at := ""
	for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
		at += "/" + part
		name := strings.TrimSuffix(part, ".scope")
		if name == id || part == id || strings.HasSuffix(name, "-"+id) {
			return at, true
		}
	}
	return "", false
}
