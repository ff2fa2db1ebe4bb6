// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/options"
)

// visibleDevices is the variable that makes NVIDIA's container runtime provide a card.
const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

// noShareNotice begins the event of a task that has its card to itself.
const noShareNotice = "GPU: the job runs without a share of the memory: "

// injectGPUShare adds the mounts and environment of a task's seat on a card. The device plugin
// describes the seat in a variable, which is removed here. Obstacles to sharing are returned as
// notes; only a request that the card cannot satisfy is an error.
//
// It runs at every start, because Nomad's agent loses a device's mounts on restart.
func injectGPUShare(cfg *drivers.TaskConfig, engineName string) (notes []string, files gpuFiles, err error) {
	// Env is not trusted: a job could name any host file to be mounted.
	s, seated, err := handoff.Take(cfg.DeviceEnv)
	_, _, _ = handoff.Take(cfg.Env)
	if cfg.Env == nil {
		cfg.Env = make(map[string]string)
	}
	meta := readMeta(cfg.Env)
	if !seated {
		// Without handoff, the device plugin sets up the gate itself.
		if _, given := cfg.DeviceEnv[handoff.EnvGate]; !given {
			notes = ignoredOptions(meta)
		}
		return notes, gpuFiles{}, nil
	}
	if _, byRuntime := cfg.DeviceEnv[visibleDevices]; byRuntime && engineName == engine.Exec {
		notes = append(notes, `GPU: the exec engine has no NVIDIA runtime to provide the card; set inject = "devices" in the configuration of the plugin ebbtide-gpu`)
	}
	if err != nil {
		return append(notes, noShareNotice+err.Error()), gpuFiles{}, nil
	}
	// Nomad keeps the variables of the last device block only.
	if _, byRuntime := cfg.DeviceEnv[visibleDevices]; byRuntime && len(s.Cards) > 0 {
		cfg.DeviceEnv[visibleDevices] = strings.Join(s.Cards, ",")
		cfg.Env[visibleDevices] = cfg.DeviceEnv[visibleDevices]
	}
	if s.Whole {
		notes = append(notes, ignoredOptions(meta)...)
	}
	if err := checkMemory(meta, s); err != nil {
		return nil, gpuFiles{}, err
	}
	if s.Notice != "" {
		notes = append(notes, noShareNotice+s.Notice)
	}
	if s.Unparked != "" {
		notes = append(notes, "GPU: memory cannot be parked on this node: "+s.Unparked)
	}
	for _, m := range s.Mounts() {
		if at := covered(cfg.Mounts, m.Task); at != "" {
			return append(notes, fmt.Sprintf("%s%s cannot be mounted in the task's read-only volume at %s", noShareNotice, m.Task, at)), gpuFiles{}, nil
		}
	}
	mounts := s.Mounts()
	loader := s.Shares() && canMount(cfg, engineName, s.Loader())
	if loader {
		mounts = append(mounts, s.Loader())
	}
	for _, m := range mounts {
		cfg.Mounts = append(cfg.Mounts, &drivers.MountConfig{TaskPath: m.Task, HostPath: m.Host, Readonly: true})
	}
	maps.Copy(cfg.Env, s.Environment(cfg.Env, loader))
	if s.Reports != "" {
		files.report = handoff.ReportPath(s.Reports, cfg.AllocID, cfg.Name)
	}
	if s.Tasks != "" {
		files.identity = handoff.IdentityPath(s.Tasks, cfg.AllocID, cfg.Name)
		files.is = handoff.Identity{Job: cfg.JobID, Group: cfg.TaskGroupName, Namespace: cfg.Namespace, Meta: meta, Cards: s.SharedCards(), Seats: s.Seats}
	}
	return notes, files, nil
}

// gpuFiles are the paths of the files that the driver and the device plugin exchange about a task
// with a seat.
type gpuFiles struct {
	report   string // the task's GPU use; "" = none
	identity string // the task's identity; "" = not requested
	is       handoff.Identity
}

func (d *Driver) writeIdentity(f gpuFiles) {
	if f.identity == "" {
		return
	}
	if err := handoff.WriteIdentity(f.identity, f.is); err != nil {
		d.logger.Warn("cannot write the task's identity; the GPU plugin has to trust the task's own", "error", err)
	}
}

func (d *Driver) removeIdentity(identity string) {
	if identity == "" {
		return
	}
	if err := handoff.RemoveIdentity(identity); err != nil {
		d.logger.Warn("cannot remove the identity file of an ended task", "error", err)
	}
}

func ignoredOptions(meta map[string]string) []string {
	keys := options.WithoutSeat(meta)
	if len(keys) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("GPU: ignored: %s; the task has no shared seat (resources { device %q {} })", "meta."+strings.Join(keys, ", meta."), "nvidia/share")}
}

// checkMemory rejects a request for more memory than the card has. A value that is not a number has
// been rejected already.
func checkMemory(meta map[string]string, s handoff.Handoff) error {
	wish, err := strconv.ParseInt(meta[options.KeyGPUMemory], 10, 64)
	if err != nil || s.MemoryMiB == 0 || wish <= s.MemoryMiB {
		return nil
	}
	return fmt.Errorf("meta.%s: must be at most %d, the card's memory in MiB, got %d", options.KeyGPUMemory, s.MemoryMiB, wish)
}

// canMount reports whether a mount would hide no file of the task. Files in an image cannot be
// seen.
func canMount(cfg *drivers.TaskConfig, engineName string, m handoff.Mount) bool {
	if _, err := os.Stat(m.Host); err != nil {
		return false // of an earlier version of the plugin
	}
	if engineName == engine.Exec {
		// An earlier mount leaves an empty file.
		if own, err := os.Lstat(filepath.Join(cfg.TaskDir().Dir, m.Task)); err == nil && own.Size() > 0 {
			return false
		}
	}
	own := slices.ContainsFunc(cfg.Mounts, func(v *drivers.MountConfig) bool {
		_, inside := within(v, m.Task)
		return inside
	})
	return !own
}

// covered returns the read-only volume in which path cannot be mounted; "" if there is none.
func covered(mounts []*drivers.MountConfig, path string) string {
	for _, m := range mounts {
		rest, inside := within(m, path)
		if !m.Readonly || !inside {
			continue
		}
		if _, err := os.Stat(filepath.Join(m.HostPath, rest)); err != nil {
			return m.TaskPath
		}
	}
	return ""
}

// within returns path relative to a mount, and whether it is below the mount.
func within(m *drivers.MountConfig, path string) (rest string, inside bool) {
	rest, err := filepath.Rel(m.TaskPath, path)
	return rest, err == nil && !strings.HasPrefix(rest, "..")
}

// explainRuntime adds advice to Docker's error about an unknown runtime.
func explainRuntime(cfg *drivers.TaskConfig, err error) error {
	if _, ok := cfg.DeviceEnv[visibleDevices]; !ok || !strings.Contains(err.Error(), "requested docker runtime") {
		return err
	}
	return fmt.Errorf(`%w: install the NVIDIA container toolkit and make its runtime known to Docker (nvidia-ctk runtime configure), `+
		`or hand out device nodes: inject = "devices" in the configuration of the plugin ebbtide-gpu`, err)
}
