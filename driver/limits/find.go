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

// FindFor finds the cgroup that a runtime made for id; see Finder.FindFor.
func FindFor(pid int, id string) (*Cgroup, error) { return Finder{}.FindFor(pid, id) }

// Finder finds cgroups. The zero value looks at the machine it runs on.
type Finder struct {
	// Proc is where procfs is; "" means /proc. Sysfs is expected beside it.
	Proc string
}

func (f Finder) proc(elem ...string) string {
	root := f.Proc
	if root == "" {
		root = "/proc"
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

// FindFor finds the cgroup of a process by /proc/<pid>/cgroup and
// /proc/self/mountinfo. It handles cgroup v1 (controllers apart or joined, as in
// cpu,cpuacct), v2, and both at once (hybrid): each controller is used where it is
// bound.
//
// id is the container's ID or, for Nomad's exec driver, "<alloc>.<task>". The result
// is the outermost cgroup named after it, also when the process has moved into a
// child (systemd in a container does). With an empty id it is the process's own.
//
// ErrGone when the process has ended (a zombie has, too). ErrRefused when the cgroup
// is not the task's alone: the root, our own or one above it, one that tasks share,
// one outside our cgroup namespace, or one not named after id, as when a pid was
// reused.
func (f Finder) FindFor(pid int, id string) (*Cgroup, error) {
	c, err := f.find(pid, id)
	if err != nil && !errors.Is(err, ErrGone) && f.gone(pid) {
		// It ended during the search; whatever was odd was odd for that reason.
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
	// Checked after the memberships were read: a zombie on v1 shows "/" everywhere,
	// which must be reported as gone, not as the root cgroup.
	if f.ended(name) {
		return nil, fmt.Errorf("%w: it has exited", ErrGone)
	}
	ours, mounts, err := f.self()
	if err != nil {
		return nil, err
	}

	l := locator{theirs: theirs, ours: ours, mounts: mounts, id: id}
	c := &Cgroup{finder: f, cpu: l.find("cpu")}
	if c.cpu.err != nil {
		return nil, c.cpu.err
	}
	if c.cpu.version == 2 {
		c.conv = Quadratic
	}
	// Without these the task can be limited all the same; the error comes up where
	// they are asked for.
	c.acct, c.mem, c.blk = l.find("cpuacct"), l.find("memory"), l.find("blkio")
	c.frz = c.cpu // every cgroup of version 2 has a freezer
	if c.cpu.version == 1 {
		c.frz = l.find("freezer")
	}
	return c, nil
}

// self reads our own cgroup paths by controller ("" is version 2), and the cgroup
// mounts, the latest first: a later mount hides an earlier one at the same place.
func (f Finder) self() (map[string]string, []*mountinfo.Info, error) {
	ours, err := cgroups.ParseCgroupFile(f.proc("self", "cgroup"))
	if err != nil {
		return nil, nil, fmt.Errorf("finding our own cgroup: %w", err)
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

// holds says whether a mount is that of a controller of version 1 or, for "", the
// hierarchy of version 2.
func holds(m *mountinfo.Info, controller string) bool {
	if controller == "" {
		return m.FSType == "cgroup2"
	}
	return m.FSType == "cgroup" && slices.Contains(strings.Split(m.VFSOptions, ","), controller)
}

// gone says whether the process has ended since.
func (f Finder) gone(pid int) bool {
	name := strconv.Itoa(pid)
	_, err := os.Stat(f.proc(name))
	return errors.Is(err, fs.ErrNotExist) || f.ended(name)
}

// ended says whether the process is a zombie. One whose state cannot be read counts
// as alive.
func (f Finder) ended(pid string) bool {
	b, err := os.ReadFile(f.proc(pid, "stat"))
	if err != nil {
		return false
	}
	// pid (comm) state …; comm may hold anything, parentheses and newlines too.
	_, after, ok := strings.Cut(string(b[max(strings.LastIndexByte(string(b), ')'), 0):]), " ")
	return ok && after != "" && strings.ContainsRune("ZXx", rune(after[0]))
}

// below makes path relative to root, both as the kernel prints them: in a
// cgroup namespace they may begin with "/..".
func below(root, path string) (string, bool) {
	if root == "/" {
		root = ""
	}
	if path != root && !strings.HasPrefix(path, root+"/") {
		return "", false
	}
	rel := strings.TrimPrefix(path[len(root):], "/")
	return rel, !slices.Contains(strings.Split(rel, "/"), "..")
}

// locator turns the cgroup paths of a process into directories.
type locator struct {
	theirs, ours map[string]string // by controller; "" is version 2
	mounts       []*mountinfo.Info
	id           string
}

// find finds the task's directory for a controller, given its name in version 1: where
// it is bound to a hierarchy of that, version 2 cannot have it, mounted or not.
func (l locator) find(controller string) control {
	c := control{version: 1}
	hierarchy := controller
	path, ok := l.theirs[hierarchy]
	if !ok {
		c.version, hierarchy = 2, ""
		path, ok = l.theirs[hierarchy]
	}
	if !ok {
		c.err = fmt.Errorf("%w: the process is in no cgroup hierarchy with the %s controller", ErrNoController, controller)
		return c
	}
	path, err := l.own(path, l.ours[hierarchy])
	if err == nil {
		c.dir, c.base, err = locate(l.mounts, hierarchy, path)
	}
	if err == nil && c.dir == c.base {
		// All that can be seen of the hierarchy, by whatever name: the root, or the
		// container that we run in.
		err = fmt.Errorf("%w: it is in the topmost cgroup of %s, %q", ErrRefused, c.base, path)
	}
	if err != nil {
		c.err = fmt.Errorf("%s controller: %w", controller, err)
	}
	return c
}

// locate finds the directory of a cgroup path of a hierarchy, and that of its mount,
// above which nothing can be seen.
func locate(mounts []*mountinfo.Info, hierarchy, path string) (dir, base string, err error) {
	mounted := false
	for _, m := range mounts {
		if !holds(m, hierarchy) {
			continue
		}
		mounted = true
		rel, ok := below(m.Root, path)
		if !ok {
			continue
		}
		dir := filepath.Join(m.Mountpoint, rel)
		// Hidden by another mount, or not the tree it seems: try the next.
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			continue
		}
		return dir, m.Mountpoint, nil
	}
	if !mounted {
		return "", "", fmt.Errorf("%w: its hierarchy is not mounted", ErrNoController)
	}
	return "", "", fmt.Errorf("%w: its cgroup %q cannot be seen from here: it is outside of our cgroup namespace or mounts", ErrRefused, path)
}

// common are the last parts of paths that runtimes put tasks under. Limiting
// one of these would limit all tasks together.
var common = map[string]bool{
	"nomad": true, "nomad.slice": true, "share.slice": true, "reserve.slice": true,
	"docker": true, "system.slice": true, "user.slice": true, "machine.slice": true,
}

// own returns the cgroup path to be limited, given the process's own: the same,
// or with an id the outermost named after it.
func (l locator) own(path, ours string) (string, error) {
	if before, deleted := strings.CutSuffix(path, " (deleted)"); deleted {
		return "", fmt.Errorf("%w: cgroup %q was removed", ErrGone, before)
	}
	if l.id != "" {
		at, ok := climb(path, l.id)
		if !ok {
			return "", fmt.Errorf("%w: it is in %q, which is not named after %q", ErrRefused, path, l.id)
		}
		path = at
	}
	switch {
	case path == "/":
		return "", fmt.Errorf("%w: it is in the root cgroup", ErrRefused)
	case path == ours:
		return "", fmt.Errorf("%w: it is in our own, %q", ErrRefused, path)
	case strings.HasPrefix(ours, path+"/"), strings.Trim(path, "/.") == "": // "/../..": above our namespace
		return "", fmt.Errorf("%w: %q holds our own, %q", ErrRefused, path, ours)
	case common[filepath.Base(path)]:
		return "", fmt.Errorf("%w: %q is shared by tasks", ErrRefused, path)
	}
	return path, nil
}

// climb returns the shortest leading part of path whose last element is named
// after id: "<id>", "<id>.scope" or, by systemd's driver, "<runtime>-<id>.scope".
func climb(path, id string) (string, bool) {
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
