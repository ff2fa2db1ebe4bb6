// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hashicorp/nomad/plugins/drivers"

	"github.com/ebbtide/ebbtide/driver/options"
)

// optionsEnv is a key in the environment of a handle's config, never the task's, that carries the
// task's options.
//
// Nomad's client stores a handle without the task's driver config, and recovers from the handle
// alone if both agent and plugin have exited. The decorated driver's state in the handle is
// unchanged, so a stock driver can recover the task, too.
const optionsEnv = "EBBTIDE_TASK_OPTIONS"

func withOptions(handle *drivers.TaskHandle, opts *options.Task) (*drivers.TaskHandle, error) {
	data, err := json.Marshal(opts)
	if err != nil {
		return nil, fmt.Errorf("encoding the options of task %q: %w", handle.Config.Name, err)
	}
	h := handle.Copy()
	if h.Config.Env == nil {
		h.Config.Env = make(map[string]string)
	}
	h.Config.Env[optionsEnv] = string(data)
	return h, nil
}

// takeOptions is the inverse of withOptions. A stock driver's handle has no options; they are read
// from its config.
func takeOptions(handle *drivers.TaskHandle) (*drivers.TaskHandle, *options.Task, error) {
	data, ok := handle.Config.Env[optionsEnv]
	if !ok {
		opts, err := readTaskOptions(handle.Config)
		return handle, opts, err
	}
	h := handle.Copy()
	delete(h.Config.Env, optionsEnv)
	var opts options.Task
	if err := json.Unmarshal([]byte(data), &opts); err != nil {
		return h, nil, fmt.Errorf("decoding the options of task %q: %w", h.Config.Name, err)
	}
	return h, &opts, errors.Join(opts.Progress.Validate(), opts.CheckTargets())
}
