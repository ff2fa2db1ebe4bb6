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

	"golang.org/x/sys/unix"
)

// Find finds the cgroup of a process; see Finder.Find.
func Find(pid int) (*Cgroup, error) { return Finder{}.Find(pid) }

// FindFor finds the cgroup that a runtime made for id; see Finder.FindFor.
func FindFor(pid int, id string) (*Cgroup, error) { return Finder{}.FindFor(pid, id) }

// Finder finds cgroups. The zero value looks at the machine it runs on.
type Finder struct {
	// Proc is where procfs is; "" means /proc. Sysfs is looked for beside it.
	Proc string
}

func (f Finder) proc(elem ...string) string {
	root := f.Proc
	if root == "" {
		root = "/proc"
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

// Find finds the cgroup a process is in by /proc/<pid>/cgroup and
// /proc/self/mountinfo. It takes cgroup v1 (controllers apart or joined, as in
// cpu,cpuacct), v2, and both at once (hybrid): the hierarchy that has the cpu
// controller is the one that counts.
//
// ErrGone when the process has ended (a zombie has, too). ErrRefused when the
// cgroup is not the process's alone: the root, our own or one above it, one
// that tasks share, or one outside our cgroup namespace.
func (f Finder) Find(pid int) (*Cgroup, error) { return f.FindFor(pid, "") }

// FindFor is Find for a process whose cgroup is known by name: id is the
// container's ID or, for Nomad's exec driver, "<alloc>.<task>". It returns the
// outermost cgroup named after id, also when the process has gone into a child
// (systemd in a container does). A process in a cgroup of another name, as
// when its pid was used again, is refused with ErrRefused.
func (f Finder) FindFor(pid int, id string) (*Cgroup, error) {
	c, err := f.find(pid, id)
	if err != nil && !errors.Is(err, ErrGone) && f.gone(pid) {
		// It ended while we looked; whatever was odd was odd for that reason.
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
	theirs, err := f.memberships(name)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return nil, fmt.Errorf("%w: %w", ErrGone, err)
		}
		return nil, err
	}
	// Looked at after the memberships: a zombie on v1 shows "/" everywhere,
	// which is to be told as gone, not as the root cgroup.
	if f.ended(name) {
		return nil, fmt.Errorf("%w: it has exited", ErrGone)
	}
	ours, err := f.memberships("self")
	if err != nil {
		return nil, fmt.Errorf("finding our own cgroup: %w", err)
	}
	mounts, err := f.mounts()
	if err != nil {
		return nil, err
	}

	l := locator{theirs: theirs, ours: ours, mounts: mounts, id: id}
	// Version 1 first: where the cpu controller is bound to a v1 hierarchy, v2
	// cannot have it, mounted or not.
	var c *Cgroup
	if _, ok := theirs.v1("cpu"); ok {
		c, err = l.v1()
	} else {
		c, err = l.v2()
	}
	if err != nil {
		return nil, err
	}
	c.proc = f.Proc
	c.blk, c.blkBase, c.blkVersion, c.blkErr = l.block()
	c.frz, c.frzErr = l.freezer(c)
	return c, nil
}

// gone says whether the process has ended since.
func (f Finder) gone(pid int) bool {
	name := strconv.Itoa(pid)
	_, err := os.Stat(f.proc(name))
	return errors.Is(err, fs.ErrNotExist) || f.ended(name)
}

// ended says whether the process is a zombie. What cannot be read has not
// ended, as far as we know.
func (f Finder) ended(pid string) bool {
	b, err := os.ReadFile(f.proc(pid, "stat"))
	if err != nil {
		return false
	}
	// pid (comm) state …; comm may hold anything, parentheses and newlines too.
	_, after, ok := strings.Cut(string(b[max(strings.LastIndexByte(string(b), ')'), 0):]), " ")
	return ok && after != "" && strings.ContainsRune("ZXx", rune(after[0]))
}

// membership is one line of /proc/<pid>/cgroup.
type membership struct {
	controllers []string // empty: version 2
	path        string
}

type memberships []membership

// v1 finds the path in the v1 hierarchy of a controller.
func (ms memberships) v1(controller string) (string, bool) {
	for _, m := range ms {
		if slices.Contains(m.controllers, controller) {
			return m.path, true
		}
	}
	return "", false
}

// v2 finds the path in the v2 hierarchy.
func (ms memberships) v2() (string, bool) {
	for _, m := range ms {
		if len(m.controllers) == 0 {
			return m.path, true
		}
	}
	return "", false
}

func (f Finder) memberships(pid string) (memberships, error) {
	b, err := os.ReadFile(f.proc(pid, "cgroup"))
	if err != nil {
		return nil, err
	}
	return parseMemberships(string(b))
}

func parseMemberships(text string) (memberships, error) {
	var out memberships
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			continue
		}
		// hierarchy:controllers:path; the path may hold colons.
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "/") {
			return nil, fmt.Errorf("cgroup membership: cannot read the line %q", line)
		}
		m := membership{path: fields[2]}
		if fields[1] != "" {
			m.controllers = strings.Split(fields[1], ",")
		}
		out = append(out, m)
	}
	return out, nil
}

