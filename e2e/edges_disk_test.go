// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// TestFullDisk: a client whose disk is fuller than its gc_disk_usage_threshold deletes an allocation
// once it has ended. A move from or to it is refused, and the job runs on.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	s := newSiteOf(t, 1, nil)
	full := newCluster(t, s.h, "exec", clusterOptions{agent: harness.AgentConfig{
		Name: "full", Join: s.server, GCDisk: 0.01,
	}})
	names := []string{"from-full", "to-full"}
	for i, at := range []*cluster{full, s.b} {
		for _, c := range []*cluster{s.a, s.b, full} {
			s.eligible(t, c, c == at)
		}
		alloc := at.start(t, learner(names[i]))
		before := at.waitStatus(t, alloc, "train", "learning", func(st status.Status) bool { return st.Step > 3 })
		s.eligible(t, s.a, true)
		s.eligible(t, full, true)
		to := s.a
		if at != full {
			to = full
		}
		exit, result, told := ebbtideMove(s.server, alloc.ID, to.agent.NodeID())
		must.Eq(t, 1, exit, must.Sprint(told))
		must.StrContains(t, told, "node full would delete the checkpoint with the ended allocation: its disk is ")
		must.StrContains(t, told, "(gc_disk_usage_threshold 0.01)")
		must.Eq(t, "", result.NewAlloc)
		after := at.waitStatus(t, alloc, "train", "learning on", func(st status.Status) bool { return st.Step > before.Step+3 })
		must.Eq(t, "", after.Move.State)
		must.Eq(t, 0, countEvents(t, at, alloc, "train", "checkpoint saved"))
	}

	// What is refused: Nomad itself finds nothing to migrate.
	s.eligible(t, full, false)
	stubs, err := full.agent.Allocs(deadline(t, stepDeadline), names[0])
	must.NoError(t, err)
	must.Len(t, 1, stubs)
	_, err = s.server.API.Allocations().Stop(&api.Allocation{ID: stubs[0].ID, Namespace: stubs[0].Namespace}, nil)
	must.NoError(t, err)
	eventually(t, "it starts over", func() error {
		stubs, err := full.agent.Allocs(deadline(t, stepDeadline), names[0])
		if err != nil {
			return err
		}
		for _, stub := range stubs {
			if stub.NodeID == full.agent.NodeID() || stub.ClientStatus != api.AllocClientStatusRunning {
				continue
			}
			data, err := s.a.agent.Cat(deadline(t, stepDeadline), &api.Allocation{ID: stub.ID, NodeID: stub.NodeID, Namespace: stub.Namespace}, "alloc/data/starts")
			// While the file does not exist, the answer may be status 200 with an error's text. If the
			// directory is deleted while Nomad copies it, "error making snapshot" follows in the stream,
			// and its first bytes become the file's two.
			if starts := strings.TrimSpace(string(data)); err == nil && starts != "0" && starts != "er0" {
				return fmt.Errorf("it started at %q", starts)
			}
			return err
		}
		return errors.New("it does not run elsewhere")
	})
}
