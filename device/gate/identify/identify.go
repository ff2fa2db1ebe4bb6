// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package identify identifies the process at the other end of a Unix socket, by what the kernel
// reports and not by what the process claims.
//
// The kernel names the process (SO_PEERCRED), and its cgroup the container: Nomad's exec driver
// creates "<alloc>.<task>" (".scope" on cgroup v2), Docker and podman use the container's ID, for
// which the mounts show Nomad's directories. The environment is the process's own memory: it is
// used only where neither these nor the ebbtide driver name the task, and a contradiction is
// rejected.
package identify

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/device/handoff"
)

var (
	// ErrStranger: the process is in no container that Nomad could have started.
	ErrStranger = errors.New("not in a task's container")
	// ErrContradiction: the process's claims differ from what the host reports.
	ErrContradiction = errors.New("the process contradicts the host")
	// ErrGone: the process has exited.
	ErrGone = errors.New("the process is gone")
)

// Container is a task's container.
type Container struct {
	// ID is the Docker container's ID, or "<alloc>.<task>".
	ID string
	// Alloc is the allocation's ID, Task the task's name. In a Docker container without Nomad's
	// directories they are the process's own claim.
	Alloc, Task string
	// These come from the ebbtide driver (Finder.Tasks), under other drivers from the process.
	// Meta has the job's ebbtide_… keys.
	Job, Group, Namespace string
	Meta                  map[string]string
	// Cards are the UUIDs of the cards on which it has a seat; nil: unknown.
	Cards []string
	// Arguments is a hash of the arguments of the container's first process, without the
	// allocation's ID: equal for runs of a job; "" if unreadable. Arguments may hold secrets.
	Arguments string
}

// Process is a process on this host.
type Process struct {
	PID       int    // in this process's pid namespace
	Start     uint64 // clock ticks since boot
	UID       uint32
	Container Container
}

const maxFile = 4 << 20

// Finder looks up processes. The zero value uses /proc.
type Finder struct {
	// Proc is the mount point of procfs; "" means /proc.
	Proc string
	// Tasks is the directory of task identities (package handoff); "" means none.
	Tasks string
}

// Identify identifies the client of a connection and returns a handle on its process, which the
// caller closes. The errors are ErrStranger, ErrContradiction and ErrGone, or the system's.
//
// admit is called with the container's ID as soon as it is known; its error ends the call. What
// follows reads memory of the process, which the process can delay: admit should bound how often
// that happens per container.
func (f Finder) Identify(conn *net.UnixConn, admit func(id string) error) (Process, *Handle, error) {
	cred, handle, err := open(conn)
	if err != nil {
		return Process{}, nil, fmt.Errorf("reading the peer's credentials: %w", err)
	}
	p, err := f.process(int(cred.Pid), admit)
	// While the handle's process lives its pid is not reused.
	if err == nil && handle.ended() {
		err = ErrGone
	}
	if err != nil {
		handle.Close()
		return Process{}, nil, fmt.Errorf("process %d: %w", cred.Pid, err)
	}
	p.UID = cred.Uid
	return p, handle, nil
}

func open(conn *net.UnixConn) (*unix.Ucred, *Handle, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var cred *unix.Ucred
	fd := -1
	var failed error
	err = raw.Control(func(socket uintptr) {
		if cred, failed = unix.GetsockoptUcred(int(socket), unix.SOL_SOCKET, unix.SO_PEERCRED); failed != nil {
			return
		}
		// SO_PEERPIDFD needs Linux 6.5. Before that, a process whose pid was reused at once is
		// mistaken for its successor.
		if fd, failed = unix.GetsockoptInt(int(socket), unix.SOL_SOCKET, unix.SO_PEERPIDFD); failed != nil && cred.Pid > 0 {
			fd, failed = unix.PidfdOpen(int(cred.Pid), 0)
		}
	})
	if err == nil {
		err = failed
	}
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODATA) || err == nil && cred.Pid <= 0 {
		err = ErrGone
	}
	if err != nil {
		return nil, nil, err
	}
	handle, err := newHandle(fd)
	return cred, handle, err
}

// Process returns what the host knows about a process.
func (f Finder) Process(pid int) (Process, error) {
	return f.process(pid, func(string) error { return nil })
}

func (f Finder) process(pid int, admit func(id string) error) (Process, error) {
	p := Process{PID: pid}
	var err error
	if p.Start, err = f.Start(pid); err != nil {
		return Process{}, err
	}
	p.Container, err = f.container(pid, admit)
	return p, err
}

