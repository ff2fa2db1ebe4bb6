// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/progress"
)

// Nomad's client stores a handle without unexported fields, so without the driver config.
func TestOptionsOutliveTheDriverConfig(t *testing.T) {
	t.Parallel()
	handle := drivers.NewTaskHandle(1)
	handle.Config = &drivers.TaskConfig{ID: "a/train/1", Name: "train", Env: map[string]string{"A": "b"}}
	must.NoError(t, handle.Config.EncodeConcreteDriverConfig(map[string]any{"progress": map[string]any{"metric": "acc"}}))
	must.NoError(t, handle.SetDriverState(map[string]any{"Pid": 7}))
	want := &options.Task{Limit: false, Progress: progress.Config{Metric: "acc", Goal: "max"}}

	kept, err := withOptions(handle, want)
	must.NoError(t, err)
	must.MapNotContainsKey(t, handle.Config.Env, optionsEnv) // the handle passed to the decorated driver

	var disk []byte
	must.NoError(t, base.MsgPackEncode(&disk, kept))
	var back drivers.TaskHandle
	must.NoError(t, base.MsgPackDecode(disk, &back))
	_, err = readTaskOptions(back.Config)
	must.Error(t, err) // which is why optionsEnv exists

	inner, got, err := takeOptions(&back)
	must.NoError(t, err)
	must.Eq(t, want, got)
	must.Eq(t, map[string]string{"A": "b"}, inner.Config.Env)
	must.Eq(t, handle.DriverState, inner.DriverState)
}

func TestOptionsOfAStockHandle(t *testing.T) {
	t.Parallel()
	handle := drivers.NewTaskHandle(1)
	handle.Config = &drivers.TaskConfig{ID: "a/train/1", Name: "train"}
	must.NoError(t, handle.Config.EncodeConcreteDriverConfig(map[string]any{"command": "x"}))
	inner, got, err := takeOptions(handle)
	must.NoError(t, err)
	must.Eq(t, handle, inner)
	must.Eq(t, plainOptions(), got)
}
