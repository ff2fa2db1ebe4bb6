// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package guard

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/taskenv"
	"github.com/hashicorp/nomad/drivers/docker"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/moby/sys/mountinfo"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/private"
)

// A mode is allowed as by Nomad 2.0.4: by a pattern of its own list.
func TestAllowedModes(t *testing.T) {
	fields := map[string]func(mode string) *docker.TaskConfig{
		"pid_mode":    func(m string) *docker.TaskConfig { return &docker.TaskConfig{PidMode: m} },
		"ipc_mode":    func(m string) *docker.TaskConfig { return &docker.TaskConfig{IPCMode: m} },
		"uts_mode":    func(m string) *docker.TaskConfig { return &docker.TaskConfig{UTSMode: m} },
		"userns_mode": func(m string) *docker.TaskConfig { return &docker.TaskConfig{UsernsMode: m} },
	}
	for field, set := range fields {
		option := strings.TrimSuffix(field, "_mode")
		modes := func(allowed ...string) *allowedModes {
			return map[string]*allowedModes{
				"pid": {PID: allowed}, "ipc": {IPC: allowed}, "uts": {UTS: allowed}, "userns": {Userns: allowed},
			}[option]
		}
		must.NoError(t, modes().check(set("")))
		for _, mode := range []string{"host", "container:c", "private"} {
			err := modes().check(set(mode))
			must.ErrorContains(t, err, field+": must be allowed")
			must.ErrorContains(t, err, "allowed_modes { "+option+" = […] }")
			must.ErrorContains(t, err, `"`+mode+`"`)
			must.NoError(t, modes("x", mode).check(set(mode)))
		}
		must.NoError(t, modes("container:*").check(set("container:c")))
		must.Error(t, modes("container:*").check(set("host")))

		must.NoError(t, modes("host").validate())
		err := modes("host", "hosts").validate()
		must.ErrorContains(t, err, "allowed_modes."+option)
		must.ErrorContains(t, err, `"hosts"`)
	}
	must.Error(t, (&allowedModes{PID: []string{"host"}}).check(&docker.TaskConfig{PidMode: "host", IPCMode: "host"}))
	must.NoError(t, (&allowedModes{PID: []string{"container:*"}}).validate())
}

// The guard leaves the option to a driver that has it.
func TestSchema(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := NewDocker(ctx, hclog.NewNullLogger())
	inner, err := d.Driver.ConfigSchema()
	must.NoError(t, err)
	must.False(t, hasModes(inner), must.Sprint("the linked driver checks allowed_modes itself: remove that part of the guard"))
	spec, err := d.ConfigSchema()
	must.NoError(t, err)
	must.True(t, hasModes(spec))
	must.NotNil(t, spec.GetObject().GetAttributes()["volumes"])
	must.False(t, hasModes(inner), must.Sprint("the driver's schema is unchanged"))

	own := hclspec.NewObject(map[string]*hclspec.Spec{modesOption: hclspec.NewAttr(modesOption, "string", false)})
	must.True(t, withModes(own) == own)
}

func allocation(t *testing.T) *drivers.TaskConfig {
	alloc := filepath.Join(t.TempDir(), "allocs", "a1")
	for _, dir := range []string{"alloc/logs", "alloc/data", "train/local/in", "train/secrets", "other/local"} {
		must.NoError(t, os.MkdirAll(filepath.Join(alloc, dir), 0o755))
	}
	must.NoError(t, os.WriteFile(filepath.Join(alloc, "train/local/in/file"), []byte("own"), 0o644))
	return &drivers.TaskConfig{Name: "train", AllocDir: alloc, Env: map[string]string{taskenv.AllocDir: "/alloc"}}
}

// Tasks get their logs read-only, and no directory of Nomad's that has been replaced by a link.
func TestLogsReadOnly(t *testing.T) {
	cfg := allocation(t)
	cfg.Mounts = append(make([]*drivers.MountConfig, 0, 4), &drivers.MountConfig{TaskPath: "/volume"})
	guarded, err := withLogsReadOnly(cfg)
	must.NoError(t, err)
	must.Len(t, 1, cfg.Mounts)
	must.Len(t, 2, guarded.Mounts)
	must.Eq(t, &drivers.MountConfig{HostPath: cfg.AllocDir + "/alloc/logs", TaskPath: "/alloc/logs", Readonly: true}, guarded.Mounts[1])

	for _, dir := range []string{"alloc/logs", "train/local", "train/secrets"} {
		path := filepath.Join(cfg.AllocDir, dir)
		must.NoError(t, os.Rename(path, path+".was"))
		_, err := withLogsReadOnly(cfg)
		must.ErrorIs(t, err, os.ErrNotExist)
		must.NoError(t, os.Symlink("/", path))
		_, err = withLogsReadOnly(cfg)
		must.ErrorContains(t, err, "a task has replaced the directory "+path)
		must.NoError(t, os.Remove(path))
		must.NoError(t, os.Rename(path+".was", path))
	}
}

// start pins a task's mounts until release or the end of the test.
func start(t *testing.T, cfg *drivers.TaskConfig, task docker.TaskConfig) (docker.TaskConfig, *drivers.TaskConfig, func(), error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	guarded := *cfg
	release, err := pinMounts(&guarded, &dockerTask{TaskConfig: task, Progress: map[string]any{"metric": "loss"}})
	if err != nil {
		must.Eq(t, 0, pinned(t, cfg), must.Sprint("no pin is left"))
		return docker.TaskConfig{}, nil, nil, err
	}
	t.Cleanup(func() {
		release()
		must.Eq(t, 0, pinned(t, cfg), must.Sprint("no pin is left"))
		left, err := filepath.Glob(filepath.Join(cfg.AllocDir, private.DirName, "*"))
		must.NoError(t, err)
		must.SliceEmpty(t, left)
	})
	var got dockerTask
	must.NoError(t, guarded.DecodeDriverConfig(&got))
	must.Eq[any](t, "loss", got.Progress["metric"])
	return got.TaskConfig, &guarded, release, nil
}

func pinned(t *testing.T, cfg *drivers.TaskConfig) int {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(cfg.AllocDir))
	must.NoError(t, err)
	return len(mounts)
}

// A source that leads out of the allocation is rejected however it is written.
func TestPinRejects(t *testing.T) {
	cfg := allocation(t)
	host := t.TempDir()
	for name, to := range map[string]string{
		"absolute": host, "up": "../../../../..", "inside, absolute": cfg.AllocDir + "/alloc/data", "proc": "/proc/self/root",
		"twice": "absolute",
	} {
		must.NoError(t, os.Symlink(to, filepath.Join(cfg.AllocDir, "alloc/data", name)))
	}
	must.NoError(t, os.Symlink("../../.ebbtide", filepath.Join(cfg.AllocDir, "alloc/data/private")))
	must.NoError(t, os.Symlink("../..", filepath.Join(cfg.AllocDir, "alloc/data/all")))
	must.NoError(t, os.Mkdir(filepath.Join(cfg.AllocDir, private.DirName), 0o700))
	for source, want := range map[string]string{
		"../alloc/data/absolute":         "volumes { enabled = true }",
		"../alloc/data/absolute/new":     "volumes { enabled = true }",
		"../alloc/data/up":               "volumes { enabled = true }",
		"../alloc/data/inside, absolute": "volumes { enabled = true }",
		"../alloc/data/proc":             "volumes { enabled = true }",
		"../alloc/data/twice":            "volumes { enabled = true }",
		"../../a2":                       "volumes { enabled = true }",
		"/etc":                           "volumes { enabled = true }",
		"../alloc/data/private":          "private directory",
		"../alloc/data/all":              "private directory",
	} {
		bind := docker.DockerMount{Type: "bind", Source: source, Target: "/x"}
		for field, task := range map[string]docker.TaskConfig{
			"volumes":      {Volumes: []string{"local:/y", source + ":/x:ro"}},
			"mount.source": {Mounts: []docker.DockerMount{{Type: "bind", Source: "local", Target: "/y"}, bind}},
			"mount":        {MountsList: []docker.DockerMount{bind}},
		} {
			_, _, _, err := start(t, cfg, task)
			must.ErrorContains(t, err, field, must.Sprint(source))
			must.ErrorContains(t, err, want, must.Sprint(source))
			must.ErrorContains(t, err, source)
		}
	}
	left, err := os.ReadDir(host)
	must.NoError(t, err)
	must.SliceEmpty(t, left)
	_, _, _, err = start(t, cfg, docker.TaskConfig{Mounts: []docker.DockerMount{{Type: "bind", Source: "missing", Target: "/x"}}})
	must.ErrorIs(t, err, os.ErrNotExist)
}