// Start returns when a process started, in clock ticks since boot.
func (f Finder) Start(pid int) (uint64, error) {
	fields, err := f.stat(pid)
	if err != nil {
		return 0, err
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading the start time of process %d: %w", pid, err)
	}
	return start, nil
}

// stat returns the fields of /proc/<pid>/stat from field 3, the state, at least up to the start
// time.
func (f Finder) stat(pid int) ([]string, error) {
	b, err := f.read(pid, "stat")
	if err != nil {
		return nil, err
	}
	// pid (comm) state …; comm may hold any character.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("reading the start time of process %d: %d fields", pid, len(fields))
	}
	return fields, nil
}

// Boot returns the boot ID.
func (f Finder) Boot() (string, error) {
	b, err := os.ReadFile(f.path("sys/kernel/random/boot_id"))
	if err != nil {
		return "", fmt.Errorf("reading the boot ID: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func (f Finder) container(pid int, admit func(id string) error) (Container, error) {
	cgroups, err := f.read(pid, "cgroup")
	if err != nil {
		return Container{}, err
	}
	c, err := fromCgroups(string(cgroups))
	if err != nil {
		return Container{}, err
	}
	if err := admit(c.ID); err != nil {
		return Container{}, err
	}
	mounts, err := f.read(pid, "mountinfo")
	if err != nil {
		return Container{}, err
	}
	if err := c.merge(fromMounts(string(mounts))); err != nil {
		return Container{}, fmt.Errorf("by its mounts: %w", err)
	}
	said, err := f.readIdentity(&c)
	if err != nil {
		return Container{}, err
	}
	if said {
		c.Arguments = f.hashArguments(f.firstProcess(pid, c.ID), c.Alloc)
		return c, nil
	}
	environ, err := f.read(pid, "environ")
	if err != nil {
		return Container{}, err
	}
	if err := c.merge(fromEnviron(environ)); err != nil {
		return Container{}, fmt.Errorf("by its environment: %w", err)
	}
	if c.Alloc == "" || c.Task == "" {
		return Container{}, fmt.Errorf("%w: container %s has no NOMAD_ALLOC_ID and NOMAD_TASK_NAME", ErrStranger, c.ID)
	}
	c.Arguments = f.hashArguments(f.firstProcess(pid, c.ID), c.Alloc)
	return c, nil
}

// readIdentity completes a container by the ebbtide driver's identity of its task, if there is
// one.
func (f Finder) readIdentity(c *Container) (bool, error) {
	if f.Tasks == "" || c.Alloc == "" || c.Task == "" {
		return false, nil
	}
	i, err := handoff.ReadIdentity(handoff.IdentityPath(f.Tasks, c.Alloc, c.Task))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	c.Job, c.Group, c.Namespace, c.Meta = i.Job, i.Group, i.Namespace, i.Meta
	c.Cards = append([]string{}, i.Cards...) // not nil: known to be none
	return true, nil
}

const maxParents = 64

// firstProcess returns a process's farthest ancestor in the same container. An unreadable
// ancestor counts as outside.
func (f Finder) firstProcess(pid int, id string) int {
	for range maxParents {
		fields, err := f.stat(pid)
		if err != nil {
			return pid
		}
		parent, err := strconv.Atoi(fields[1])
		if err != nil || parent <= 1 {
			return pid
		}
		cgroups, err := f.read(parent, "cgroup")
		if err != nil {
			return pid
		}
		if c, err := fromCgroups(string(cgroups)); err != nil || c.ID != id {
			return pid
		}
		pid = parent
	}
	return pid
}

func (f Finder) hashArguments(pid int, alloc string) string {
	b, err := f.read(pid, "cmdline")
	if err != nil || len(b) == 0 {
		return ""
	}
	sum := sha256.Sum256(bytes.ReplaceAll(b, []byte(alloc), nil))
	return hex.EncodeToString(sum[:16])
}

func (f Finder) path(name string) string {
	root := f.Proc
	if root == "" {
		root = "/proc"
	}
	return filepath.Join(root, name)
}

// read reads a procfs file of a process. The error wraps ErrGone if there is no such process.
func (f Finder) read(pid int, name string) ([]byte, error) {
	file, err := os.Open(f.path(filepath.Join(strconv.Itoa(pid), name)))
	var b []byte
	if err == nil {
		b, err = io.ReadAll(io.LimitReader(file, maxFile))
		err = errors.Join(err, file.Close())
	}
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	case err != nil:
		return nil, fmt.Errorf("reading procfs: %w", err)
	}
	return b, nil
}

const uuid = `[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`

var (
	// "<alloc>.<task>" of the exec driver. A task's name may hold dots.
	execName = regexp.MustCompile(`^(` + uuid + `)\.(.+)$`)
	// "<id>", "docker-<id>", "libpod-<id>".
	containerName = regexp.MustCompile(`^(?:[a-z][a-z-]*-)?([0-9a-f]{64})$`)
	// What Nomad mounts into containers: "<data_dir>/alloc/<alloc>/alloc" and
	// "…/<alloc>/<task>/local".
	allocMount = regexp.MustCompile(`/(` + uuid + `)/alloc$`)
	localMount = regexp.MustCompile(`/(` + uuid + `)/([^/]+)/local$`)
)

// fromCgroups parses /proc/<pid>/cgroup. In each hierarchy the outermost match counts: the
// container may have created those below. All hierarchies must agree.
func fromCgroups(text string) (Container, error) {
	var c Container
	for line := range strings.Lines(text) {
		// hierarchy:controllers:path; the path may hold colons.
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		found, ok := fromPath(fields[2])
		switch {
		case !ok:
		case c.ID == "":
			c = found
		case c.ID != found.ID:
			return Container{}, fmt.Errorf("%w: its cgroups name %s and %s", ErrContradiction, c.ID, found.ID)
		}
	}
	if c.ID == "" {
		return Container{}, fmt.Errorf("%w: by its cgroups", ErrStranger)
	}
	return c, nil
}

func fromPath(path string) (Container, bool) {
	for part := range strings.SplitSeq(path, "/") {
		name := strings.TrimSuffix(part, ".scope")
		if m := execName.FindStringSubmatch(name); m != nil {
			return Container{ID: name, Alloc: m[1], Task: m[2]}, true
		}
		if m := containerName.FindStringSubmatch(name); m != nil {
			return Container{ID: m[1]}, true
		}
	}
	return Container{}, false
}

// fromMounts parses /proc/<pid>/mountinfo for the sources of /alloc and /local.
func fromMounts(text string) Container {
	var c Container
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		switch root, point := fields[3], fields[4]; point {
		case "/alloc":
			if m := allocMount.FindStringSubmatch(root); m != nil {
				c.Alloc = m[1]
			}
		case "/local":
			if m := localMount.FindStringSubmatch(root); m != nil {
				c.Alloc, c.Task = m[1], m[2]
			}
		}
	}
	return c
}

