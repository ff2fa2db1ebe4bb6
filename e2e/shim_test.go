// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/cli"
	"github.com/ebbtide/ebbtide/driver/remaining"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/shim"
	"github.com/ebbtide/ebbtide/shim/config"
)

// TestShim: a converged training next to two that learn moves to an empty node, once.
func TestShim(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	settings := map[string]string{"specon_interval": `"2s"`, "specon_alpha": "0.05"}
	first := newCluster(t, h, "exec", clusterOptions{settings: settings})
	c := config.Default()
	c.Interval = time.Second
	c.Relocation.Enabled, c.Migration.Enabled = false, true
	c.Web.Address = ""
	c.Nomad.Address = first.agent.Addr

	// Three run on one node. The movable one has converged before the others start.
	flat := optIn(trainee("flat"))
	alloc := first.start(t, flat)
	var others []string
	var grows *api.Allocation
	for i := range 2 {
		id := fmt.Sprintf("grows-%d", i)
		// The value changes by the same fraction of its range with each report.
		grows = first.start(t, job{id: id, tasks: []task{shell(`n=0; v=-100
while :; do n=$((n+1)); v=$((v*105/100)); echo step=$n loss=$v; sleep 0.5; done`)}})
		others = append(others, id)
	}
	first.waitStatus(t, alloc, "train", "sorted", func(s status.Status) bool { return s.SpeCon.Category != "" })
	second := newCluster(t, h, "exec", clusterOptions{settings: settings, agent: harness.AgentConfig{Join: first.agent}})

	run := func(names ...string) (stop func()) { return runShims(t, c, names...) }
	stop := run("shim-1", "shim-2")

	eventually(t, "it has moved", func() error {
		stubs, err := first.agent.Allocs(deadline(t, stepDeadline), "flat")
		must.NoError(t, err)
		for _, s := range stubs {
			if s.NodeID == second.agent.NodeID() && s.ClientStatus == "running" {
				alloc = &api.Allocation{ID: s.ID, NodeID: s.NodeID, Namespace: s.Namespace}
				return nil
			}
		}
		return errors.New("it is where it was")
	})
	must.StrContains(t, movesOf(t, first.agent, "flat"), "specon-migrate moved, ")
	for _, id := range others {
		stubs, err := first.agent.Allocs(deadline(t, stepDeadline), id)
		must.NoError(t, err)
		must.Len(t, 1, stubs, must.Sprint("a job that has not opted in stays"))
	}
	stop()
	c.Placement.Enabled = true
	stop = run("shim-3")
	testShimPlaces(t, first, second, grows, alloc)
	testShimReleases(t, first, second)
	stop()
	t.Run("killed", func(t *testing.T) { testShimKilled(t, first, second) })
}

