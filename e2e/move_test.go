// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/cli"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/shim/document"
	"github.com/ebbtide/ebbtide/shim/move"
)

func ebbtideMove(a *harness.Agent, args ...string) (exit int, result move.Result, told string) {
	var out, errs bytes.Buffer
	exit = cli.Run(append([]string{"move", "-address", a.Addr}, args...), nil, &out, &errs)
	if err := json.Unmarshal(out.Bytes(), &result); err != nil && exit == 0 {
		errs.WriteString(err.Error())
	}
	return exit, result, errs.String()
}

func trainee(id string) job {
	k := shell(`echo start >> $NOMAD_ALLOC_DIR/data/starts
exec trainer -model logreg -threads 1 -steps 0 -wait 20ms -every 1 -checkpoint $NOMAD_ALLOC_DIR/data/model.ckpt -resume`)
	k.config = "checkpoint {\n path = \"${NOMAD_ALLOC_DIR}/data/model.ckpt\"\n}\nprogress {\n metric = \"loss\"\n}"
	return job{id: id, group: "ephemeral_disk {\n sticky = true\n migrate = true\n}\n", tasks: []task{k}}
}

// rich adds blocks in which Nomad itself changes something at a registration, and fields that Nomad
// 1.11 does not know.
func rich(t *testing.T, a *harness.Agent, k job) job {
	k.group += "scaling {\n max = 1\n policy {}\n}\n"
	k.tasks[0].body += "identity {\n name = \"other\"\n aud = [\"other\"]\n ttl = \"1h\"\n}\n"
	node, err := a.Node(deadline(t, stepDeadline))
	must.NoError(t, err)
	if strings.HasPrefix(node.Attributes["nomad.version"], "1.") {
		return k
	}
	// A job with a max_run_duration cannot be moved (testTimeLimit).
	k.tasks[0].body += `template {
  data        = "x"
  destination = "local/x"
  change_mode = "script"
  change_script {
    command             = "/bin/sh"
    args                = ["-c", "true"]
    run_on_first_render = true
  }
}
`
	return k
}

// testMoveBetweenNodes moves a training job back and forth: it resumes each time, runs once, and
// stays the user's.
func testMoveBetweenNodes(t *testing.T, first, second *cluster) {
	alloc := first.start(t, rich(t, first.agent, trainee("mover")))
	read := func() *document.Job {
		doc, err := move.API{Client: first.agent.API}.Job(deadline(t, stepDeadline), "default", "mover")
		must.NoError(t, err)
		return doc
	}
	users := read()
	at := map[string]*cluster{first.agent.NodeID(): first, second.agent.NodeID(): second}
	for range 2 {
		from := at[alloc.NodeID]
		to := first
		if from == first {
			to = second
		}
		before := from.waitStatus(t, alloc, "train", "learning", func(s status.Status) bool { return s.Alloc == alloc.ID && s.Reports > 20 })
		exit, result, told := ebbtideMove(first.agent, "-dry-run", alloc.ID[:8], to.agent.NodeID())
		must.Eq(t, 0, exit, must.Sprint(told))
		must.Eq(t, move.PhaseCheck, result.Phase)

		exit, result, told = ebbtideMove(first.agent, alloc.ID[:8], to.agent.NodeID())
		t.Log(told)
		must.Eq(t, 0, exit, must.Sprint(told))
		must.Eq(t, move.PhaseDone, result.Phase)
		must.Len(t, 1, result.Tasks)
		k := result.Tasks[0]
		must.Eq(t, "/alloc/data/model.ckpt", k.Path)
		must.Positive(t, k.Bytes)
		must.GreaterEq(t, before.Step, k.Saved)
		must.GreaterEq(t, k.Saved, k.Step)
		must.True(t, result.DownS.Known())
		t.Logf("it stood still for %.1f s", float64(result.DownS))

		old, _, err := first.agent.API.Allocations().Info(alloc.ID, nil)
		must.NoError(t, err)
		must.True(t, harness.Terminal(old))
		alloc, _, err = first.agent.API.Allocations().Info(result.NewAlloc, nil)
		must.NoError(t, err)
		must.Eq(t, to.agent.NodeID(), alloc.NodeID)
		must.Eq(t, api.AllocClientStatusRunning, alloc.ClientStatus)
		same, err := document.Same(users, read(), document.Own{Constraint: func(_, _ string) bool { return false }})
		must.NoError(t, err)
		must.True(t, same, must.Sprint("the job is unbound, and nothing else has changed"))
		running := 0
		stubs, err := first.agent.Allocs(deadline(t, stepDeadline), "mover")
		must.NoError(t, err)
		for _, s := range stubs {
			if s.ClientStatus == api.AllocClientStatusRunning {
				running++
			}
		}
		must.Eq(t, 1, running)
		// It continues, and the job's last change does not restart it.
		to.waitStatus(t, alloc, "train", "learning on", func(s status.Status) bool { return s.Alloc == alloc.ID && s.Step > k.Step+20 })
		now, _, err := first.agent.API.Allocations().Info(alloc.ID, nil)
		must.NoError(t, err)
		must.Eq(t, api.AllocDesiredStatusRun, now.DesiredStatus)
		must.Eq(t, 0, now.TaskStates["train"].Restarts)
	}
	g := goal{at[alloc.NodeID], alloc}
	eventually(t, "it was started three times in all", func() error {
		if starts := g.lines(t, "starts"); len(starts) != 3 {
			return fmt.Errorf("its starts are %v", starts)
		}
		return nil
	})
}

