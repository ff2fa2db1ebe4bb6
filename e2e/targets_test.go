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

// These loads report the value in the file "value" of the shared directory. Each start adds a line
// to "starts", each signal one to "signals".
const (
	preamble = `d=$NOMAD_ALLOC_DIR/data; echo start >> $d/starts
trap 'echo USR1 >> $d/signals' USR1
`
	// Handlers of the stop signal.
	saves = `trap 'echo TERM >> $d/signals; exit 143' TERM INT
`
	savesLong = `trap 'echo TERM >> $d/signals; until [ -e $d/release ]; do sleep 0.05; done; exit 143' TERM INT
` // once the test allows it
	deaf = `trap 'echo TERM >> $d/signals' TERM INT
`

	// A report every 0.1 s, at no cost.
	patient = `n=0; v=100
while :; do n=$((n+1)); [ -e $d/value ] && read v < $d/value; echo step=$n loss=$v; sleep 0.1; done`
	// The value falls by 1 per report, as fast as two CPUs allow.
	busy = `yes > /dev/null &
awk -v f=$d/value 'BEGIN { v = 100000; while (1) { for (k = 0; k < 100000; k++) x += k; n++; while ((getline line < f) > 0) v = line; close(f); printf "step=%d loss=%.6f\n", n, v - n; fflush() } }' &
while :; do wait; done`
)