// mount is one cgroup mount of /proc/self/mountinfo.
type mount struct {
	root, point string
	version     int
	options     []string // of the superblock: on v1 they name the controllers
}

func (f Finder) mounts() ([]mount, error) {
	b, err := os.ReadFile(f.proc("self", "mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("finding the cgroup mounts: %w", err)
	}
	return parseMounts(string(b)), nil
}

// parseMounts reads the cgroup mounts, the latest first: a later mount hides
// an earlier one at the same place.
func parseMounts(text string) []mount {
	var out []mount
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(head) < 6 || len(tail) < 3 {
			continue
		}
		m := mount{root: unescape(head[3]), point: unescape(head[4])}
		switch tail[0] {
		case "cgroup":
			m.version = 1
		case "cgroup2":
			m.version = 2
		default:
			continue
		}
		m.options = strings.Split(tail[2], ",")
		out = append(out, m)
	}
	slices.Reverse(out)
	return out
}

// unescape undoes the kernel's octal escapes of blank, tab, newline and
// backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
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
	for part := range strings.SplitSeq(rel, "/") {
		if part == ".." {
			return "", false
		}
	}
	return rel, true
}

// locator turns memberships into directories.
type locator struct {
	theirs, ours memberships
	mounts       []mount
	id           string
}

// dir finds the directory of a cgroup path among the mounts that pass. base is
// the directory of the mount itself, above which nothing can be seen.
func (l locator) dir(what, path string, pass func(mount) bool) (dir, base string, err error) {
	mounted := false
	for _, m := range l.mounts {
		if !pass(m) {
			continue
		}
		mounted = true
		rel, ok := below(m.root, path)
		if !ok {
			continue
		}
		dir := filepath.Join(m.point, rel)
		if rel == "" {
			// All that we see of the hierarchy, by whatever name: the root, or
			// the container that we run in.
			return "", "", fmt.Errorf("%w: it is in the topmost cgroup of %s, %q", ErrRefused, m.point, path)
		}
		// Hidden by another mount, or not the tree it seems: try the next.
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err != nil {
			continue
		}
		return dir, m.point, nil
	}
	if !mounted {
		return "", "", fmt.Errorf("%w: no mount of %s", ErrNoController, what)
	}
	return "", "", fmt.Errorf("%w: its cgroup %q (%s) cannot be seen from here: it is outside of our cgroup namespace or mounts", ErrRefused, path, what)
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

func (l locator) v1() (*Cgroup, error) {
	c := &Cgroup{version: 1, conv: Identity}
	var err error
	if c.path, c.cpu, c.base, err = l.findV1("cpu"); err != nil {
		return nil, err
	}
	// Without these the task can be limited all the same; the error comes up
	// where the figure is asked for.
	_, c.acct, _, c.acctErr = l.findV1("cpuacct")
	_, c.mem, _, c.memErr = l.findV1("memory")
	return c, nil
}

func (l locator) findV1(controller string) (path, dir, base string, err error) {
	path, ok := l.theirs.v1(controller)
	if !ok {
		return "", "", "", fmt.Errorf("%w: the kernel has no cgroup v1 %s", ErrNoController, controller)
	}
	ours, _ := l.ours.v1(controller)
	if path, err = l.own(path, ours); err != nil {
		return "", "", "", fmt.Errorf("%s: %w", controller, err)
	}
	dir, base, err = l.dir("cgroup v1 "+controller, path, func(m mount) bool {
		return m.version == 1 && slices.Contains(m.options, controller)
	})
	return path, dir, base, err
}

func (l locator) v2() (*Cgroup, error) {
	c := &Cgroup{version: 2, conv: Quadratic}
	var err error
	if c.path, c.cpu, c.base, err = l.findV2("cpu"); err != nil {
		return nil, err
	}
	c.acct, c.mem = c.cpu, c.cpu
	return c, nil
}

func (l locator) findV2(controller string) (path, dir, base string, err error) {
	path, ok := l.theirs.v2()
	if !ok {
		return "", "", "", fmt.Errorf("%w: the process is in no cgroup hierarchy with a %s controller", ErrNoController, controller)
	}
	ours, _ := l.ours.v2()
	if path, err = l.own(path, ours); err != nil {
		return "", "", "", err
	}
	dir, base, err = l.dir("cgroup v2", path, func(m mount) bool { return m.version == 2 })
	return path, dir, base, err
}

// freezer finds where the task's processes are frozen: on version 1 it is a hierarchy
// of its own, on version 2 every cgroup has it.
func (l locator) freezer(c *Cgroup) (dir string, err error) {
	if c.version == 2 {
		return c.cpu, nil
	}
	_, dir, _, err = l.findV1("freezer")
	return dir, err
}

// block finds the controller for block I/O. As with the cpu, version 2 has it unless
// it is bound to a hierarchy of version 1.
func (l locator) block() (dir, base string, version int, err error) {
	if _, ok := l.theirs.v1("blkio"); ok {
		_, dir, base, err = l.findV1("blkio")
		return dir, base, 1, err
	}
	_, dir, base, err = l.findV2("io")
	return dir, base, 2, err
}
