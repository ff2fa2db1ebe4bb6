// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// Loads whose value the test steers: they report what the file "value" in the
// allocation's shared directory says. Each start leaves a line in "starts", each
// signal one in "signals".
const (
	preamble = `d=$NOMAD_ALLOC_DIR/data; echo start >> $d/starts
trap 'echo USR1 >> $d/signals' USR1
`
	// What a task does when it is asked to stop.
	saves = `trap 'echo TERM >> $d/signals; exit 143' TERM INT
` // at once
	savesLong = `trap 'echo TERM >> $d/signals; until [ -e $d/release ]; do sleep 0.05; done; exit 143' TERM INT
` // until the test lets it
	deaf = `trap 'echo TERM >> $d/signals' TERM INT
` // not at all

	// The value is reported every 0.1 s, and costs nothing.
	patient = `n=0; v=100
while :; do n=$((n+1)); [ -e $d/value ] && read v < $d/value; echo step=$n loss=$v; sleep 0.1; done`
	// The value falls by 1 a report, as fast as two CPUs allow.
	busy = `yes > /dev/null &
awk -v f=$d/value 'BEGIN { v = 100000; while (1) { for (k = 0; k < 100000; k++) x += k; n++; while ((getline line < f) > 0) v = line; close(f); printf "step=%d loss=%.6f\n", n, v - n; fflush() } }' &
while :; do wait; done`
)

// wanting is a task with targets for its loss; "" is none.
func wanting(k task, acceptable, objective, target string) task {
	k.meta = map[string]string{"ebbtide_metric": "loss"}
	if acceptable != "" {
		k.meta["ebbtide_acceptable"] = acceptable
	}
	if objective != "" {
		k.meta["ebbtide_objective"] = objective
	}
	if target != "" {
		k.config += "target {\n" + target + "\n}\n"
	}
	return k
}

// insistent is the body of a group whose tasks Nomad starts again and again.
const insistent = `restart {
  attempts = 3
  delay    = "0s"
  interval = "10m"
  mode     = "delay"
}
reschedule {
  attempts       = 3
  interval       = "24h"
  delay          = "5s"
  delay_function = "constant"
  unlimited      = false
}`

// goal is a job whose task "train" has targets, and the test's hand on it.
type goal struct {
	c     *cluster
	alloc *api.Allocation
}

// startGoal starts a job of one task that Nomad would start again.
func startGoal(t *testing.T, c *cluster, id string, k task) goal {
	t.Helper()
	return goal{c, c.start(t, retried(id, k))}
}

// retried is a job of one task that Nomad would start again.
func retried(id string, k task) job {
	return job{id: id, retry: true, group: insistent, tasks: []task{k}}
}

// data is a path in the allocation's shared directory, on the host.
func (g goal) data(name string) string {
	return filepath.Join(g.c.agent.AllocDir(g.alloc.ID), "alloc", "data", name)
}

// put writes a file there, as a whole.
func (g goal) put(t *testing.T, name, content string) {
	t.Helper()
	must.NoError(t, os.WriteFile(g.data(name+".new"), []byte(content+"\n"), 0o644))
	must.NoError(t, os.Rename(g.data(name+".new"), g.data(name)))
}

// lines reads a file there.
func (g goal) lines(t *testing.T, name string) []string {
	t.Helper()
	data, err := os.ReadFile(g.data(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	must.NoError(t, err)
	return strings.Fields(string(data))
}

// reporting waits until the task's values are read.
func (g goal) reporting(t *testing.T) {
	t.Helper()
	g.c.waitStatus(t, g.alloc, "train", "measured in training", func(s status.Status) bool {
		return s.Reports > 5 && s.Target.State == "training"
	})
}

// recorded waits, closely, until the driver has written down that the objective
// is reached.
func (g goal) recorded(t *testing.T) {
	t.Helper()
	path := filepath.Join(g.c.agent.AllocDir(g.alloc.ID), ".ebbtide", "train.record")
	for ctx := deadline(t, startDeadline); ; time.Sleep(time.Millisecond) {
		must.NoError(t, ctx.Err(), must.Sprintf("waiting for %s", path))
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), `"objective":{`) {
			return
		}
	}
}

