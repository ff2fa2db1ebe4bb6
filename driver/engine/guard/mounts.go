// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package guard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/client/allocdir"
	"github.com/hashicorp/nomad/drivers/docker"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/private"
)

// pins are bind mounts of what the sources of a task's mounts are now, in the allocation's private
// directory. The driver checks a path, and Docker follows it, after a pull that may take minutes: a
// task of the allocation could exchange a part of the path for a symbolic link in between, also under
// Nomad 2.0.5, which only checks it later.
type pins struct {
	cfg  *drivers.TaskConfig
	root *os.File // the allocation's directory
	dir  string   // has the pins; "" before the first
	at   []string
}

// pinsPrefix is that of the names of pins.dir.
const pinsPrefix = "mounts-"

// pinMounts replaces the sources of a task's bind mounts in cfg by pins. release removes the pins;
// the container, once started, has mounts of its own.
func pinMounts(cfg *drivers.TaskConfig, task *dockerTask) (release func(), err error) {
	sweepOnce.Do(func() { sweep(filepath.Dir(cfg.AllocDir)) })
	p := &pins{cfg: cfg}
	if p.root, err = os.Open(cfg.AllocDir); err != nil {
		return nil, fmt.Errorf("opening the allocation's directory: %w", err)
	}
	defer p.root.Close()
	if err = p.all(task); err == nil {
		if err = cfg.EncodeConcreteDriverConfig(task); err != nil {
			err = fmt.Errorf("encoding the docker task config: %w", err)
		}
	}
	if err != nil {
		p.release()
		return nil, err
	}
	return p.release, nil
}

func (p *pins) all(task *dockerTask) (err error) {
	if task.VolumeDriver == "" {
		for i, v := range task.Volumes {
			if task.Volumes[i], err = p.volume(v); err != nil {
				return fmt.Errorf("volumes: %q: %w", v, err)
			}
		}
	}
	for _, mounts := range [][]docker.DockerMount{task.Mounts, task.MountsList} {
		for i := range mounts {
			m := &mounts[i]
			if m.Type != "bind" {
				continue
			}
			source := m.Source
			if m.Source, m.ReadOnly, err = p.pin(source, m.Target, m.ReadOnly, false); err != nil {
				return fmt.Errorf("mount.source: %q: %w", source, err)
			}
		}
	}
	return nil
}

// volume pins the source of SOURCE:TARGET[:MODE]. As Docker would, it creates a missing one.
func (p *pins) volume(spec string) (string, error) {
	parts := strings.Split(spec, ":")
	if len(parts) < 2 {
		return spec, nil // the driver rejects it
	}
	var mode []string
	if len(parts) > 2 {
		mode = strings.Split(parts[2], ",")
	}
	source, ro, err := p.pin(parts[0], parts[1], slices.Contains(mode, "ro"), true)
	if err != nil {
		return "", err
	}
	if ro && !slices.Contains(mode, "ro") {
		mode = append(slices.DeleteFunc(mode, func(o string) bool { return o == "rw" }), "ro")
	}
	pinned := source + ":" + parts[1]
	if len(mode) > 0 {
		pinned += ":" + strings.Join(mode, ",")
	}
	return pinned, nil
}

var errOutside = errors.New("leads out of the allocation's directory; a host path needs the plugin's docker option volumes { enabled = true }")

// pin returns the path of a pin of source, and whether it must be mounted read-only.
func (p *pins) pin(source, target string, ro, create bool) (string, bool, error) {
	if !filepath.IsAbs(source) {
		source = filepath.Join(p.cfg.TaskDir().Dir, source)
	}
	rel, err := filepath.Rel(p.cfg.AllocDir, source)
	if err != nil || !filepath.IsLocal(rel) {
		return "", false, errOutside
	}
	f, err := p.open(rel, create)
	if err != nil {
		return "", false, err
	}
	defer f.Close()

	is, err := os.Readlink(fdPath(f))
	if err != nil {
		return "", false, err
	}
	alloc, err := os.Readlink(fdPath(p.root))
	if err != nil {
		return "", false, err
	}
	if err := private.CheckMount(alloc, alloc, is); err != nil {
		return "", false, err
	}
	if is == filepath.Join(alloc, allocdir.SharedAllocName) {
		p.cfg.Mounts = append(p.cfg.Mounts, readOnly(p.cfg.TaskDir().LogDir, filepath.Join(target, allocdir.LogDirName)))
	}
	if l := filepath.Join(alloc, logs); is == l || strings.HasPrefix(is, l+"/") {
		ro = true
	}
	at, err := p.mount(f)
	if err != nil {
		return "", false, fmt.Errorf("pinning it in the allocation's private directory: %w", err)
	}
	return at, ro, nil
}

// open resolves a path beneath the allocation's directory, without opening what it finds.
func (p *pins) open(path string, create bool) (*os.File, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	for range 100 {
		fd, err := unix.Openat2(int(p.root.Fd()), path, how)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR): // something was renamed meanwhile
			continue
		case errors.Is(err, unix.EXDEV):
			return nil, errOutside
		case errors.Is(err, unix.ENOSYS):
			return nil, errors.New("the kernel cannot confine it: needs Linux 5.6, or the plugin's docker option volumes { enabled = true }")
		case errors.Is(err, unix.ENOENT) && create:
			if err := p.mkdir(path); err != nil {
				return nil, err
			}
			create = false
		default:
			return nil, err
		}
	}
	return nil, errors.New("it changes too often")
}

func (p *pins) mkdir(path string) error {
	root, err := os.OpenRoot(p.cfg.AllocDir)
	if err != nil {
		return err
	}
	defer root.Close()
	return root.MkdirAll(path, 0o755)
}

func (p *pins) mount(f *os.File) (at string, err error) {
	if p.dir == "" {
		if p.dir, err = private.Open(p.cfg.AllocDir).MkdirTemp(pinsPrefix); err != nil {
			return "", err
		}
	}
	at = filepath.Join(p.dir, strconv.Itoa(len(p.at)))
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = os.Mkdir(at, 0o700)
	} else {
		err = os.WriteFile(at, nil, 0o600)
	}
	if err != nil {
		return "", err
	}
	p.at = append(p.at, at)
	return at, unix.Mount(fdPath(f), at, "", unix.MS_BIND|unix.MS_REC, "")
}

func (p *pins) release() {
	for _, at := range p.at {
		unpin(at)
	}
	if p.dir != "" {
		_ = os.Remove(p.dir)
	}
}

// unpin removes a pin. As a mount of the original's peer group, it would take the original's
// submounts with it.
func unpin(at string) {
	_ = unix.Mount("", at, "", unix.MS_REC|unix.MS_PRIVATE, "")
	_ = unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	_ = os.Remove(at) // not of a directory in which anything is left
}

var sweepOnce sync.Once

// sweep removes the pins of a process that was killed during a start.
func sweep(allocs string) {
	allocs, err := filepath.EvalSymlinks(allocs)
	if err != nil {
		return
	}
	left, _ := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		rel, err := filepath.Rel(allocs, m.Mountpoint)
		parts := strings.Split(rel, "/")
		return err != nil || len(parts) != 4 || parts[1] != private.DirName || !strings.HasPrefix(parts[2], pinsPrefix), false
	})
	for _, m := range left {
		unpin(m.Mountpoint)
		_ = os.Remove(filepath.Dir(m.Mountpoint))
	}
}

func fdPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }
