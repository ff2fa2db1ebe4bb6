// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/engine"
)

// seated returns the config of a task with a seat, as Nomad passes it: a device's variables are in
// both Env and DeviceEnv.
func seated(t *testing.T, s handoff.Handoff, env map[string]string, mounts ...*drivers.MountConfig) *drivers.TaskConfig {
	t.Helper()
	text, err := s.Encode()
	must.NoError(t, err)
	cfg := taskConfig(t, nil, nil)
	cfg.Mounts = mounts
	cfg.DeviceEnv = map[string]string{handoff.Variable: text, visibleDevices: "GPU-1"}
	maps.Copy(cfg.Env, cfg.DeviceEnv)
	maps.Copy(cfg.Env, env)
	return cfg
}

var ours = handoff.Handoff{Preload: "/opt/lib.so", Gate: "/run/gate", MemoryMiB: 81920, WaitMS: 5000}

func TestInjectGPUShare_loader(t *testing.T) {
	theirs := ours
	theirs.Gate = t.TempDir()
	mounted := func(engineName, own string, volumes ...*drivers.MountConfig) bool {
		t.Helper()
		cfg := seated(t, theirs, nil, volumes...)
		cfg.AllocDir = t.TempDir()
		root := cfg.TaskDir().Dir
		must.NoError(t, os.MkdirAll(filepath.Join(root, "etc"), 0o755))
		must.NoError(t, os.WriteFile(filepath.Join(root, "etc/ld.so.preload"), []byte(own), 0o644))
		_, _, err := injectGPUShare(cfg, engineName)
		must.NoError(t, err)
		last := cfg.Mounts[len(cfg.Mounts)-1]
		_, set := cfg.Env[handoff.EnvPreload]
		loader := *last == drivers.MountConfig{TaskPath: "/etc/ld.so.preload", HostPath: theirs.Gate + "/ld.so.preload", Readonly: true}
		must.Eq(t, !loader, set, must.Sprint("LD_PRELOAD is set, the job's or the image's is replaced"))
		return loader
	}
	must.False(t, mounted(engine.Exec, ""), must.Sprint("the plugin has none"))
	must.NoError(t, handoff.WriteLoader(theirs.Gate))
	must.True(t, mounted(engine.Exec, ""))
	must.True(t, mounted(engine.Docker, "not in the image's root"))
	must.False(t, mounted(engine.Exec, "/own.so"))
	must.False(t, mounted(engine.Exec, "", &drivers.MountConfig{TaskPath: "/etc", HostPath: "/srv"}))
	must.False(t, mounted(engine.Docker, "", &drivers.MountConfig{TaskPath: "/etc/ld.so.preload", HostPath: "/srv/x"}))
}

func TestInjectGPUShare(t *testing.T) {
	volume := &drivers.MountConfig{TaskPath: "/data", HostPath: "/srv/data"}
	cfg := seated(t, ours, map[string]string{"LD_PRELOAD": "/their.so", "NOMAD_META_ebbtide_gpu_memory": "81920"}, volume)
	notes, _, err := injectGPUShare(cfg, engine.Docker)
	must.NoError(t, err)
	must.SliceEmpty(t, notes)
	must.Eq(t, []*drivers.MountConfig{
		volume,
		{TaskPath: handoff.TaskPreload, HostPath: "/opt/lib.so", Readonly: true}, {TaskPath: handoff.TaskGate, HostPath: "/run/gate", Readonly: true},
	}, cfg.Mounts)
	must.Eq(t, map[string]string{
		"PATH": "/bin", "NOMAD_META_ebbtide_gpu_memory": "81920", visibleDevices: "GPU-1",
		"LD_PRELOAD": handoff.TaskPreload + ":/their.so", "EBBTIDE_GATE": "/run/ebbtide/gate.sock", "EBBTIDE_GATE_WAIT_MS": "5000",
	}, cfg.Env)
	must.Eq(t, map[string]string{visibleDevices: "GPU-1"}, cfg.DeviceEnv)

	cfg = seated(t, ours, map[string]string{"EBBTIDE_GATE_WAIT_MS": "7"})
	notes, _, err = injectGPUShare(cfg, engine.Exec)
	must.NoError(t, err)
	must.Len(t, 1, notes)
	must.StrContains(t, notes[0], `inject = "devices"`)
	must.Eq(t, "7", cfg.Env["EBBTIDE_GATE_WAIT_MS"])
	must.Len(t, 2, cfg.Mounts)

	old := ours
	old.Unparked = "the driver is of version 535.54; it must be 575.57 or later"
	cfg = seated(t, old, nil)
	notes, _, err = injectGPUShare(cfg, engine.Docker)
	must.NoError(t, err)
	must.Eq(t, []string{"GPU: memory cannot be parked on this node: the driver is of version 535.54; it must be 575.57 or later"}, notes)
	must.Len(t, 2, cfg.Mounts, must.Sprint("it has its share all the same"))
}

// Of two device blocks Nomad keeps the last one's variables; a whole card needs no share.
func TestInjectGPUShare_several(t *testing.T) {
	one, two := ours, ours
	one.Tasks, one.Cards, one.Seats = "/run/tasks", []string{"GPU-1"}, []string{"GPU-1/0"}
	two.Tasks, two.Cards, two.Seats = "/run/tasks", []string{"GPU-2"}, []string{"GPU-2/3"}
	cfg := seated(t, one, nil)
	text, err := two.Encode()
	must.NoError(t, err)
	cfg.DeviceEnv[handoff.Variable+"_2"] = text
	_, files, err := injectGPUShare(cfg, engine.Docker)
	must.NoError(t, err)
	must.Eq(t, []string{"GPU-1/0", "GPU-2/3"}, files.is.Seats)
	must.Eq(t, "GPU-1,GPU-2", cfg.Env[visibleDevices])
	must.Eq(t, map[string]string{visibleDevices: "GPU-1,GPU-2"}, cfg.DeviceEnv)

	cfg = seated(t, handoff.Handoff{Whole: true, Tasks: "/run/tasks", Cards: []string{"GPU-1"}, Seats: []string{"GPU-1"}}, map[string]string{"NOMAD_META_ebbtide_gpu_memory": "7"})
	notes, files, err := injectGPUShare(cfg, engine.Docker)
	must.NoError(t, err)
	must.Len(t, 1, notes)
	must.StrContains(t, notes[0], "GPU: ignored: meta.ebbtide_gpu_memory")
	must.Eq(t, []string{"GPU-1"}, files.is.Seats)
	must.SliceEmpty(t, cfg.Mounts)
	must.MapNotContainsKey(t, cfg.Env, handoff.EnvGate)
}

func TestInjectGPUShare_noShare(t *testing.T) {
	readOnly := &drivers.MountConfig{TaskPath: "/run", HostPath: t.TempDir(), Readonly: true}
	for want, cfg := range map[string]*drivers.TaskConfig{
		"GPU: the job runs without a share of the memory: there is no gate":                          seated(t, handoff.Handoff{Notice: "there is no gate"}, nil),
		"GPU: the job runs without a share of the memory: reading EBBTIDE_GPU_HANDOFF: invalid":      {DeviceEnv: map[string]string{handoff.Variable: "{]"}},
		"memory: reading EBBTIDE_GPU_HANDOFF: memory_mib: must be ≥ 0":                               {DeviceEnv: map[string]string{handoff.Variable: `{"notice":"x","memory_mib":-1}`}},
		"memory: /run/ebbtide cannot be mounted in the task's read-only volume at /run":              seated(t, ours, nil, readOnly),
		"GPU: ignored: meta.ebbtide_gpu_group, meta.ebbtide_gpu_memory; the task has no shared seat": taskConfig(t, nil, map[string]string{"ebbtide_gpu_memory": "1", "ebbtide_gpu_group": "a", "ebbtide_priority": "1"}),
	} {
		before := len(cfg.Mounts)
		notes, _, err := injectGPUShare(cfg, engine.Docker)
		must.NoError(t, err)
		must.Len(t, 1, notes)
		must.StrContains(t, notes[0], want)
		must.Len(t, before, cfg.Mounts)
		for _, name := range []string{handoff.Variable, handoff.EnvPreload, handoff.EnvGate} {
			must.MapNotContainsKey(t, cfg.Env, name)
		}
	}

	must.NoError(t, os.Mkdir(filepath.Join(readOnly.HostPath, "ebbtide"), 0o755))
	notes, _, err := injectGPUShare(seated(t, ours, nil, readOnly), engine.Docker)
	must.NoError(t, err)
	must.SliceEmpty(t, notes)
}