// testMoveShared: a checkpoint on a volume of both nodes needs no disk migration.
func testMoveShared(t *testing.T, first, second *cluster) {
	j := trainee("sharer")
	k := &j.tasks[0]
	*k = task{args: []string{"-model", "logreg", "-threads", "1", "-steps", "0", "-wait", "20ms", "-every", "1", "-checkpoint", "/models/model.ckpt", "-resume"}}
	k.config = "checkpoint {\n path = \"/models/model.ckpt\"\n shared = true\n}\nprogress {\n metric = \"loss\"\n}"
	k.body = "volume_mount {\n volume = \"models\"\n destination = \"/models\"\n}"
	j.group = "volume \"models\" {\n type = \"host\"\n source = \"models\"\n}"
	alloc := first.start(t, j)
	from, to := first, second
	if alloc.NodeID == second.agent.NodeID() {
		from, to = to, from
	}
	from.waitStatus(t, alloc, "train", "learning", func(s status.Status) bool { return s.Reports > 20 })
	exit, result, told := ebbtideMove(first.agent, alloc.ID, to.agent.NodeID())
	must.Eq(t, 0, exit, must.Sprint(told))
	must.Eq(t, "/models/model.ckpt", result.Tasks[0].Path)
	must.GreaterEq(t, result.Tasks[0].Saved, result.Tasks[0].Step)

	// A path outside all volumes is rejected.
	k.config = strings.ReplaceAll(k.config, "/models/", "/elsewhere/")
	j.id = "sharer-nowhere"
	failed := first.finish(t, j)
	must.Eq(t, api.AllocClientStatusFailed, failed.ClientStatus)
	must.StrContains(t, strings.Join(harness.Events(failed, "train"), "\n"), `checkpoint.path: "/elsewhere/model.ckpt" is not in a volume_mount of the task`)
}

// testMoveRefused: refused moves have no effect.
func testMoveRefused(t *testing.T, first, second *cluster) {
	pinned := func(j job) job {
		j.body = "constraint {\n attribute = \"${node.unique.name}\"\n value = \"" + first.agent.Name + "\"\n}"
		return j
	}
	plain := job{id: "plain", tasks: []task{shell("while :; do sleep 1; done")}}
	alloc := first.start(t, pinned(plain))
	exit, _, told := ebbtideMove(first.agent, alloc.ID, second.agent.NodeID())
	must.Eq(t, 1, exit)
	for _, want := range []string{"check: cannot be moved: ", "would lose its disk", "has no checkpoint block", "its job is constrained to a node"} {
		must.StrContains(t, told, want)
	}

	alloc = first.start(t, trainee("stays"))
	if alloc.NodeID == second.agent.NodeID() {
		first, second = second, first
	}
	before := first.waitStatus(t, alloc, "train", "learning", func(s status.Status) bool { return s.Reports > 5 })
	// An ineligible target.
	first.eligible(t, second, false)
	defer first.eligible(t, second, true)
	exit, _, told = ebbtideMove(first.agent, alloc.ID, second.agent.NodeID())
	must.Eq(t, 1, exit)
	must.StrContains(t, told, "accepts no allocations: it is ready, ineligible")
	first.waitStatus(t, alloc, "train", "learning on", func(s status.Status) bool { return s.Step > before.Step+5 && s.Move.State == "" })
	must.Eq(t, 0, countEvents(t, first, alloc, "train", "checkpoint saved"))
}