// runShims runs shims of one cluster in this process until stop is called.
func runShims(t *testing.T, c config.Config, names ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	for _, name := range names {
		client, err := c.Nomad.Client()
		must.NoError(t, err)
		log := hclog.New(&hclog.LoggerOptions{Name: name, Level: hclog.Debug, Output: testLogger{t}})
		wait.Go(func() {
			if err := shim.New(c, client, name, log).Run(ctx); ctx.Err() == nil {
				t.Errorf("%s ended: %v", name, err)
			}
		})
	}
	stop = func() {
		cancel()
		wait.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// testShimPlaces: Nomad places a job next to two that learn; once a better node exists and the job
// reports, the shim moves it.
func testShimPlaces(t *testing.T, first, second *cluster, grows, flat *api.Allocation) {
	growth := func(alloc *api.Allocation) (sum float64, err error) {
		st, err := first.status(t, alloc, "train")
		for _, g := range st.Node.GrowthSum {
			sum += float64(g)
		}
		return sum, err
	}
	// The moved one may first seem to grow.
	eventually(t, "the other node has hardly any growth", func() error {
		most, err := growth(grows)
		if err != nil {
			return err
		}
		little, err := growth(flat)
		if err == nil && !(little < most/4) {
			err = fmt.Errorf("it has %v, and the first one %v", little, most)
		}
		return err
	})
	first.eligible(t, second, false)
	fresh := optIn(trainee("fresh"))
	fresh.tasks[0].args[1] = "sleep 5\n" + fresh.tasks[0].args[1]
	alloc := first.start(t, fresh)
	must.Eq(t, first.agent.NodeID(), alloc.NodeID)
	first.eligible(t, second, true)
	must.StrContains(t, movesOf(t, first.agent, "fresh"), "flowcon-place moved, ")
	first.stop(t, "fresh")
}

// sizedJob uses all of one core, and has a known end.
func sizedJob(id string) job {
	j := optIn(trainee(id))
	j.tasks[0].args[1] = strings.ReplaceAll(j.tasks[0].args[1], "-steps 0 -wait 20ms -every 1", "-steps 200000 -every 50")
	return j
}

// TestRelocate: a training job next to three busy tasks moves to the other node, where it finishes
// sooner. Before that, a run there gets the cost of an earlier run here.
func TestRelocate(t *testing.T) {
	h := newHarness(t)
	first := newCluster(t, h, "exec", clusterOptions{})
	second := newCluster(t, h, "exec", clusterOptions{agent: harness.AgentConfig{Join: first.agent}})
	c := config.Default()
	c.Interval, c.Relocation.Interval = time.Second, 2*time.Second
	c.Web.Address, c.Nomad.Address = "", first.agent.Addr
	runShims(t, c, "shim")
	first.eligible(t, second, false)

	run := func(count int) job {
		silent := shell("i=0; while [ $i -lt $COUNT ]; do i=$((i+1)); done")
		silent.env = map[string]string{"COUNT": fmt.Sprint(count)}
		return job{id: "silent", tasks: []task{silent}}
	}
	before := first.start(t, run(10_000_000))
	_, err := first.agent.WaitEvent(deadline(t, startDeadline), before.ID, "train", "CPU-seconds; the next run is expected to use as much")
	must.NoError(t, err)
	first.stop(t, "silent")
	first.eligible(t, second, true)
	first.eligible(t, first, false)
	again := first.start(t, run(math.MaxInt32))
	must.Eq(t, second.agent.NodeID(), again.NodeID)
	second.waitStatus(t, again, "train", "told of the previous run", func(s status.Status) bool { return s.Fair.Source == string(remaining.Earlier) })
	first.stop(t, "silent")
	first.eligible(t, first, true)
	first.eligible(t, second, false)

	alloc := first.start(t, sizedJob("hasty"))
	must.Eq(t, first.agent.NodeID(), alloc.NodeID)
	ids := []string{"hasty"}
	for i := range 3 {
		ids = append(ids, fmt.Sprintf("busy-%d", i))
		first.start(t, job{id: ids[i+1], tasks: []task{shell("while :; do :; done")}})
	}
	// Not while the shims are paused.
	ebbtide := func(args ...string) (status int, stdout string) {
		var out, errs bytes.Buffer
		status = cli.Run(append(append([]string{"shim"}, args...), "-address", first.agent.Addr), nil, &out, &errs)
		return status, out.String()
	}
	status, said := ebbtide("pause", "-reason", "an upgrade")
	must.Eq(t, 0, status)
	must.StrContains(t, said, ": an upgrade")
	eventually(t, "the shim has heard of it", func() error {
		if _, said = ebbtide("status", "-json"); !strings.Contains(said, `"suspended": "paused by `) {
			return errors.New(said)
		}
		return nil
	})
	first.eligible(t, second, true)
	time.Sleep(4 * c.Relocation.Interval)
	stubs, err := first.agent.Allocs(deadline(t, stepDeadline), "hasty")
	must.NoError(t, err)
	must.Len(t, 1, stubs)
	status, _ = ebbtide("resume")
	must.Eq(t, 0, status)
	must.StrContains(t, movesOf(t, first.agent, "hasty"), "relocate moved, ")
	status, said = ebbtide("status")
	must.Eq(t, 0, status)
	t.Log(said)
	must.StrContains(t, said, "Leader   shim, since ")
	must.StrContains(t, said, "Cluster  2 nodes\n")
	for _, id := range ids {
		first.stop(t, id)
	}
}

// movesOf waits for a job's row in `ebbtide moves`.
func movesOf(t *testing.T, a *harness.Agent, id string) (rows string) {
	t.Helper()
	eventually(t, "it is written down", func() error {
		var out, errs bytes.Buffer
		must.Eq(t, 0, cli.Run([]string{"moves", "-address", a.Addr}, nil, &out, &errs), must.Sprint(errs.String()))
		rows = ""
		for row := range strings.Lines(out.String()) {
			// Columns vary in width.
			if row = strings.Join(strings.Fields(row), " "); strings.Contains(row, " default/"+id+" ") && !strings.Contains(row, "in progress") {
				rows += row + "\n"
			}
		}
		if rows == "" {
			return fmt.Errorf("there is\n%s", out.String())
		}
		return nil
	})
	t.Log(rows)
	return rows
}

// testShimReleases: held jobs are placed on the node with less growth, or where Nomad decides.
func testShimReleases(t *testing.T, first, second *cluster) {
	held := func(id, group string) job {
		j := trainee(id)
		j.body = "meta {\n ebbtide_hold = \"true\"\n}\nconstraint {\n attribute = \"${meta.ebbtide_hold}\"\n value = \"released\"\n}"
		j.group = group
		return j
	}
	alloc := first.start(t, held("held", ""))
	must.Eq(t, second.agent.NodeID(), alloc.NodeID)
	must.StrContains(t, movesOf(t, first.agent, "held"), " - "+second.agent.Name+" flowcon-place placed")
	stubs, err := first.agent.Allocs(deadline(t, stepDeadline), "held")
	must.NoError(t, err)
	must.Len(t, 1, stubs)
	eventually(t, "the job is bound to nothing", func() error {
		spec, _, err := first.agent.API.Jobs().Info("held", nil)
		must.NoError(t, err)
		must.SliceEmpty(t, spec.Constraints)
		if c := spec.TaskGroups[0].Constraints; len(c) > 0 {
			return fmt.Errorf("it has %v", c[0])
		}
		return nil
	})

	first.start(t, held("two", "count = 2"))
	must.StrContains(t, movesOf(t, first.agent, "two"), "released group g has count 2")
	first.stop(t, "two")
	first.stop(t, "held")
}

// shimToKill has a lock that expires soon after a kill.
const shimToKill = `
interval = "1s"
nomad {
  address = %q
}
leader {
  path  = "ebbtide/killed"
  ttl   = "10s"
  delay = "1s"
}
web {
  address = ""
}
relocation {
  enabled = false
}
`

// testShimKilled kills a shim right after it has bound a job: the job runs on the target, once, and
// the next shim unbinds it.
func testShimKilled(t *testing.T, first, second *cluster) {
	cliPath, err := first.h.Tools.CLI(deadline(t, startDeadline))
	must.NoError(t, err)
	file := filepath.Join(t.TempDir(), "shim.hcl")
	must.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf(shimToKill+"placement {\n enabled = true\n}\nmigration {\n enabled = true\n}\n", first.agent.Addr)), 0o644))
	start := func(name string) *harness.Process {
		p, err := first.h.Start(deadline(t, startDeadline), name, []string{cliPath, "shim", "-config", file}, nil)
		must.NoError(t, err)
		return p
	}

	first.eligible(t, second, false)
	alloc := first.start(t, optIn(trainee("flat-2")))
	must.Eq(t, first.agent.NodeID(), alloc.NodeID)
	first.eligible(t, second, true)

	bound := func() bool {
		spec, _, err := first.agent.API.Jobs().Info("flat-2", nil)
		must.NoError(t, err)
		return slices.ContainsFunc(spec.TaskGroups[0].Constraints, func(c *api.Constraint) bool { return c.LTarget == "${node.unique.id}" })
	}
	killed := start("shim-killed")
	for ctx := deadline(t, 2*startDeadline); !bound(); time.Sleep(10 * time.Millisecond) {
		must.NoError(t, ctx.Err(), must.Sprint("waiting until the job is bound"))
		must.NoError(t, killed.Err())
	}
	must.NoError(t, killed.Signal(unix.SIGKILL))

	next := start("shim-next")
	eventually(t, "the job is free again", func() error {
		if bound() {
			return errors.New("it is bound")
		}
		return nil
	})
	var there []string
	stubs, err := first.agent.Allocs(deadline(t, stepDeadline), "flat-2")
	must.NoError(t, err)
	for _, s := range stubs {
		if s.ClientStatus == api.AllocClientStatusRunning {
			there = append(there, s.NodeID)
		}
	}
	must.Eq(t, []string{second.agent.NodeID()}, there)
	must.NoError(t, next.Signal(unix.SIGTERM))
	must.NoError(t, next.Wait(deadline(t, stepDeadline)))
}

type testLogger struct{ t *testing.T }

func (l testLogger) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}
