// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/stream"
)

// signalled is a Nomad that records signals.
type signalled struct {
	move.Nomad
	got chan string
}

func (s signalled) Signal(_ context.Context, a *api.Allocation, task, signal string) error {
	s.got <- a.ID + " " + task + " " + signal
	return nil
}

// A task gets its history once, when its allocation starts on another node.
func TestRecall(t *testing.T) {
	s, _ := small()
	said := signalled{got: make(chan string, 10)}
	f := &follower{Shim: s.Shim, leading: t.Context(), store: s.cluster, nomad: said, changed: make(chan struct{}, 1), slots: make(chan struct{}, 1)}
	index := 100
	alloc := func(id, node, status, run string) {
		index++
		object := fmt.Sprintf(`{"Allocation": {"ID": %q, "Namespace": "ml", "JobID": "vae", "TaskGroup": "g", "NodeID": %q, "ClientStatus": %q, "DesiredStatus": "run",
			"ModifyIndex": %d, "TaskStates": {"train": {"Events": [{"Time": %d, "Details": {"ebbtide_run": %q}}]}}}}`, id, node, status, index, index, run)
		f.apply(stream.Event{Topic: api.TopicAllocation, Key: id, Index: uint64(index), Payload: json.RawMessage(object)})
		f.signals.Wait()
	}
	alloc("one", "a", "running", "")
	alloc("one", "a", "running", "cpu_s=5")
	alloc("one", "a", "complete", "cpu_s=5")
	alloc("two", "a", "running", "") // that node has the history
	must.SliceEmpty(t, received(said.got))
	alloc("three", "b", "pending", "")
	alloc("three", "b", "running", "")
	alloc("three", "b", "running", "")
	must.Eq(t, []string{"three train EBBTIDE_EARLIER cpu_s=5"}, received(said.got))
	dry := config.Default()
	dry.DryRun = true
	s.Shim.Reload(dry)
	alloc("four", "b", "running", "")
	must.SliceEmpty(t, received(said.got))
}

func received[T any](from chan T) (all []T) {
	for len(from) > 0 {
		all = append(all, <-from)
	}
	return all
}
