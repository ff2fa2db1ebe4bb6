// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package peer tells who is at the other end of a Unix socket, by what this host's kernel
// says and not by what the peer says.
//
// The kernel names the process (SO_PEERCRED) and the process's cgroup names the container:
// Nomad's exec driver makes one "<alloc>.<task>" (with ".scope" on cgroup v2), Docker and
// podman make one with the container's ID. For these, the mounts say whose directories
// Nomad gave to the container, and its environment tells the names. The environment is
// the process's own memory: it is believed where neither these nor the ebbtide driver say
// anything, and where it contradicts the cgroup or the mounts the process is refused.
package peer

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

	"github.com/ebbtide/ebbtide/device/seat"
)

var (
	// ErrStranger: the process is in no container that Nomad could have started.
	ErrStranger = errors.New("not in a task's container")
	// ErrContradiction: what the process says of itself is not what the host sees.
	ErrContradiction = errors.New("the process contradicts the host")
	// ErrGone: the process has ended.
	ErrGone = errors.New("the process is gone")
)

// Container is a task's container.
type Container struct {
	// ID is how the host knows it: the Docker container's ID, or "<alloc>.<task>".
	ID string
	// Alloc is the allocation's ID, and Task the task's name. In a Docker container that
	// does not mount Nomad's directories these are what the process says.
	Alloc, Task string
	// Job, Group, Namespace and Meta are what the ebbtide driver says (Finder.Tasks), under
	// other drivers the process. Meta has the job's ebbtide_… keys.
	Job, Group, Namespace string
	Meta                  map[string]string
	// Cards are the UUIDs of those on which it has a seat; nil: that is not known.
	Cards []string
	// Arguments is a hash of the arguments of the container's first process, in which the
	// allocation's ID does not count; "" if they could not be read. Two runs of a job have
	// the same. The arguments themselves are kept nowhere: they may hold secrets.
	Arguments string
}

// Process is a process on this host.
type Process struct {
	PID       int    // in the namespace of this process
	Start     uint64 // clock ticks since the machine's start
	UID       uint32
	Container Container
}

// maxEnviron bounds what is read of a process's environment, in bytes.
const maxEnviron = 4 << 20

// Finder finds out about processes. The zero value looks at the machine it runs on.
type Finder struct {
	// Proc is where procfs is; "" means /proc.
	Proc string
	// Tasks is the directory in which the ebbtide driver says what tasks are (package seat);
	// "" means nowhere.
	Tasks string
}

// Identify says who has connected, and returns a handle on the process, which the caller
// closes. The errors are ErrStranger, ErrContradiction and ErrGone, or the system's.
//
// admit is told the container's ID as soon as that is known, and may end it there. What
// comes then reads memory of the process, and a process can make that last for as long as
// it likes: so admit should bound how often it is done for one container.
func (f Finder) Identify(conn *net.UnixConn, admit func(id string) error) (Process, *Handle, error) {
	cred, handle, err := open(conn)
	if err != nil {
		return Process{}, nil, fmt.Errorf("asking the kernel who has connected: %w", err)
	}
	p, err := f.process(int(cred.Pid), admit)
	// While it lives its pid is not given to another one: what was read is about it.
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

// open returns the kernel's word for the peer, and the handle.
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
		// Since Linux 6.5 the socket itself knows the process. Before, one that has ended
		// and whose pid was used again at once is taken for its successor.
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

// Process reads what the host knows of a process.
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

// Start returns when a process has begun, in clock ticks since the machine's start.
func (f Finder) Start(pid int) (uint64, error) {
	fields, err := f.stat(pid)
	if err != nil {
		return 0, err
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading the start of process %d: %w", pid, err)
	}
	return start, nil
}

// stat returns the fields of a process's stat from its state on, which is field 3. There
// are 20 of them at least, up to the start.
func (f Finder) stat(pid int) ([]string, error) {
	b, err := f.read(pid, "stat")
	if err != nil {
		return nil, err
	}
	// pid (comm) state …; comm may hold anything.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("reading the start of process %d: %d fields", pid, len(fields))
	}
	return fields, nil
}

// Boot returns an ID that changes when the machine starts.
func (f Finder) Boot() (string, error) {
	b, err := os.ReadFile(f.path("sys/kernel/random/boot_id"))
	if err != nil {
		return "", fmt.Errorf("reading which start of the machine this is: %w", err)
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
	if err := c.agree(fromMounts(string(mounts))); err != nil {
		return Container{}, fmt.Errorf("by its mounts: %w", err)
	}
	said, err := f.said(&c)
	if err != nil {
		return Container{}, err
	}
	if said {
		c.Arguments = f.arguments(f.first(pid, c.ID), c.Alloc)
		return c, nil
	}
	environ, err := f.read(pid, "environ")
	if err != nil {
		return Container{}, err
	}
	if err := c.agree(fromEnviron(environ)); err != nil {
		return Container{}, fmt.Errorf("by its environment: %w", err)
	}
	if c.Alloc == "" || c.Task == "" {
		return Container{}, fmt.Errorf("%w: container %s has no NOMAD_ALLOC_ID and NOMAD_TASK_NAME", ErrStranger, c.ID)
	}
	c.Arguments = f.arguments(f.first(pid, c.ID), c.Alloc)
	return c, nil
}

// said takes over what the ebbtide driver says of a container that the kernel has named. It
// returns false if the driver says nothing.
func (f Finder) said(c *Container) (bool, error) {
	if f.Tasks == "" || c.Alloc == "" || c.Task == "" {
		return false, nil
	}
	i, err := seat.ReadIdentity(seat.IdentityPath(f.Tasks, c.Alloc, c.Task))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	c.Job, c.Group, c.Namespace, c.Meta = i.Job, i.Group, i.Namespace, i.Meta
	c.Cards = append([]string{}, i.Cards...) // none is known, too
	return true, nil
}

// maxParents bounds how far it is looked for the first process of a container.
const maxParents = 64

// first returns the first process of a process's container: the farthest of its ancestors
// that is in it. Where an ancestor cannot be read it is taken to be outside.
func (f Finder) first(pid int, id string) int {
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

// arguments returns the hash of a process's arguments, or "".
func (f Finder) arguments(pid int, alloc string) string {
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

// read reads a file of a process. The error wraps ErrGone if there is no such process.
func (f Finder) read(pid int, name string) ([]byte, error) {
	file, err := os.Open(f.path(filepath.Join(strconv.Itoa(pid), name)))
	var b []byte
	if err == nil {
		b, err = io.ReadAll(io.LimitReader(file, maxEnviron))
		err = errors.Join(err, file.Close())
	}
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("%w: %w", ErrGone, err)
	case err != nil:
		return nil, fmt.Errorf("reading about a process: %w", err)
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

// fromCgroups reads /proc/<pid>/cgroup. In each hierarchy the outermost name counts: what
// is below it the container has made itself. All hierarchies that name one must agree.
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
			return Container{}, fmt.Errorf("%w: its cgroups are of %s and of %s", ErrContradiction, c.ID, found.ID)
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

// fromMounts reads /proc/<pid>/mountinfo, for the directories at /alloc and /local.
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
	// maxEntry bounds what is taken of one variable, in bytes, and maxMeta how many keys of the
	// meta. A process can write what it likes into its environment, and what is taken of it is
	// kept for as long as it lives, and shown to people, also to others.
	maxEntry = 1 << 10
	maxMeta  = 64
)

// fromEnviron reads /proc/<pid>/environ. What is too long does not count.
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

// agree takes over what another source says, unless it contradicts.
func (c *Container) agree(other Container) error {
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