// marker reads one of the task's marker files.
func (g goal) marker(t *testing.T, name string) (m struct {
	State, Metric       string
	Value, Target, Step float64
	Time                time.Time
}) {
	t.Helper()
	data, err := g.c.agent.Cat(deadline(t, stepDeadline), g.alloc, "alloc/data/ebbtide/train."+name)
	must.NoError(t, err)
	must.NoError(t, json.Unmarshal(data, &m))
	must.Eq(t, name, m.State)
	must.False(t, m.Time.IsZero())
	return m
}

// succeeded checks that the job has ended as a success, once and for all.
func (g goal) succeeded(t *testing.T) *api.Allocation {
	t.Helper()
	ctx := deadline(t, startDeadline)
	alloc, err := g.c.agent.WaitAllocID(ctx, g.alloc.ID, "ended", harness.Terminal)
	must.NoError(t, err)
	events := must.Sprint(strings.Join(harness.Events(alloc, "train"), "\n"))
	must.Eq(t, api.AllocClientStatusComplete, alloc.ClientStatus, events)
	ts := alloc.TaskStates["train"]
	must.Eq(t, "dead", ts.State, events)
	must.False(t, ts.Failed, events)
	ended := 0
	for _, ev := range ts.Events {
		if ev.Type == api.TaskTerminated {
			ended++
			must.Eq(t, "0", ev.Details["exit_code"], events)
			must.Eq(t, "", ev.Details["exit_message"], events)
		}
		must.NotEq(t, api.TaskNotRestarting, ev.Type, events)
		must.NotEq(t, api.TaskDriverFailure, ev.Type, events)
	}
	must.Positive(t, ended, events)
	must.Eq(t, []string{"start"}, g.lines(t, "starts"), must.Sprint("starts of the process"), events)
	must.Eq(t, "", alloc.FollowupEvalID, events)
	// The server, too, has nothing left to do.
	must.NoError(t, harness.Poll(ctx, "the job is dead", func(context.Context) error {
		j, _, err := g.c.agent.API.Jobs().Info(alloc.JobID, nil)
		if err == nil && *j.Status != "dead" {
			err = fmt.Errorf("it is %s", *j.Status)
		}
		return err
	}))
	list, err := g.c.agent.Allocs(ctx, alloc.JobID)
	must.NoError(t, err)
	must.Len(t, 1, list, must.Sprint("allocations"))
	return alloc
}

// once checks that no restart was counted either.
func (g goal) once(t *testing.T) {
	t.Helper()
	alloc := g.succeeded(t)
	must.Eq(t, 0, alloc.TaskStates["train"].Restarts, must.Sprint(strings.Join(harness.Events(alloc, "train"), "\n")))
}

