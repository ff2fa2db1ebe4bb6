// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/shim/config"
)

// jobspecRun is a running example from jobspecs/.
type jobspecRun struct {
	*cluster
	allocs map[string]*api.Allocation
}

func (s jobspecRun) wait(t *testing.T, task, what string, want func(status.Status) bool) status.Status {
	t.Helper()
	return s.waitStatus(t, s.allocs[task], task, what, want)
}

func (s jobspecRun) reports(t *testing.T, task, metric string) status.Status {
	t.Helper()
	st := s.wait(t, task, "read", func(st status.Status) bool { return st.Reports > 3 && st.Value > 0 && st.Step > 0 })
	must.Eq(t, metric, st.Metric)
	return st
}

// jobspecRuns are the checks for each file; quiet ones run in parallel.
var jobspecRuns = map[string]struct {
	quiet bool
	watch func(*testing.T, jobspecRun)
}{
	"exec.hcl": {true, func(t *testing.T, s jobspecRun) {
		s.reports(t, "vae", "loss")
	}},
	"compete.hcl": {false, func(t *testing.T, s jobspecRun) {
		s.wait(t, "mlp", "converged", settled("mlp", "CL"))
		s.waitEvent(t, s.allocs["mlp"], "mlp", "converged")
		mlp, vae := s.pid(t, s.allocs["mlp"], "mlp"), s.pid(t, s.allocs["vae"], "vae")
		eventually(t, "vae has more of the CPU", func() error {
			if a, b := kernel(t, mlp).Shares, kernel(t, vae).Shares; a >= b {
				return fmt.Errorf("mlp has %d shares and vae %d", a, b)
			}
			return nil
		})
	}},
	"checkpoint.hcl": {true, func(t *testing.T, s jobspecRun) {
		st := s.reports(t, "vae", "loss")
		g := goal{s.cluster, s.allocs["vae"]}
		send := func(signal string) {
			must.NoError(t, s.agent.Signal(deadline(t, stepDeadline), g.alloc, "vae", signal))
		}
		send("EBBTIDE_CHECKPOINT")
		s.waitEvent(t, g.alloc, "vae", "checkpoint saved: /alloc/data/vae.ckpt", "frozen until")
		ready := s.wait(t, "vae", "ready to be moved", func(st status.Status) bool { return st.Move.State == "ready" })
		must.GreaterEq(t, st.Step, ready.Move.Step)
		info, err := os.Stat(g.data("vae.ckpt"))
		must.NoError(t, err)
		must.Eq(t, info.Size(), ready.Move.Bytes)
		send("EBBTIDE_RELEASE")
		s.waitEvent(t, g.alloc, "vae", "keeps running: the move was cancelled")
		s.wait(t, "vae", "running on", func(st status.Status) bool { return st.Move.State == "" && st.Step > ready.Step })
	}},
	// Not in parallel: see Nomad's known issues in the README.
	"cores.hcl": {false, func(t *testing.T, s jobspecRun) {
		st := s.reports(t, "mlp", "loss")
		must.StrContains(t, st.Why, "dedicated cores")
	}},
	"csv.hcl": {true, func(t *testing.T, s jobspecRun) { s.reports(t, "mlp", "loss") }},
	"fallback.hcl": {false, func(t *testing.T, s jobspecRun) {
		_, err := s.agent.WaitLog(deadline(t, startDeadline), s.allocs["fallback"], "fallback", "stdout", "a shim has led ")
		must.NoError(t, err)
	}},
	// Not concurrently with shim.hcl: only one shim leads.
	"hold.hcl": {false, func(t *testing.T, s jobspecRun) {
		s.reports(t, "mlp", "loss")
		must.StrContains(t, movesOf(t, s.agent, "hold"), "flowcon-place placed")
	}},
	"jsonl.hcl": {true, func(t *testing.T, s jobspecRun) { s.reports(t, "mlp", "loss") }},
	"metric.hcl": {true, func(t *testing.T, s jobspecRun) {
		st := s.reports(t, "gru", "accuracy")
		must.Eq(t, "max", st.Goal)
	}},
	"mixed.hcl": {false, func(t *testing.T, s jobspecRun) {
		s.wait(t, "predict", "a service that is measured", func(st status.Status) bool {
			return st.Kind == "service" && st.Target.Response > 0 && st.Class != ""
		})
		for _, name := range []string{"vae", "mlp"} {
			s.wait(t, name, "in training", func(st status.Status) bool { return st.Kind == "training" && st.Reports > 3 && st.Category != "" })
		}
		st := s.wait(t, "quiet", "not measured", func(st status.Status) bool { return st.Reports == 0 && st.Rule != "" && st.Limit.Fraction < 1 })
		must.MapContainsKey(t, withoutZeros(st.Node.Counts), "NL")
		must.Eq(t, 5, st.Node.Tasks)
	}},
	// Not concurrently with shim.hcl either.
	"queue.hcl": {false, func(t *testing.T, s jobspecRun) {
		s.reports(t, "mlp", "loss")
		must.StrContains(t, movesOf(t, s.agent, "queue"), "queue placed number 1 of the queue")
	}},
	"opt-out.hcl": {true, func(t *testing.T, s jobspecRun) {
		st := s.reports(t, "mlp", "loss")
		must.StrContains(t, st.Why, "asked not to be limited")
		must.Eq(t, 200, kernel(t, s.pid(t, s.allocs["mlp"], "mlp")).Shares)
	}},
	"pattern.hcl": {true, func(t *testing.T, s jobspecRun) {
		st := s.wait(t, "mlp", "read", func(st status.Status) bool { return st.Reports > 3 })
		must.Positive(t, float64(st.Step))
		must.Greater(t, st.Step, st.Total)
	}},
	"presets.hcl": {true, func(t *testing.T, s jobspecRun) {
		for _, name := range []string{"huggingface", "keras", "lightning", "plain", "jsonl"} {
			st := s.wait(t, name, "read", func(st status.Status) bool { return st.Reports > 3 && st.Value > 0 && st.Step > 0 })
			must.StrContains(t, st.Metric, "loss")
		}
	}},
	"prometheus.hcl": {true, func(t *testing.T, s jobspecRun) {
		s.wait(t, "mlp", "read", func(st status.Status) bool { return st.Metric == "train_loss" && st.Value > 0 && st.Step > 0 })
	}},
	"service.hcl": {false, func(t *testing.T, s jobspecRun) {
		st := s.wait(t, "predict", "measured, and alone not limited", func(st status.Status) bool {
			return st.Class != "" && st.Target.Response > 0 && st.Limit.Fraction == 1 // once earlier jobs have left the node
		})
		must.Eq(t, "service", st.Kind)
		must.Eq(t, 0.15, float64(st.Target.QoE))
		_, err := s.agent.WaitLog(deadline(t, startDeadline), s.allocs["load"], "load", "stdout", "response_s=")
		must.NoError(t, err)
	}},
	"shim.hcl": {true, func(t *testing.T, s jobspecRun) {
		eventually(t, "one leads and one stands by", func() error {
			_, err := s.shims(t, "default", "ebbtide-shim")
			return err
		})
	}},
	"targets.hcl": {false, func(t *testing.T, s jobspecRun) {
		alloc := s.allocs["vae"]
		s.waitEvent(t, alloc, "vae", "acceptable target 115 reached: loss = ")
		best := filepath.Join(s.agent.AllocDir(alloc.ID), "alloc", "data", "vae.best")
		eventually(t, "the best parameters are saved", func() error {
			_, err := os.Stat(best)
			return err
		})
		alloc, err := s.agent.WaitAllocID(deadline(t, 2*startDeadline), alloc.ID, "ended", harness.Terminal)
		must.NoError(t, err)
		must.Eq(t, api.AllocClientStatusComplete, alloc.ClientStatus)
		for name, ts := range alloc.TaskStates {
			must.False(t, ts.Failed)
			must.Eq(t, 0, ts.Restarts)
			must.NotNil(t, harness.FindEvent(alloc, name, "objective target"), must.Sprint(harness.Events(alloc, name)))
			must.NotNil(t, harness.FindEvent(alloc, name, "Exit Code: 0"), must.Sprint(harness.Events(alloc, name)))
		}
	}},
	"tensorboard.hcl": {true, func(t *testing.T, s jobspecRun) { s.reports(t, "mlp", "train/loss") }},
	"gpu.hcl": {true, func(t *testing.T, s jobspecRun) {
		s.reports(t, "large", "loss")
		for task, told := range map[string]int{"small": 8 << 10, "large": 72<<10 - reserveMiB} {
			_, err := s.agent.WaitLog(deadline(t, startDeadline), s.allocs[task], task, "stdout", fmt.Sprintf(`"memory": %d}`, told*mib))
			must.NoError(t, err)
		}
	}},
	"docker.hcl": {true, func(t *testing.T, s jobspecRun) {
		s.reports(t, "mlp", "loss")
		list, err := s.docker.Containers(t.Context(), s.allocs["mlp"].ID)
		must.NoError(t, err)
		must.Len(t, 1, list)
		must.Eq(t, s.agent.NodeID(), list[0].Labels["io.ebbtide.node_id"])
	}},
}