// withTargets adds targets for the loss; "" for none.
func withTargets(k task, acceptable, objective, target string) task {
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

const retryPolicy = `restart {
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

// goal is a job whose task "train" has targets, controlled by the test.
type goal struct {
	c     *cluster
	alloc *api.Allocation
}

func startGoal(t *testing.T, c *cluster, id string, k task) goal {
	t.Helper()
	return goal{c, c.start(t, retried(id, k))}
}

func retried(id string, k task) job {
	return job{id: id, retry: true, group: retryPolicy, tasks: []task{k}}
}

// data returns a path in the shared directory, on the host.
func (g goal) data(name string) string {
	return filepath.Join(g.c.agent.AllocDir(g.alloc.ID), "alloc", "data", name)
}

// put replaces a file in the shared directory.
func (g goal) put(t *testing.T, name, content string) {
	t.Helper()
	must.NoError(t, os.WriteFile(g.data(name+".new"), []byte(content+"\n"), 0o644))
	must.NoError(t, os.Rename(g.data(name+".new"), g.data(name)))
}

func (g goal) lines(t *testing.T, name string) []string {
	t.Helper()
	data, err := os.ReadFile(g.data(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	must.NoError(t, err)
	return strings.Fields(string(data))
}

// reporting waits until the task's reports are read.
func (g goal) reporting(t *testing.T) {
	t.Helper()
	g.c.waitStatus(t, g.alloc, "train", "measured in training", func(s status.Status) bool {
		return s.Reports > 5 && s.Target.State == "training"
	})
}

// recorded polls until the driver has recorded the objective.
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

// marker reads a marker file of the task.
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

// succeeded checks that the job has completed and is not restarted.
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
	// The server has no pending work for it.
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

// checkNoRestart checks that no restart was counted.
func (g goal) checkNoRestart(t *testing.T) {
	t.Helper()
	alloc := g.succeeded(t)
	must.Eq(t, 0, alloc.TaskStates["train"].Restarts, must.Sprint(strings.Join(harness.Events(alloc, "train"), "\n")))
}

// testTargets takes a task to its acceptable target and its objective.
func testTargets(t *testing.T, c *cluster) {
	k := shell(preamble + saves + busy)
	k.cpu = 400
	g := startGoal(t, c, "goal", withTargets(k, "50000", "10000", `signal = "SIGUSR1"`))
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
	// A worse value changes no state and emits no event.
	g.put(t, "value", "100000")
	c.waitStatus(t, g.alloc, "train", "worse, and acceptable", func(s status.Status) bool {
		return s.Target.State == "acceptable" && s.Value > 50000
	})
	g.put(t, "value", "40000")
	c.waitStatus(t, g.alloc, "train", "better again", func(s status.Status) bool { return s.Value < 40000 })

	g.put(t, "value", "5000")
	g.checkNoRestart(t)
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

// TestTargetsAndSources runs tests that wait rather than compute on one agent per engine.
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

// targetTests tolerate other tests on their agent.
func targetTests() map[string]func(*testing.T, *cluster) {
	return map[string]func(*testing.T, *cluster){
		"deaf":               testTargetDeaf,
		"first reports":      testTargetAtOnce,
		"hold":               testTargetHold,
		"accuracy":           testTargetAccuracy,
		"another metric":     testTargetPauses,
		"real training":      testTargetTraining,
		"restarted in grace": testTargetRestarted,
		"restarted by Nomad": testTargetNewRun,
	}
}

// testTargetDeaf: a task that ignores the signal is killed after its grace period, and has
// succeeded.
func testTargetDeaf(t *testing.T, c *cluster) {
	g := startGoal(t, c, "deaf", withTargets(shell(preamble+deaf+patient), "", "50", "grace = \"1s\"\nstop_signal = \"SIGTERM\""))
	g.reporting(t)
	pid := c.pid(t, g.alloc, "train")
	g.put(t, "value", "50") // equality is enough
	g.checkNoRestart(t)
	must.False(t, harness.Alive(pid))
	// Docker sends another TERM before it kills.
	must.Eq(t, []string{"TERM"}, slices.Compact(g.lines(t, "signals")))
}

// testTargetAtOnce: a task that reaches both targets with its first report has one event, the
// objective's.
func testTargetAtOnce(t *testing.T, c *cluster) {
	k := withTargets(shell(preamble+saves+strings.Replace(patient, "v=100", "v=1", 1)), "50", "10", "")
	// It may end before it is seen running.
	g := goal{c, c.finish(t, retried("at-once", k))}
	g.checkNoRestart(t)
	must.Eq(t, 1, countEvents(t, c, g.alloc, "train", "objective target 10 reached: loss = 1 "))
	must.Eq(t, 0, countEvents(t, c, g.alloc, "train", "acceptable target"))
}

// testTargetHold: noise that briefly reaches a target does not count.
func testTargetHold(t *testing.T, c *cluster) {
	k := withTargets(shell(preamble+saves+`n=0
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

// testTargetAccuracy uses a rising metric.
func testTargetAccuracy(t *testing.T, c *cluster) {
	k := shell(preamble + saves + strings.NewReplacer("loss=", "accuracy=", "v=100", "v=0.5").Replace(patient))
	k = withTargets(k, "0.8", "0.9", `signal = "SIGUSR1"`)
	k.meta["ebbtide_metric"] = "accuracy"
	g := startGoal(t, c, "accuracy", k)
	g.reporting(t)
	g.put(t, "value", "0.85")
	c.waitEvent(t, g.alloc, "train", "acceptable target 0.8 reached: accuracy = 0.85")
	m := g.marker(t, "acceptable")
	must.Eq(t, "accuracy", m.Metric)
	must.Eq(t, 0.85, m.Value)
	g.put(t, "value", "0.95")
	g.checkNoRestart(t)
	must.Eq(t, 0.95, g.marker(t, "objective").Value)
}

// testTargetPauses: a metric other than the declared one does not reach the objective.
func testTargetPauses(t *testing.T, c *cluster) {
	other := strings.Replace(patient, "while :;", `while [ ! -e $d/value ];`, 1)
	other = strings.Replace(other, "echo step=$n loss=$v", `echo "{\"step\": $n, \"val\": {\"loss\": 1}}"`, 1)
	g := startGoal(t, c, "another-metric", withTargets(shell(preamble+saves+other+"\n"+patient), "", "50", ""))
	c.waitEvent(t, g.alloc, "train", "its targets are paused: the output now reports val.loss instead of loss")
	g.reporting(t)
	must.SliceEmpty(t, g.lines(t, "signals"))
	g.put(t, "value", "40")
	g.checkNoRestart(t)
	must.Eq(t, 40, g.marker(t, "objective").Value)
}

// testTargetTraining uses a real training run.
func testTargetTraining(t *testing.T, c *cluster) {
	k := task{command: "/bin/sh", args: []string{"-c", `echo start >> $NOMAD_ALLOC_DIR/data/starts
exec trainer -model logreg -threads 1 -steps 0 -every 5 -wait 10ms -metric both -save-best $NOMAD_ALLOC_DIR/data/best -term-exit 143`}}
	k.config = "progress {\n metric = \"loss\"\n}\n"
	g := startGoal(t, c, "training", withTargets(k, "1.6", "1.3", "signal = \"SIGUSR1\""))
	c.waitEvent(t, g.alloc, "train", "acceptable target 1.6 reached: loss = 1.")
	eventually(t, "the trainer has saved its best parameters", func() error {
		_, err := os.Stat(g.data("best"))
		return err
	})
	g.checkNoRestart(t)
	m := g.marker(t, "objective")
	must.Between(t, 1, m.Value, 1.3)
}

// testTargetRestarted: a manual restart during the grace period does not restart the task.
func testTargetRestarted(t *testing.T, c *cluster) {
	g := startGoal(t, c, "restarted", withTargets(shell(preamble+savesLong+patient), "", "50", `grace = "60s"`))
	g.reporting(t)
	g.put(t, "value", "40")
	g.recorded(t)
	done := make(chan error, 1)
	go func() { done <- c.agent.RestartTask(deadline(t, startDeadline), g.alloc, "train") }()
	c.waitEvent(t, g.alloc, "train", "requested task to restart")
	g.put(t, "release", "")
	<-done // may fail: the task has ended
	g.succeeded(t)
	c.waitEvent(t, g.alloc, "train", "ebbtide: not restarted: it has reached its objective, loss = 40, at ")
}

// testTargetNewRun: an acceptable target holds for its run only, not after a failure.
func testTargetNewRun(t *testing.T, c *cluster) {
	k := shell(preamble + strings.Replace(patient, "while :", "while [ ! -e $d/fail ]", 1) + `; rm $d/fail $d/value; echo step=$n loss=40; exit 1`)
	g := startGoal(t, c, "new-run", withTargets(k, "50", "", ""))
	g.reporting(t)
	g.put(t, "value", "40")
	c.waitStatus(t, g.alloc, "train", "acceptable", func(s status.Status) bool { return s.Target.State == "acceptable" })
	g.put(t, "fail", "")
	c.waitStatus(t, g.alloc, "train", "in training again", func(s status.Status) bool { return s.Target.State == "training" && s.Reports > 0 })
	must.Eq(t, []string{"start", "start"}, g.lines(t, "starts"))
}

// inGrace takes tasks to their objective, and waits until the last one's is recorded.
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

// slow returns a goal that saves until the test ends it.
func slow(t *testing.T, c *cluster, id string) goal {
	t.Helper()
	return startGoal(t, c, id, withTargets(shell(preamble+savesLong+patient), "", "50", "grace = \"10m\"\nstop_signal = \"SIGTERM\""))
}

func (g goal) saving(t *testing.T) {
	t.Helper()
	eventually(t, "the task of "+g.alloc.JobID+" saves", func() error {
		if got := g.lines(t, "signals"); len(got) == 0 {
			return errors.New("it has got no signal")
		}
		return nil
	})
}

func ended(t *testing.T, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("process %d has ended", pid), func() error {
		if harness.Alive(pid) {
			return errors.New("it runs")
		}
		return nil
	})
}