// testTargets takes a task from its start to its acceptable target, and on to its objective.
func testTargets(t *testing.T, c *cluster) {
	k := shell(preamble + saves + busy)
	k.cpu = 400
	g := startGoal(t, c, "goal", wanting(k, "50000", "10000", `signal = "SIGUSR1"`))
	other := c.start(t, job{id: "other", tasks: []task{growing("train")}})
	g.reporting(t)
	c.waitStatus(t, other, "train", "measured", func(s status.Status) bool { return s.Growth.Known() })
	must.SliceEmpty(t, g.lines(t, "signals"))
	must.Eq(t, 0, countEvents(t, c, g.alloc, "train", "target"))
	pid, otherPID := c.pid(t, g.alloc, "train"), c.pid(t, other, "train")

	g.put(t, "value", "40000")
	c.waitEvent(t, g.alloc, "train", "ebbtide: acceptable target 50000 reached: loss = ", " at step ")
	m := g.marker(t, "acceptable")
	must.Eq(t, "loss", m.Metric)
	must.Eq(t, 50000, m.Target)
	must.Between(t, 10000, m.Value, 40000)
	must.Between(t, 1, m.Step, 40000)
	out, _, code, err := c.agent.Exec(deadline(t, stepDeadline), g.alloc, "train", false, nil, "/bin/sh", "-c", "cat $NOMAD_ALLOC_DIR/data/ebbtide/train.acceptable")
	must.NoError(t, err)
	must.Eq(t, 0, code)
	must.StrContains(t, out, `"acceptable"`)
	eventually(t, "the task has got the signal", func() error {
		if got := g.lines(t, "signals"); len(got) != 1 || got[0] != "USR1" {
			return fmt.Errorf("it has got %v", got)
		}
		return nil
	})
	// A worse value later takes nothing back, and says nothing again.
	g.put(t, "value", "100000")
	c.waitStatus(t, g.alloc, "train", "worse, and acceptable", func(s status.Status) bool {
		return s.Target.State == "acceptable" && s.Value > 50000
	})
	g.put(t, "value", "40000")
	c.waitStatus(t, g.alloc, "train", "better again", func(s status.Status) bool { return s.Value < 40000 })

	g.put(t, "value", "5000")
	g.once(t)
	must.Eq(t, []string{"USR1", "TERM"}, g.lines(t, "signals"))
	must.Eq(t, 1, countEvents(t, c, g.alloc, "train", "acceptable target"))
	must.Eq(t, 1, countEvents(t, c, g.alloc, "train", "objective target 10000 reached: loss = "))
	m = g.marker(t, "objective")
	must.Eq(t, 10000, m.Target)
	must.LessEq(t, 5000, m.Value)
	st, err := c.status(t, g.alloc, "train")
	must.NoError(t, err)
	must.Eq(t, "objective", st.Target.State)
	must.False(t, harness.Alive(pid))
	eventually(t, "the other task has everything", func() error {
		if k := kernel(t, otherPID); k.Shares != 400 {
			return fmt.Errorf("it has %d shares", k.Shares)
		}
		return nil
	})
	c.stop(t, "other")
}

// TestTargetsAndSources does on one agent an engine what waits rather than computes.
func TestTargetsAndSources(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"exec", "docker"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, newHarness(t), engine, clusterOptions{settings: map[string]string{"interval": `"1s"`}})
			for name, tests := range map[string]map[string]func(*testing.T, *cluster){"targets": targetTests(), "sources": sourceTests(), "moves": moveTests()} {
				t.Run(name, func(t *testing.T) {
					for name, test := range tests {
						t.Run(name, func(t *testing.T) {
							t.Parallel()
							test(t, c)
						})
					}
				})
			}
			t.Run("plugin killed", func(t *testing.T) { testTargetPluginKilled(t, c) })
			t.Run("plugin killed, tasks frozen", func(t *testing.T) { testMovePluginKilled(t, c) })
			t.Run("agent killed", func(t *testing.T) { testTargetAgentKilled(t, c) })
			t.Run("agent and plugin killed", func(t *testing.T) { testTargetBothKilled(t, c) })
			t.Run("nothing is left", func(t *testing.T) { testNothingLeft(t, c) })
		})
	}
}

// targetTests are those that nothing disturbs.
func targetTests() map[string]func(*testing.T, *cluster) {
	return map[string]func(*testing.T, *cluster){
		"deaf":                  testTargetDeaf,
		"first reports":         testTargetAtOnce,
		"hold":                  testTargetHold,
		"accuracy":              testTargetAccuracy,
		"another metric":        testTargetPauses,
		"real training":         testTargetTraining,
		"restarted in grace":    testTargetRestarted,
		"started anew by Nomad": testTargetNewRun,
	}
}

// testTargetDeaf is about a task that does not listen: it is killed after its
// grace, and has succeeded.
func testTargetDeaf(t *testing.T, c *cluster) {
	g := startGoal(t, c, "deaf", wanting(shell(preamble+deaf+patient), "", "50", "grace = \"1s\"\nstop_signal = \"SIGTERM\""))
	g.reporting(t)
	pid := c.pid(t, g.alloc, "train")
	g.put(t, "value", "50") // reached by what is equal, too
	g.once(t)
	must.False(t, harness.Alive(pid))
	// Docker sends one more TERM just before it kills.
	must.Eq(t, []string{"TERM"}, slices.Compact(g.lines(t, "signals")))
}