// TestJobspecs runs every file in jobspecs/ and checks what its comment promises.
func TestJobspecs(t *testing.T) {
	h := newHarness(t)
	root, err := harness.FindRoot()
	must.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(root, "jobspecs", "*.hcl"))
	must.NoError(t, err)
	must.SliceNotEmpty(t, files)
	cli, err := h.Tools.CLI(deadline(t, startDeadline))
	must.NoError(t, err)
	exec := newCluster(t, h, "exec", clusterOptions{agent: harness.AgentConfig{Chroot: installed(cli)}})
	run := func(t *testing.T, c *cluster, file string) {
		s := jobspecRun{cluster: c, allocs: map[string]*api.Allocation{}}
		id, err := c.agent.RunFile(deadline(t, stepDeadline), file)
		must.NoError(t, err)
		registered := id
		t.Cleanup(func() { c.stop(t, registered) })
		spec, _, err := c.agent.API.Jobs().Info(id, nil)
		must.NoError(t, err)
		if spec.IsPeriodic() {
			_, _, err := c.agent.API.Jobs().PeriodicForce(id, nil)
			must.NoError(t, err)
			children, _, err := c.agent.API.Jobs().PrefixList(id + "/")
			must.NoError(t, err)
			must.SliceNotEmpty(t, children)
			id = children[0].ID
			t.Cleanup(func() { c.stop(t, id) })
		}
		tasks := 0
		for _, g := range spec.TaskGroups {
			tasks += len(g.Tasks)
		}
		eventually(t, "every task has an allocation that runs", func() error {
			stubs, err := c.agent.Allocs(deadline(t, stepDeadline), id)
			if err != nil {
				return err
			}
			for _, stub := range stubs {
				if stub.ClientStatus == api.AllocClientStatusFailed {
					return fmt.Errorf("allocation %s has failed", stub.ID)
				}
				for name, ts := range stub.TaskStates {
					if ts.State != "pending" {
						alloc, _, err := c.agent.API.Allocations().Info(stub.ID, nil)
						if err != nil {
							return err
						}
						s.allocs[name] = alloc
					}
				}
			}
			if len(s.allocs) < tasks {
				return fmt.Errorf("%d of %d have", len(s.allocs), tasks)
			}
			return nil
		})
		jobspecRuns[filepath.Base(file)].watch(t, s)
	}
	for _, quiet := range []bool{true, false} {
		t.Run(map[bool]string{true: "side by side", false: "one by one"}[quiet], func(t *testing.T) {
			for _, file := range files {
				name := filepath.Base(file)
				s, ok := jobspecRuns[name]
				must.True(t, ok, must.Sprintf("nothing is said about %s", name))
				if s.quiet != quiet {
					continue
				}
				t.Run(strings.TrimSuffix(name, ".hcl"), func(t *testing.T) {
					if quiet {
						t.Parallel()
					}
					c := exec
					if name == "docker.hcl" {
						c = newCluster(t, h, "docker", clusterOptions{})
						// As in the file's comment.
						must.NoError(t, c.docker.Client.ImageTag(t.Context(), harness.Image, "ebbtide-trainer:1"))
					}
					if name == "gpu.hcl" {
						n := newGPUNode(t, fakeCard(t), "docker", gpuOptions{memory: 80 << 10})
						n.standIn(t, "pytorch/pytorch:2.7.1-cuda12.8-cudnn9-runtime", "python", "--steps", "60", "--bytes", strconv.Itoa(mib), "--pause-ms", "500")
						c = n.cluster
					}
					if slices.Contains([]string{"fallback.hcl", "hold.hcl", "queue.hcl"}, name) {
						daemon := config.Default()
						daemon.Web.Address, daemon.Nomad.Address, daemon.Placement.Enabled = "", c.agent.Addr, true
						runShims(t, daemon, "shim")
					}
					run(t, c, file)
				})
			}
		})
	}
}