// testTargetPluginKilled kills the plugin once an objective is recorded, before or while it stops
// the task. Progress files are read on from the same position.
func testTargetPluginKilled(t *testing.T, c *cluster) {
	file := startWritten(t, c, "killed-file", "jsonl")
	file.write(t, file.path, 0, "{\"step\": 1, \"loss\": 9}\n{\"step\": 2, \"loss\": 8}\n{\"step\": 3, \"lo")
	file.follows(t, "there", 2, 2, 8)
	long := slow(t, c, "killed-slow")
	quick := startGoal(t, c, "killed-quick", withTargets(shell(preamble+saves+patient), "", "50", ""))
	noEar := startGoal(t, c, "killed-deaf", withTargets(shell(preamble+deaf+patient), "", "50", `grace = "1s"`))
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
		g.checkNoRestart(t)
	}
}

// testTargetAgentKilled kills the agent during the grace period. The plugin survives, and stops the
// tasks, including one that reaches its objective then.
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
		g.checkNoRestart(t)
	}
}

// testTargetBothKilled kills agent and plugin during the grace period: one task ends in between,
// one is lost, one ends afterwards.
func testTargetBothKilled(t *testing.T, c *cluster) {
	early, gone, late := slow(t, c, "both-early"), slow(t, c, "both-gone"), slow(t, c, "both-late")
	inGrace(t, early, gone, late)
	for _, g := range []goal{early, gone, late} {
		g.saving(t)
	}
	earlyPID, gonePID := c.pid(t, early.alloc, "train"), c.pid(t, gone.alloc, "train")
	plugins := c.agent.PluginPIDs("ebbtide-driver")
	must.Len(t, 1, plugins)
	must.NoError(t, c.agent.Process().Signal(unix.SIGSTOP)) // to delay the plugin's restart
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
		must.NoError(t, unix.Kill(parent(t, gonePID), unix.SIGKILL)) // the executor, which has the exit status
		_ = unix.Kill(gonePID, unix.SIGKILL)
	}
	ended(t, gonePID)
	must.NoError(t, c.agent.Restart(deadline(t, startDeadline)))
	late.put(t, "release", "")
	for _, g := range []goal{early, gone, late} {
		g.checkNoRestart(t)
	}
	log, err := c.agent.Log()
	must.NoError(t, err)
	must.False(t, strings.Contains(log, "panic:"))
}

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