// testTargetAtOnce is about a task that has reached everything when it is first
// looked at: one event, the objective's.
func testTargetAtOnce(t *testing.T, c *cluster) {
	k := wanting(shell(preamble+saves+strings.Replace(patient, "v=100", "v=1", 1)), "50", "10", "")
	// It may have ended before anybody sees it run.
	g := goal{c, c.finish(t, retried("at-once", k))}
	g.once(t)
	must.Eq(t, 1, countEvents(t, c, g.alloc, "train", "objective target 10 reached: loss = 1 "))
	must.Eq(t, 0, countEvents(t, c, g.alloc, "train", "acceptable target"))
}

// testTargetHold is about values that touch a target by noise.
func testTargetHold(t *testing.T, c *cluster) {
	k := wanting(shell(preamble+saves+`n=0
while [ ! -e $d/good ]; do for v in 40 40 60; do n=$((n+1)); echo step=$n loss=$v; sleep 0.05; done; done
while :; do n=$((n+1)); echo step=$n loss=40; sleep 0.05; done`), "50", "", "")
	k.meta["ebbtide_target_hold"] = "3"
	g := startGoal(t, c, "hold", k)
	st := c.waitStatus(t, g.alloc, "train", "measured", func(s status.Status) bool { return s.Reports > 30 })
	must.Eq(t, "training", st.Target.State)
	must.Eq(t, 3, st.Target.Hold)
	must.Eq(t, 0, countEvents(t, c, g.alloc, "train", "acceptable target"))
	g.put(t, "good", "")
	c.waitStatus(t, g.alloc, "train", "acceptable", func(s status.Status) bool { return s.Target.State == "acceptable" })
	c.waitEvent(t, g.alloc, "train", "acceptable target 50 reached: loss = 40")
}

// testTargetAccuracy is about a metric that is to rise.
func testTargetAccuracy(t *testing.T, c *cluster) {
	k := shell(preamble + saves + strings.NewReplacer("loss=", "accuracy=", "v=100", "v=0.5").Replace(patient))
	k = wanting(k, "0.8", "0.9", `signal = "SIGUSR1"`)
	k.meta["ebbtide_metric"] = "accuracy"
	g := startGoal(t, c, "accuracy", k)
	g.reporting(t)
	g.put(t, "value", "0.85")
	c.waitEvent(t, g.alloc, "train", "acceptable target 0.8 reached: accuracy = 0.85")
	m := g.marker(t, "acceptable")
	must.Eq(t, "accuracy", m.Metric)
	must.Eq(t, 0.85, m.Value)
	g.put(t, "value", "0.95")
	g.once(t)
	must.Eq(t, 0.95, g.marker(t, "objective").Value)
}

// testTargetPauses is about a task that reports another metric than it has named, at a
// value that would be its objective: it runs on until the named one reaches it.
func testTargetPauses(t *testing.T, c *cluster) {
	other := strings.Replace(patient, "while :;", `while [ ! -e $d/value ];`, 1)
	other = strings.Replace(other, "echo step=$n loss=$v", `echo "{\"step\": $n, \"val\": {\"loss\": 1}}"`, 1)
	g := startGoal(t, c, "another-metric", wanting(shell(preamble+saves+other+"\n"+patient), "", "50", ""))
	c.waitEvent(t, g.alloc, "train", "its targets are paused: the output now reports val.loss instead of loss")
	g.reporting(t)
	must.SliceEmpty(t, g.lines(t, "signals"))
	g.put(t, "value", "40")
	g.once(t)
	must.Eq(t, 40, g.marker(t, "objective").Value)
}

// testTargetTraining is a real training run from its start to its end.
func testTargetTraining(t *testing.T, c *cluster) {
	k := task{command: "/bin/sh", args: []string{"-c", `echo start >> $NOMAD_ALLOC_DIR/data/starts
exec trainer -model logreg -threads 1 -steps 0 -every 5 -wait 10ms -metric both -save-best $NOMAD_ALLOC_DIR/data/best -term-exit 143`}}
	k.config = "progress {\n metric = \"loss\"\n}\n"
	g := startGoal(t, c, "training", wanting(k, "1.6", "1.3", "signal = \"SIGUSR1\""))
	c.waitEvent(t, g.alloc, "train", "acceptable target 1.6 reached: loss = 1.")
	eventually(t, "the trainer has saved its best parameters", func() error {
		_, err := os.Stat(g.data("best"))
		return err
	})
	g.once(t)
	m := g.marker(t, "objective")
	must.Between(t, 1, m.Value, 1.3)
}

