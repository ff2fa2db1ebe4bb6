// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package guard

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	containerapi "github.com/docker/docker/api/types/container"
	"github.com/hashicorp/nomad/drivers/docker"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/ryanuber/go-glob"
)

const modesOption = "allowed_modes"

// allowedModes is the docker driver's option of Nomad 2.0.4 and 1.11.8: the namespace modes that
// jobs may set without allow_privileged, as patterns.
type allowedModes struct {
	PID    []string `codec:"pid"`
	IPC    []string `codec:"ipc"`
	Userns []string `codec:"userns"`
	UTS    []string `codec:"uts"`
}

func (m *allowedModes) validate() error {
	var errs []error
	check := func(name string, modes []string, valid func(string) bool) {
		for _, mode := range modes {
			if !valid(mode) {
				errs = append(errs, fmt.Errorf("%s.%s: must have modes that Docker knows, got %q", modesOption, name, mode))
			}
		}
	}
	check("pid", m.PID, func(s string) bool { return containerapi.PidMode(s).Valid() })
	check("ipc", m.IPC, func(s string) bool { return containerapi.IpcMode(s).Valid() })
	check("userns", m.Userns, func(s string) bool { return containerapi.UsernsMode(s).Valid() })
	check("uts", m.UTS, func(s string) bool { return containerapi.UTSMode(s).Valid() })
	return errors.Join(errs...)
}

// check rejects modes that are set and not allowed.
func (m *allowedModes) check(task *docker.TaskConfig) error {
	var errs []error
	for _, is := range []struct {
		field, mode, option string
		allowed             []string
	}{
		{"pid_mode", task.PidMode, "pid", m.PID},
		{"ipc_mode", task.IPCMode, "ipc", m.IPC},
		{"uts_mode", task.UTSMode, "uts", m.UTS},
		{"userns_mode", task.UsernsMode, "userns", m.Userns},
	} {
		if is.mode == "" || slices.ContainsFunc(is.allowed, func(p string) bool { return glob.Glob(p, is.mode) }) {
			continue
		}
		errs = append(errs, fmt.Errorf("%s: must be allowed by the plugin's docker option %s { %s = […] } or allow_privileged, got %q",
			is.field, modesOption, is.option, is.mode))
	}
	return errors.Join(errs...)
}

func hasModes(spec *hclspec.Spec) bool { return spec.GetObject().GetAttributes()[modesOption] != nil }

func withModes(spec *hclspec.Spec) *hclspec.Spec {
	if hasModes(spec) {
		return spec
	}
	modes := make(map[string]*hclspec.Spec)
	for _, name := range []string{"pid", "ipc", "userns", "uts"} {
		modes[name] = hclspec.NewDefault(hclspec.NewAttr(name, "list(string)", false), hclspec.NewLiteral("[]"))
	}
	attrs := maps.Clone(spec.GetObject().GetAttributes())
	attrs[modesOption] = hclspec.NewBlock(modesOption, false, hclspec.NewObject(modes))
	return hclspec.NewObject(attrs)
}
