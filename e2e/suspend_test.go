// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/cli"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/document"
	"github.com/ebbtide/ebbtide/shim/move"
)

// TestSuspend: a long job yields its place to a short one, and goes on from what it had saved, whatever
// its trainer does with the signal.
func TestSuspend(t *testing.T) {
	t.Parallel()
	c := newCluster(t, newHarness(t), "exec", clusterOptions{})
	node, _, err := c.agent.API.Nodes().Info(c.agent.NodeID(), nil)
	must.NoError(t, err)
	runSuspender(t, c)
	for name, k := range map[string]task{
		"saves":          suspendedTask(savingTrainer, ""),
		"saves and ends": suspendedTask(savingTrainer, `signal = "SIGTERM"`),
		"saves by itself": suspendedTask(`n=$(cat $NOMAD_ALLOC_DIR/data/model.ckpt || echo 0)
while n=$((n+1)); do
  echo "step=$n loss=1"
  if [ $((n % 40)) = 0 ]; then echo $n > $NOMAD_ALLOC_DIR/data/next; mv $NOMAD_ALLOC_DIR/data/next $NOMAD_ALLOC_DIR/data/model.ckpt; fi
  sleep 0.05
done`, `signal = "none"`),
	} {
		t.Run(name, func(t *testing.T) {
			testSuspend(t, c, k, func(k *task) { k.memory = int(node.NodeResources.Memory.MemoryMB) * 6 / 10 })
		})
	}
}

// TestSuspendDevice: the same with a seat on a GPU as the place.
func TestSuspendDevice(t *testing.T) {
	t.Parallel()
	n := newGPUNode(t, fakeCard(t), "exec", gpuOptions{plugin: map[string]string{"seats_per_gpu": "1"}})
	runSuspender(t, n.cluster)
	testSuspend(t, n.cluster, suspendedTask(savingTrainer, ""), func(k *task) {
		k.cpu = -1
		k.body += fmt.Sprintf("resources {\n cpu = 50\n memory = 100\n device %q {\n count = 1\n }\n}\n", n.device)
	})
}

// runSuspender runs a shim that suspends at once.
func runSuspender(t *testing.T, c *cluster) {
	t.Helper()
	conf := config.Default()
	conf.Interval, conf.Queue.Cost, conf.Limits.Cooldown, conf.Limits.MovesPerMinute = time.Second, time.Second, 0, 100
	conf.Web.Address, conf.Nomad.Address = "", c.agent.Addr
	runShims(t, conf, "shim")
}

const savingTrainer = "exec trainer -model logreg -threads 1 -steps 0 -wait 20ms -every 1 -checkpoint $NOMAD_ALLOC_DIR/data/model.ckpt -resume"

func suspendedTask(script, checkpoint string) task {
	k := shell("echo start >> $NOMAD_ALLOC_DIR/data/starts\n" + script)
	k.config = "checkpoint {\n path = \"${NOMAD_ALLOC_DIR}/data/model.ckpt\"\n " + checkpoint + "\n}\nprogress {\n metric = \"loss\"\n}"
	return k
}

// testSuspend suspends a task for another. There is one place, which they ask for.
func testSuspend(t *testing.T, c *cluster, k task, place func(*task)) {
	queued := func(id, duration string, k task) job {
		place(&k)
		return job{
			id: id, tasks: []task{k},
			body: fmt.Sprintf("meta {\n ebbtide_queue = \"true\"\n ebbtide_duration = %q\n}\nconstraint {\n attribute = \"${meta.ebbtide_hold}\"\n value = \"released\"\n}", duration),
		}
	}
	read := func() *document.Job {
		doc, err := move.API{Client: c.agent.API}.Job(deadline(t, stepDeadline), "default", "long")
		must.NoError(t, err)
		return doc
	}
	latest := func(id, status string) (is *api.AllocationListStub) {
		eventually(t, id+" is "+status, func() error {
			all, err := c.agent.Allocs(deadline(t, stepDeadline), id)
			if err != nil || len(all) == 0 {
				return errors.Join(err, errors.New("it has no allocation"))
			}
			is = slices.MaxFunc(all, func(a, b *api.AllocationListStub) int { return int(a.CreateIndex) - int(b.CreateIndex) })
			if is.ClientStatus != status {
				return fmt.Errorf("it is %s", is.ClientStatus)
			}
			return nil
		})
		return is
	}
	c.register(t, queued("long", "10h", k))
	first := latest("long", "running")
	alloc, _, err := c.agent.API.Allocations().Info(first.ID, nil)
	must.NoError(t, err)
	released := read()
	c.waitStatus(t, alloc, "train", "learning", func(s status.Status) bool { return s.Alloc == alloc.ID && s.Step > 20 })

	c.register(t, queued("short", "30s", shell("until [ -e /alloc/data/end ]; do sleep 0.1; done")))
	short := latest("short", "running")
	must.Eq(t, "complete", latest("long", "complete").ClientStatus)
	c.waitEvent(t, alloc, "train", "suspended, step ", "saved in /alloc/data/model.ckpt: job default/short is before it; expected to go on at ")
	var out, errs bytes.Buffer
	must.Eq(t, 0, cli.Run([]string{"queue", "-address", c.agent.Addr}, nil, &out, &errs), must.Sprint(errs.String()))
	t.Log(out.String())
	stored, _, err := c.agent.API.Jobs().Info("long", nil)
	must.NoError(t, err)
	must.Eq(t, "pending", *stored.Status)
	// What it has saved outlives its allocation.
	must.NoError(t, os.RemoveAll(filepath.Join(c.agent.AllocDir(alloc.ID), "alloc/data")))
	must.NoError(t, os.WriteFile(filepath.Join(c.agent.AllocDir(short.ID), "alloc/data/end"), nil, 0o644))

	second := latest("long", "running")
	must.NotEq(t, first.ID, second.ID)
	next, _, err := c.agent.API.Allocations().Info(second.ID, nil)
	must.NoError(t, err)
	c.waitEvent(t, next, "train", "resumes from /alloc/data/model.ckpt, left by allocation "+first.ID)
	on := c.waitStatus(t, next, "train", "learning on", func(s status.Status) bool { return s.Alloc == next.ID && s.Reports > 5 })
	must.Greater(t, 20, on.Step)
	eventually(t, "the job is the user's again", func() error {
		same, err := document.Same(released, read(), document.Own{Constraint: func(_, _ string) bool { return false }, Meta: []string{"ebbtide_adopt"}})
		if err == nil && !same {
			err = errors.New("it is not")
		}
		return err
	})
	must.StrContains(t, movesOf(t, c.agent, "long"), "suspended")
	kept, err := filepath.Glob(filepath.Join(filepath.Dir(c.agent.AllocDir(first.ID)), ".ebbtide.kept", "*.train"))
	must.NoError(t, err)
	must.SliceEmpty(t, kept)
	if starts := (goal{c, next}).lines(t, "starts"); len(starts) != 2 {
		t.Errorf("its starts are %v", starts)
	}
	must.Eq(t, 0, next.TaskStates["train"].Restarts)
	for _, id := range []string{"long", "short"} {
		_, _, err := c.agent.API.Jobs().Deregister(id, false, nil)
		must.NoError(t, err)
	}
	eventually(t, "nothing runs", func() error {
		now, _, err := c.agent.API.Allocations().Info(next.ID, nil)
		if err == nil && !harness.Terminal(now) {
			err = fmt.Errorf("it is %s", now.ClientStatus)
		}
		return err
	})
}