// What was checked is what is mounted, even if the path is exchanged afterwards, and links within
// the allocation work.
func TestPinHolds(t *testing.T) {
	cfg := allocation(t)
	must.NoError(t, os.Symlink("../../train/local/in", filepath.Join(cfg.AllocDir, "alloc/data/link")))
	fifo := filepath.Join(cfg.AllocDir, "train/local/fifo")
	must.NoError(t, unix.Mkfifo(fifo, 0o600))
	task := docker.TaskConfig{
		Volumes: []string{"local/in:/in", "../alloc/data/link:/link:ro,z", "local/new/dir:/new", "local/fifo:/fifo", "one"},
		Mounts:  []docker.DockerMount{{Type: "bind", Source: "local/in/file", Target: "/file"}, {Type: "tmpfs", Target: "/t"}},
	}
	got, guarded, release, err := start(t, cfg, task)
	must.NoError(t, err)
	must.SliceEmpty(t, guarded.Mounts)
	must.Eq(t, "one", got.Volumes[4])
	must.Eq(t, docker.DockerMount{Type: "tmpfs", Target: "/t"}, got.Mounts[1])
	must.False(t, got.Mounts[0].ReadOnly)

	in := filepath.Join(cfg.AllocDir, "train/local/in")
	must.NoError(t, os.Rename(in, in+".was"))
	must.NoError(t, os.Symlink("/etc", in))
	for _, at := range []string{source(t, got.Volumes[0], "/in") + "/file", source(t, got.Volumes[1], "/link:ro,z") + "/file", got.Mounts[0].Source} {
		must.StrHasPrefix(t, filepath.Join(cfg.AllocDir, private.DirName)+"/", at)
		data, err := os.ReadFile(at)
		must.NoError(t, err)
		must.Eq(t, "own", string(data))
	}
	st, err := os.Stat(source(t, got.Volumes[2], "/new"))
	must.NoError(t, err)
	must.True(t, st.IsDir())
	st, err = os.Stat(source(t, got.Volumes[3], "/fifo"))
	must.NoError(t, err)
	must.Eq(t, os.ModeNamedPipe, st.Mode().Type())

	release()
	named := docker.TaskConfig{VolumeDriver: "nfs", Volumes: []string{"data:/x"}}
	got, _, _, err = start(t, cfg, named)
	must.NoError(t, err)
	must.Eq(t, named.Volumes, got.Volumes)
}

func source(t *testing.T, volume, rest string) string {
	t.Helper()
	source, target, _ := strings.Cut(volume, ":")
	must.Eq(t, rest, target)
	return source
}

// No mount gives a task its logs to write.
func TestPinLogs(t *testing.T) {
	cfg := allocation(t)
	must.NoError(t, os.WriteFile(filepath.Join(cfg.AllocDir, "alloc/logs/train.stdout.0"), nil, 0o644))
	got, guarded, _, err := start(t, cfg, docker.TaskConfig{
		Volumes: []string{"../alloc/logs:/l", "../alloc/logs/train.stdout.0:/f:rw", "../alloc:/a"},
		Mounts:  []docker.DockerMount{{Type: "bind", Source: "../alloc/logs", Target: "/m"}},
	})
	must.NoError(t, err)
	source(t, got.Volumes[0], "/l:ro")
	source(t, got.Volumes[1], "/f:ro")
	source(t, got.Volumes[2], "/a")
	must.True(t, got.Mounts[0].ReadOnly)
	must.Len(t, 1, guarded.Mounts)
	must.Eq(t, readOnly(cfg.AllocDir+"/alloc/logs", "/a/logs"), guarded.Mounts[0])
}

// A pin of a directory with mounts in it neither loses nor takes them, and pins left by a killed
// process are removed.
func TestPinSubmounts(t *testing.T) {
	cfg := allocation(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	secrets := filepath.Join(cfg.AllocDir, "train/secrets")
	must.NoError(t, unix.Mount("tmpfs", secrets, "tmpfs", 0, ""))
	t.Cleanup(func() { must.NoError(t, unix.Unmount(secrets, 0)) })
	must.NoError(t, unix.Mount("", secrets, "", unix.MS_SHARED, ""))
	must.NoError(t, os.WriteFile(secrets+"/key", []byte("x"), 0o600))

	guarded := *cfg
	release, err := pinMounts(&guarded, &dockerTask{TaskConfig: docker.TaskConfig{Volumes: []string{".:/x"}}})
	must.NoError(t, err)
	var got dockerTask
	must.NoError(t, guarded.DecodeDriverConfig(&got))
	_, err = os.Stat(source(t, got.Volumes[0], "/x") + "/secrets/key")
	must.NoError(t, err)
	for _, remove := range []func(){
		release,
		func() {
			_, err := pinMounts(&guarded, &dockerTask{TaskConfig: docker.TaskConfig{Volumes: []string{"local:/x", ".:/y"}}})
			must.NoError(t, err)
			sweep(filepath.Dir(cfg.AllocDir))
		},
	} {
		remove()
		must.Eq(t, 1, pinned(t, cfg), must.Sprint("the tmpfs"))
		_, err = os.Stat(secrets + "/key")
		must.NoError(t, err)
		_, err = os.Stat(cfg.AllocDir + "/train/local/in/file")
		must.NoError(t, err)
	}
	left, err := filepath.Glob(filepath.Join(cfg.AllocDir, private.DirName, "*"))
	must.NoError(t, err)
	must.SliceEmpty(t, left)
}