// A job cannot mount host files through its environment.
func TestInjectGPUShare_forged(t *testing.T) {
	text, err := handoff.Handoff{Preload: "/etc/shadow", Gate: "/root"}.Encode()
	must.NoError(t, err)
	for _, device := range []map[string]string{nil, {visibleDevices: "GPU-1"}, {handoff.EnvGate: "/run/ebbtide/gate.sock"}} {
		cfg := &drivers.TaskConfig{Env: map[string]string{handoff.Variable: text}, DeviceEnv: device}
		notes, _, err := injectGPUShare(cfg, engine.Docker)
		must.NoError(t, err)
		must.SliceEmpty(t, notes)
		must.SliceEmpty(t, cfg.Mounts)
		must.MapEmpty(t, cfg.Env)
	}
	cfg := taskConfig(t, nil, map[string]string{"ebbtide_gpu_memory": "1"})
	cfg.DeviceEnv = map[string]string{handoff.EnvGate: "/run/ebbtide/gate.sock"}
	notes, _, err := injectGPUShare(cfg, engine.Docker)
	must.NoError(t, err)
	must.SliceEmpty(t, notes)
}

func TestStartTask_wish(t *testing.T) {
	d, _, _, _ := waiting(t, found{err: engine.ErrGone})
	cfg := seated(t, ours, map[string]string{"NOMAD_META_ebbtide_gpu_memory": "99999", "NOMAD_META_ebbtide_gaol": "x"})
	_, _, err := d.StartTask(cfg)
	must.ErrorContains(t, err, "meta.ebbtide_gpu_memory: must be at most 81920, the card's memory in MiB, got 99999")
	must.ErrorContains(t, err, "meta.ebbtide_gaol: unknown key")
}

// When its agent restarts, Nomad keeps a device's environment, but not its mounts.
func TestStartTask_seat(t *testing.T) {
	d, first, _, messages := waiting(t, found{err: engine.ErrGone})
	first.started = make(chan *drivers.TaskConfig, 2)
	for range 2 {
		cfg := seated(t, ours, nil)
		cfg.AllocDir = t.TempDir()
		_, _, err := d.StartTask(cfg)
		must.NoError(t, err)
		got := <-first.started
		must.Len(t, 2, got.Mounts)
		must.Eq(t, handoff.TaskPreload, got.Env["LD_PRELOAD"])
		must.MapNotContainsKey(t, got.Env, handoff.Variable)
	}
	cfg := seated(t, handoff.Handoff{Notice: "there is no gate"}, nil)
	cfg.AllocDir = t.TempDir()
	_, _, err := d.StartTask(cfg)
	must.NoError(t, err)
	message(t, messages, "ebbtide: GPU: the job runs without a share of the memory: there is no gate")

	first.refuse = errors.New(`requested docker runtime "nvidia" was not found`)
	_, _, err = d.StartTask(seated(t, ours, nil))
	must.ErrorIs(t, err, first.refuse)
	must.ErrorContains(t, err, `install the NVIDIA container toolkit`)
	must.ErrorContains(t, err, `inject = "devices"`)
	first.refuse = errors.New("no such image")
	_, _, err = d.StartTask(seated(t, ours, nil))
	must.EqError(t, err, "no such image")
}
