// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/cli"
	state "github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
)

func (s *site) moves(t *testing.T, args ...string) string {
	t.Helper()
	var out, errs bytes.Buffer
	must.Zero(t, cli.Run(append([]string{"moves", "-address", s.server.Addr}, args...), nil, &out, &errs), must.Sprint(&errs))
	t.Log(errs.String())
	return out.String()
}

// testMoverKilled: `ebbtide move` is killed with its job bound, and another process finishes the
// move.
func testMoverKilled(t *testing.T, m *moving, d *apiProxy) {
	first, in := m.holdIn(d, bound)
	path, err := m.h.Tools.CLI(deadline(t, startDeadline))
	must.NoError(t, err)
	p, err := m.h.Start(deadline(t, startDeadline), "mover", []string{path, "move", "-address", d.URL, m.alloc.ID, m.b.agent.NodeID()}, nil)
	must.NoError(t, err)
	first.await(t, string(frozen))
	first.release()
	in.await(t, string(bound))
	must.NoError(t, p.Signal(unix.SIGKILL))
	_ = p.Wait(deadline(t, stepDeadline))
	in.release()
	must.NotEq(t, "", m.boundTo(t))
	must.StrContains(t, m.moves(t), "in progress: bind")
	jobs, _, err := state.ListJobs(deadline(t, stepDeadline), m.server.API)
	must.NoError(t, err)
	must.SliceContainsFunc(t, jobs, m.id, func(j *state.Job, id string) bool { return j.Key.ID == id && j.Bound() != "" }, must.Sprint("it has no meta"))

	m.moves(t, "-recover")
	now, starts := m.checkOnce(t)
	must.Eq(t, "b", now.NodeName)
	must.Len(t, 2, starts)
	must.StrNotContains(t, m.moves(t), "in progress")
}

// testTwoMovers: the second of two concurrent moves is refused.
func testTwoMovers(t *testing.T, m *moving, d *apiProxy) {
	m.inFrozen(t, d, func() {
		opts := move.DefaultOptions()
		opts.Claims, opts.Owner = claimsOf(m.server.API), "second"
		_, err := move.Move(t.Context(), nomadOf(m.server.API), move.Request{Alloc: m.alloc.ID, Node: m.b.agent.NodeID()}, opts)
		must.ErrorIs(t, err, move.ErrClaimed)
	})
	must.NoError(t, m.err)
	now, starts := m.checkOnce(t)
	must.Eq(t, "b", now.NodeName)
	must.Len(t, 2, starts)
}

// testSourceKilledCarrying: the source's agent is killed during the disk's migration; Nomad
// starts the new allocation with an empty disk, and the move is rolled back.
func testSourceKilledCarrying(t *testing.T, m *moving, d *apiProxy) {
	big, err := os.Create(filepath.Join(m.a.agent.AllocDir(m.alloc.ID), "alloc", "data", "big"))
	must.NoError(t, err)
	must.NoError(t, big.Truncate(8<<30)) // sparse
	must.NoError(t, big.Close())
	m.move(t, d)
	there := func(want string) func() error {
		return func() error {
			stubs, err := m.b.agent.Allocs(deadline(t, stepDeadline), m.id)
			if err != nil {
				return err
			}
			ended, begun := false, false
			for _, s := range stubs {
				ended = ended || s.ID == m.alloc.ID && s.ClientStatus == api.AllocClientStatusComplete
				begun = begun || s.NodeName == "b" && s.ClientStatus == want
			}
			if !ended || !begun {
				return errors.New("not yet")
			}
			return nil
		}
	}
	eventually(t, "the disk is carried over", there(api.AllocClientStatusPending))
	must.NoError(t, m.a.agent.Kill(deadline(t, stepDeadline)))
	eventually(t, "the task has restarted", there(api.AllocClientStatusRunning))
	must.NoError(t, m.a.agent.Restart(deadline(t, startDeadline)))
	m.end(t)
	must.ErrorIs(t, m.err, move.ErrNotResumed)
	now, starts := m.checkOnce(t)
	must.Eq(t, "a", now.NodeName)
	must.Len(t, 2, starts)
}