const (
	// maxEntry bounds the length of a variable in bytes, maxMeta the number of meta keys: a
	// process controls its environment, of which values are kept and displayed to others.
	maxEntry = 1 << 10
	maxMeta  = 64
)

// fromEnviron parses /proc/<pid>/environ, without variables that are too long.
func fromEnviron(environ []byte) Container {
	var c Container
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if len(entry) > maxEntry {
			continue
		}
		key, value, _ := strings.Cut(string(entry), "=")
		switch key {
		case "NOMAD_ALLOC_ID":
			c.Alloc = value
		case "NOMAD_TASK_NAME":
			c.Task = value
		case "NOMAD_JOB_ID":
			c.Job = value
		case "NOMAD_GROUP_NAME":
			c.Group = value
		case "NOMAD_NAMESPACE":
			c.Namespace = value
		}
		if name, ok := strings.CutPrefix(key, "NOMAD_META_ebbtide_"); ok {
			if c.Meta == nil {
				c.Meta = make(map[string]string)
			}
			if len(c.Meta) < maxMeta {
				c.Meta["ebbtide_"+name] = value
			}
		}
	}
	return c
}

// merge adds what another source reports, unless it contradicts.
func (c *Container) merge(other Container) error {
	for _, f := range []struct {
		name       string
		have, says *string
	}{
		{"allocation", &c.Alloc, &other.Alloc},
		{"task", &c.Task, &other.Task},
		{"job", &c.Job, &other.Job},
		{"group", &c.Group, &other.Group},
		{"namespace", &c.Namespace, &other.Namespace},
	} {
		switch {
		case *f.says == "":
		case *f.have == "":
			*f.have = *f.says
		case *f.have != *f.says:
			return fmt.Errorf("%w: %s %q, and not %q", ErrContradiction, f.name, *f.says, *f.have)
		}
	}
	if other.Meta != nil {
		c.Meta = other.Meta
	}
	return nil
}