// testTargetRestarted restarts a task by hand while it has its grace: it is not
// started a second time.
func testTargetRestarted(t *testing.T, c *cluster) {
	g := startGoal(t, c, "restarted", wanting(shell(preamble+savesLong+patient), "", "50", `grace = "60s"`))
	g.reporting(t)
	g.put(t, "value", "40")
	g.recorded(t)
	done := make(chan error, 1)
	go func() { done <- c.agent.RestartTask(deadline(t, startDeadline), g.alloc, "train") }()
	c.waitEvent(t, g.alloc, "train", "requested task to restart")
	g.put(t, "release", "")
	<-done // it may fail: the task has ended
	g.succeeded(t)
	c.waitEvent(t, g.alloc, "train", "ebbtide: not restarted: it has reached its objective, loss = 40, at ")
}

// testTargetNewRun lets a task fail after its acceptable target: that holds for
// the run which reached it, not for the next one.
func testTargetNewRun(t *testing.T, c *cluster) {
	k := shell(preamble + strings.Replace(patient, "while :", "while [ ! -e $d/fail ]", 1) + `; rm $d/fail $d/value; exit 1`)
	g := startGoal(t, c, "new-run", wanting(k, "50", "", ""))
	g.reporting(t)
	g.put(t, "value", "40")
	c.waitStatus(t, g.alloc, "train", "acceptable", func(s status.Status) bool { return s.Target.State == "acceptable" })
	g.put(t, "fail", "")
	c.waitStatus(t, g.alloc, "train", "in training again", func(s status.Status) bool { return s.Target.State == "training" && s.Reports > 0 })
	must.Eq(t, []string{"start", "start"}, g.lines(t, "starts"))
}

// inGrace starts tasks, takes all to their objective and waits until that is
// written down for the last of them.
func inGrace(t *testing.T, goals ...goal) {
	t.Helper()
	for _, g := range goals {
		g.reporting(t)
	}
	for _, g := range goals {
		g.put(t, "value", "40")
	}
	for _, g := range goals {
		g.recorded(t)
	}
}

// slow is a job that saves until the test lets it end.
func slow(t *testing.T, c *cluster, id string) goal {
	t.Helper()
	return startGoal(t, c, id, wanting(shell(preamble+savesLong+patient), "", "50", "grace = \"10m\"\nstop_signal = \"SIGTERM\""))
}

// saving waits until a task has heard that it is to stop.
func (g goal) saving(t *testing.T) {
	t.Helper()
	eventually(t, "the task of "+g.alloc.JobID+" saves", func() error {
		if got := g.lines(t, "signals"); len(got) == 0 {
			return errors.New("it has got no signal")
		}
		return nil
	})
}

// ended waits until a process is gone.
func ended(t *testing.T, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("process %d has ended", pid), func() error {
		if harness.Alive(pid) {
			return errors.New("it runs")
		}
		return nil
	})
}

