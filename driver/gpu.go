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

// visibleDevices is the variable by which NVIDIA's container runtime gives a card.
const visibleDevices = "NVIDIA_VISIBLE_DEVICES"

// noShareNotice begins the event of a task that has its card as it would have it without us.
const noShareNotice = "GPU: the job runs without a share of the memory: "

// injectGPUShare gives a task what belongs to its seat on a card, of which the device plugin tells in a
// variable. That is taken out of the environment. What speaks against a share of the card's
// memory is no reason against the task: injectGPUShare returns it for people. Only a wish that no
// moment could fulfil is an error.
//
// It does so at every start, for Nomad forgets a device's mounts with its agent.
//
// files are those by which plugin and driver tell each other of the task.
func injectGPUShare(cfg *drivers.TaskConfig, engineName string) (notes []string, files gpuFiles, err error) {
	// Not from Env: there a job could name any file of the host for us to mount.
	text, seated := cfg.DeviceEnv[handoff.Variable]
	delete(cfg.DeviceEnv, handoff.Variable)
	delete(cfg.Env, handoff.Variable)
	meta := readMeta(cfg.Env)
	if !seated {
		// The plugin may give its things itself.
		if _, given := cfg.DeviceEnv[handoff.EnvGate]; !given {
			notes = ignoredOptions(meta)
		}
		return notes, gpuFiles{}, nil
	}
	if _, byRuntime := cfg.DeviceEnv[visibleDevices]; byRuntime && engineName == engine.Exec {
		notes = append(notes, `GPU: the exec engine has no NVIDIA runtime that would bring the card; set inject = "devices" in the configuration of the plugin ebbtide-gpu`)
	}
	s, err := handoff.Decode(text)
	if err != nil {
		return append(notes, noShareNotice+err.Error()), gpuFiles{}, nil
	}
	if err := checkWish(meta, s); err != nil {
		return nil, gpuFiles{}, err
	}
	if s.Notice != "" {
		notes = append(notes, noShareNotice+s.Notice)
	}
	if s.Unparked != "" {
		notes = append(notes, "GPU: nobody's memory makes room for others on this node: "+s.Unparked)
	}
	for _, m := range s.Mounts() {
		if at := covered(cfg.Mounts, m.Task); at != "" {
			return append(notes, fmt.Sprintf("%s%s cannot be mounted in the task's read-only volume at %s", noShareNotice, m.Task, at)), gpuFiles{}, nil
		}
	}
	mounts := s.Mounts()
	if loader := s.Loader(); s.Shares() && hasRoomFor(cfg, engineName, loader) {
		mounts = append(mounts, loader)
	}
	for _, m := range mounts {
		cfg.Mounts = append(cfg.Mounts, &drivers.MountConfig{TaskPath: m.Task, HostPath: m.Host, Readonly: true})
	}
	if cfg.Env == nil {
		cfg.Env = make(map[string]string)
	}
	maps.Copy(cfg.Env, s.Environment(cfg.Env))
	if s.Reports != "" {
		files.report = handoff.ReportPath(s.Reports, cfg.AllocID, cfg.Name)
	}
	if s.Tasks != "" {
		files.identity = handoff.IdentityPath(s.Tasks, cfg.AllocID, cfg.Name)
		files.is = handoff.Identity{Job: cfg.JobID, Group: cfg.TaskGroupName, Namespace: cfg.Namespace, Meta: meta, Cards: s.Cards, Seats: s.Seats}
	}
	return notes, files, nil
}

// gpuFiles are the files by which plugin and driver tell each other of a task with a seat.
type gpuFiles struct {
	report   string // how it fares; "" = there is none
	identity string // what it is; "" = nobody asks
	is       handoff.Identity
}

// introduce tells the plugin what a task is. Without that its processes are asked.
func (d *Driver) introduce(f gpuFiles) {
	if f.identity == "" {
		return
	}
	if err := handoff.WriteIdentity(f.identity, f.is); err != nil {
		d.logger.Warn("the GPU plugin believes what a task says of itself", "error", err)
	}
}

// disown removes what introduce has written, if anything.
func (d *Driver) disown(identity string) {
	if identity == "" {
		return
	}
	if err := handoff.RemoveIdentity(identity); err != nil {
		d.logger.Warn("a file about a task that is gone is left", "error", err)
	}
}

// ignoredOptions says which wishes are of no use to a task without a seat.
func ignoredOptions(meta map[string]string) []string {
	keys := options.WithoutSeat(meta)
	if len(keys) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("GPU: without effect: %s; the task has no seat that is shared (resources { device %q {} })", "meta."+strings.Join(keys, ", meta."), "nvidia/share")}
}

// checkWish refuses a task that wants more than its card has. What is no number has been
// refused before.
func checkWish(meta map[string]string, s handoff.Handoff) error {
	wish, err := strconv.ParseInt(meta[options.KeyGPUMemory], 10, 64)
	if err != nil || s.MemoryMiB == 0 || wish <= s.MemoryMiB {
		return nil
	}
	return fmt.Errorf("meta.%s: must be at most %d, the card's memory in MiB, got %d", options.KeyGPUMemory, s.MemoryMiB, wish)
}

// hasRoomFor says whether a file can be mounted without taking the place of one of the task's
// own, as far as that can be seen: of an image it cannot.
func hasRoomFor(cfg *drivers.TaskConfig, engineName string, m handoff.Mount) bool {
	if _, err := os.Stat(m.Host); err != nil {
		return false // the plugin is of an earlier version
	}
	if engineName == engine.Exec {
		// An empty one is what is left of a mount of before.
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

// covered returns where a volume is mounted in which nothing can be mounted at a path,
// because it can only be read and has nothing there; "" if there is none.
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

// within returns what is left of a path in the task beneath a mount, and whether it is there.
func within(m *drivers.MountConfig, path string) (rest string, inside bool) {
	rest, err := filepath.Rel(m.TaskPath, path)
	return rest, err == nil && !strings.HasPrefix(rest, "..")
}

// explainRuntime says what to do when Docker does not know the runtime that brings a card.
func explainRuntime(cfg *drivers.TaskConfig, err error) error {
	if _, ok := cfg.DeviceEnv[visibleDevices]; !ok || !strings.Contains(err.Error(), "requested docker runtime") {
		return err
	}
	return fmt.Errorf(`%w: install the NVIDIA container toolkit and make its runtime known to Docker (nvidia-ctk runtime configure), `+
		`or hand out device nodes: inject = "devices" in the configuration of the plugin ebbtide-gpu`, err)
}