// testTargetPluginKilled kills the plugin in the moment in which it has written
// down that a task has reached its objective, before or while it stops it. A file from
// which progress is read is read on where the killed plugin was.
func testTargetPluginKilled(t *testing.T, c *cluster) {
	file := startWritten(t, c, "killed-file", "jsonl")
	file.write(t, file.path, 0, "{\"step\": 1, \"loss\": 9}\n{\"step\": 2, \"loss\": 8}\n{\"step\": 3, \"lo")
	file.follows(t, "there", 2, 2, 8)
	long := slow(t, c, "killed-slow")
	quick := startGoal(t, c, "killed-quick", wanting(shell(preamble+saves+patient), "", "50", ""))
	noEar := startGoal(t, c, "killed-deaf", wanting(shell(preamble+deaf+patient), "", "50", `grace = "1s"`))
	pids := c.agent.PluginPIDs("ebbtide-driver")
	must.Len(t, 1, pids)
	for _, g := range []goal{quick, noEar} {
		g.reporting(t)
		g.put(t, "value", "40")
	}
	inGrace(t, long)
	must.NoError(t, unix.Kill(pids[0], unix.SIGKILL))
	eventually(t, "the plugin is back", func() error {
		if now := c.agent.PluginPIDs("ebbtide-driver"); len(now) != 1 || now[0] == pids[0] {
			return fmt.Errorf("its processes are %v", now)
		}
		return nil
	})
	file.write(t, file.path, os.O_APPEND, "ss\": 7}\n{\"step\": 4, \"loss\": 6}\n")
	file.follows(t, "read on", 2, 4, 6)
	long.saving(t)
	long.put(t, "release", "")
	for _, g := range []goal{long, quick, noEar} {
		g.once(t)
	}
}

// testTargetAgentKilled kills the agent while tasks have their grace. The plugin
// lives on: it ends the tasks, and one more that reaches its objective then.
func testTargetAgentKilled(t *testing.T, c *cluster) {
	early, late, alone := slow(t, c, "agent-early"), slow(t, c, "agent-late"), slow(t, c, "agent-alone")
	alone.reporting(t)
	inGrace(t, early, late)
	early.saving(t)
	pid := c.pid(t, early.alloc, "train")
	must.NoError(t, c.agent.Kill(deadline(t, stepDeadline)))
	early.put(t, "release", "")
	ended(t, pid)
	alone.put(t, "value", "40")
	alone.recorded(t)
	must.NoError(t, c.agent.Restart(deadline(t, startDeadline)))
	late.saving(t)
	late.put(t, "release", "")
	alone.saving(t)
	alone.put(t, "release", "")
	for _, g := range []goal{early, late, alone} {
		g.once(t)
	}
}

// testTargetBothKilled kills agent and plugin while tasks have their grace: one
// ends meanwhile, of one nothing is left at all, one ends afterwards.
func testTargetBothKilled(t *testing.T, c *cluster) {
	early, gone, late := slow(t, c, "both-early"), slow(t, c, "both-gone"), slow(t, c, "both-late")
	inGrace(t, early, gone, late)
	for _, g := range []goal{early, gone, late} {
		g.saving(t)
	}
	earlyPID, gonePID := c.pid(t, early.alloc, "train"), c.pid(t, gone.alloc, "train")
	plugins := c.agent.PluginPIDs("ebbtide-driver")
	must.Len(t, 1, plugins)
	must.NoError(t, c.agent.Process().Signal(unix.SIGSTOP)) // it must not restart the plugin meanwhile
	must.NoError(t, unix.Kill(plugins[0], unix.SIGKILL))
	must.NoError(t, c.agent.Kill(deadline(t, stepDeadline)))

	early.put(t, "release", "")
	ended(t, earlyPID)
	if c.engine == "docker" {
		list, err := c.docker.Containers(t.Context(), gone.alloc.ID)
		must.NoError(t, err)
		must.Len(t, 1, list)
		must.NoError(t, c.docker.Client.ContainerRemove(t.Context(), list[0].ID, container.RemoveOptions{Force: true}))
	} else {
		must.NoError(t, unix.Kill(parent(t, gonePID), unix.SIGKILL)) // the executor, which knows how it ended
		_ = unix.Kill(gonePID, unix.SIGKILL)
	}
	ended(t, gonePID)
	must.NoError(t, c.agent.Restart(deadline(t, startDeadline)))
	late.put(t, "release", "")
	for _, g := range []goal{early, gone, late} {
		g.once(t)
	}
	log, err := c.agent.Log()
	must.NoError(t, err)
	must.False(t, strings.Contains(log, "panic:"))
}

// parent is the process that started another.
func parent(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must.NoError(t, err)
	var state string
	var ppid int
	_, rest, _ := strings.Cut(string(data), ") ")
	_, err = fmt.Sscan(rest, &state, &ppid)
	must.NoError(t, err)
	must.Greater(t, 1, ppid)
	return ppid
}
