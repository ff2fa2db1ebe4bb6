// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/document/documenttest"
)

// outcome is the end state of a model run.
type outcome struct {
	*model
	res Result
	err error
}

// runModel runs the model and fails on any violation.
func runModel(t *testing.T, change func(*schedule)) (out outcome) {
	t.Helper()
	s := faultFree()
	change(&s)
	synctest.Test(t, func(*testing.T) {
		out.model = newModel(s)
		out.res, out.err = out.run()
	})
	must.SliceEmpty(t, out.wrong, must.Sprint(out.wrong, out.log))
	return out
}

// The training job is frozen on the source until it has ended, briefly on the target, and resumes
// from what it saved.
func TestMove(t *testing.T) {
	for _, service := range []bool{false, true} {
		out := runModel(t, func(s *schedule) { s.Service = service })
		must.NoError(t, out.err)
		want := []string{"CHECKPOINT a", "register b", "FREEZE b", "register ", "RELEASE b"}
		if service {
			want = []string{"CHECKPOINT a", "register b", "register "}
		}
		must.Eq(t, want, out.log)
		must.Eq(t, PhaseDone, out.res.Phase)
		must.Eq(t, "b", out.last().node)
		must.True(t, out.res.DownS.Known())
		must.Eq(t, out.last().id, out.res.NewAlloc)
		must.Eq(t, int64(out.best), out.res.Tasks[0].Bytes)
		must.GreaterEq(t, out.res.Tasks[0].Saved, out.res.Tasks[0].Step)
	}
}

// Registering the job would cancel its deployment.
func TestMove_deployment(t *testing.T) {
	for _, status := range []string{"running", "paused", "pending", "blocked", "unblocking", "initializing"} {
		out := runModel(t, func(s *schedule) { s.Service, s.Deployment = true, status })
		var refused *Refused
		must.True(t, errors.As(out.err, &refused))
		must.ErrorContains(t, out.err, "its job's deployment d is "+status+", and Nomad would cancel it")
		must.SliceEmpty(t, out.log)
	}
	for _, status := range []string{"successful", "failed", "cancelled"} {
		out := runModel(t, func(s *schedule) { s.Service, s.Deployment = true, status })
		must.NoError(t, out.err)
	}
}

// The shim waits less than the tasks' own timeouts, which may be an hour each.
func TestMove_saveTimeout(t *testing.T) {
	late := func(s *schedule) { s.Save = 40 * time.Second }
	must.NoError(t, runModel(t, late).err)
	out := runModel(t, func(s *schedule) { late(s); s.SaveTimeout = 5 * time.Second })
	must.ErrorContains(t, out.err, "save: waiting until task train has saved: context deadline exceeded")
	must.Eq(t, "a", out.last().node)
}

// The next save of a task that saves by itself may take much longer. The task computes until then.
func TestMove_unasked(t *testing.T) {
	late := func(s *schedule) { s.Unasked, s.Save, s.SaveTimeout = true, 25*time.Minute, 5*time.Second }
	out := runModel(t, late)
	must.NoError(t, out.err)
	must.Eq(t, "b", out.last().node)
	must.Eq(t, 0, out.res.SaveS, must.Sprint("what it was not asked for costs nothing"))
	out = runModel(t, func(s *schedule) { late(s); s.UnaskedTimeout = 10 * time.Minute })
	must.ErrorContains(t, out.err, "save: waiting until task train has saved: context deadline exceeded")
	must.Eq(t, "a", out.last().node)
}

// savers are the tasks of an allocation, by name. They save after so long.
type savers struct {
	Nomad
	begun time.Time
	after map[string]time.Duration

	mu   sync.Mutex
	log  []string
	asks map[string]time.Time
}

func (s *savers) Signal(_ context.Context, _ *api.Allocation, task, signal string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if signal == signalCheckpoint {
		s.log = append(s.log, fmt.Sprint(task, " after ", time.Since(s.begun).Round(time.Minute)))
		s.asks[task] = time.Now()
	}
	return nil
}

func (s *savers) Allocation(context.Context, string) (*api.Allocation, error) {
	return &api.Allocation{ClientStatus: api.AllocClientStatusRunning, DesiredStatus: api.AllocDesiredStatusRun}, nil
}

func (s *savers) Status(_ context.Context, _ *api.Allocation, task string) (st status.Status, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if asked, ok := s.asks[task]; ok {
		st.Move.State = status.MoveSaving
		if time.Since(asked) >= s.after[task] {
			st.Move.State, st.Move.Until = status.MoveReady, time.Now()
		}
	}
	return st, nil
}

// Tasks that are asked compute until the others have saved by themselves, which may do so in any
// order: all stay frozen from their saves on.
func TestSave_unaskedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &savers{begun: time.Now(), after: map[string]time.Duration{"own": 20 * time.Minute, "sooner": time.Minute}, asks: make(map[string]time.Time)}
		m := &mover{nomad: s, opts: DefaultOptions(), alloc: &api.Allocation{TaskGroup: "g"}}
		m.job = documenttest.Parse([]byte(`{"TaskGroups": [{"Name": "g", "Tasks": [
			{"Name": "asked", "Config": {"checkpoint": [{}]}},
			{"Name": "own", "Config": {"checkpoint": [{"signal": "none"}]}},
			{"Name": "sooner", "Config": {"checkpoint": [{"signal": "none"}]}}]}]}`))
		m.result.Tasks = []Task{{Name: "asked"}, {Name: "own"}, {Name: "sooner"}}
		m.frozen = newFreeze(t.Context(), s, m.alloc)
		defer m.frozen.stop()
		must.NoError(t, m.save(t.Context()))
		must.Eq(t, []string{"own after 0s", "sooner after 0s", "asked after 20m0s"}, s.log)
		must.Greater(t, 0, time.Until(m.frozen.frozenUntil()))
	})
}

func TestMove_fails(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*schedule)
		want   string // of the error
		node   string // the final node
		phase  Phase
	}{
		"no room":                     {func(s *schedule) { s.Room, s.NoPlan = false, true }, "not placed: exhausted: memory", "a", PhaseWait},
		"the target's plugin is gone": {func(s *schedule) { s.FailStart = 0 }, "is failed", "a", PhaseVerify},
		"the target's agent is restarted after that": {func(s *schedule) { s.FailStart, s.Restart = 0, time.Millisecond }, "has ended without having been started", "a", PhaseVerify},
		"the disk is not carried over":               {func(s *schedule) { s.EmptyDisk = 0 }, "and did not find it", "a", PhaseVerify},
		"the target dies":                            {func(s *schedule) { s.Events = []event{{At: 1750 * time.Millisecond, Kind: "target-dies"}} }, "the new allocation lacks the checkpoint", "a", PhaseVerify},
		"it is stopped meanwhile": {func(s *schedule) {
			s.Save, s.Events = time.Second, []event{{At: 1500 * time.Millisecond, Kind: "alloc-stop"}}
		}, "the allocation is not running", "c", PhaseSave},
		"its job is changed meanwhile": {func(s *schedule) {
			s.Save, s.Events = time.Second, []event{{At: 1500 * time.Millisecond, Kind: "change"}}
		}, "bind: enforcing job modify index", "a", PhaseBind},
		"the target is deaf": {func(s *schedule) {
			s.Events = []event{{At: 1100 * time.Millisecond, Kind: "target-deaf", For: time.Minute}}
		}, "bind: Get", "a", PhaseBind},
		"it never saves": {func(s *schedule) { s.Save = time.Hour }, "save: waiting until task train has saved: context deadline exceeded", "a", PhaseSave},
	} {
		t.Run(name, func(t *testing.T) {
			out := runModel(t, c.change)
			must.ErrorContains(t, out.err, c.want)
			must.Eq(t, c.node, out.last().node)
			must.Eq(t, c.phase, out.res.Phase)
			must.False(t, out.res.Bound)
		})
	}
}

// Nomad may update an allocation in place although its node is not the job's: a task is not frozen
// for such a move if there is a plan, and otherwise until the evaluation only.
func TestMove_inPlace(t *testing.T) {
	for noPlan, log := range map[bool][]string{
		false: nil,
		true:  {"CHECKPOINT a", "register b", "FREEZE a", "register ", "RELEASE a", "RELEASE a"},
	} {
		out := runModel(t, func(s *schedule) { s.Limited, s.NoPlan = true, noPlan })
		must.ErrorContains(t, out.err, "updates it in place")
		must.Eq(t, log, out.log)
		must.Len(t, 1, out.all)
	}
}

// A client whose disk is full deletes the checkpoint as soon as the old allocation ends. The disk may
// fill while the tasks save.
func TestMove_fullDisk(t *testing.T) {
	for _, node := range []string{"source", "target"} {
		for at, phase := range map[time.Duration]Phase{500 * time.Millisecond: PhaseCheck, 1500 * time.Millisecond: PhaseBind} {
			out := runModel(t, func(s *schedule) {
				s.Save, s.Events = time.Second, []event{{At: at, Kind: node + "-filled"}}
			})
			must.ErrorContains(t, out.err, "would delete the checkpoint")
			var refused *Refused
			must.True(t, errors.As(out.err, &refused))
			must.Eq(t, node == "target", refused.Target)
			must.Eq(t, phase, out.res.Phase)
			must.Eq(t, "a", out.last().node)
		}
	}
	// A shared checkpoint lies on another disk.
	out := runModel(t, func(s *schedule) { s.Shared, s.Events = true, []event{{At: 1, Kind: "source-filled"}} })
	must.NoError(t, out.err)
	must.Eq(t, "b", out.last().node)
}

// Nomad neither ends nor replaces a disconnected allocation of a group with a disconnect block. Such a
// group is not moved; one that gets the block meanwhile is not waited for.
func TestMove_disconnect(t *testing.T) {
	gone := event{At: 1800 * time.Millisecond, Kind: "target-parts", For: 10 * time.Minute}
	for _, replace := range []bool{true, false} {
		out := runModel(t, func(s *schedule) { s.Disconnect, s.Replace, s.Events = true, replace, []event{gone} })
		must.ErrorContains(t, out.err, "has a disconnect block")
		must.Eq(t, PhaseCheck, out.res.Phase)

		out = runModel(t, func(s *schedule) {
			s.Replace, s.Events = replace, []event{{At: 1700 * time.Millisecond, Kind: "disconnect"}, gone}
		})
		must.Error(t, out.err)
		must.Less(t, 2*time.Minute, out.took)
	}
}

// A job that is scaled stays bound, and is unbound at once.
func TestMove_scaled(t *testing.T) {
	for _, to := range []string{"scale-0", "scale-2"} {
		out := runModel(t, func(s *schedule) {
			s.Stop, s.Events = 2*time.Second, []event{{At: 1800 * time.Millisecond, Kind: to}}
		})
		must.ErrorContains(t, out.err, "wait: the job was changed: group train has a count of")
		must.Less(t, 10*time.Second, out.took)
	}
}

// Nomad replaces an allocation whose meta changes, as for a rollback: without room there, the
// job is unbound where it is; so is a rolled-back job without room on its next target.
func TestMove_cannotRollBack(t *testing.T) {
	out := runModel(t, func(s *schedule) {
		s.EmptyDisk, s.Events = 0, []event{{At: 1500 * time.Millisecond, Kind: "source-full"}}
	})
	must.ErrorContains(t, out.err, "and did not find it")
	must.Eq(t, []string{"CHECKPOINT a", "register b", "FREEZE b", "register a", "FREEZE b", "register ", "RELEASE b"}, out.log)
	must.Eq(t, "b", out.last().node)
	must.Len(t, 2, out.all)

	out = runModel(t, func(s *schedule) {
		s.EmptyDisk, s.Mover, s.Events = 0, 20000, []event{{At: 21150 * time.Millisecond, Kind: "target-full"}}
	})
	must.Eq(t, []string{"CHECKPOINT a", "register b", "FREEZE b", "register a", "FREEZE a", "register ", "RELEASE a", "CHECKPOINT a", "register b", "FREEZE a", "register ", "RELEASE a", "RELEASE a"}, out.log)
	must.Eq(t, "a", out.last().node)
	must.Len(t, 3, out.all)
}

// The new allocation has failed, and the target no longer accepts another one: the job goes back
// to its checkpoint, rather than anywhere.
func TestMove_failsAndUnplaced(t *testing.T) {
	out := runModel(t, func(s *schedule) {
		s.FailStart, s.Eval, s.Crash = 0, 3*time.Second, []int{27}
		s.Events = []event{{At: 6 * time.Second, Kind: "target-drained"}}
	})
	must.Len(t, 3, out.all)
	must.Eq(t, "a", out.last().node)
	must.Eq(t, out.best, out.last().begun)
}

// A moved task may report late, or never.
func TestMove_reportsLate(t *testing.T) {
	for late, known := range map[time.Duration]bool{5 * time.Second: true, time.Hour: false} {
		out := runModel(t, func(s *schedule) { s.Report = late })
		must.NoError(t, out.err)
		must.Eq(t, PhaseDone, out.res.Phase)
		must.Eq(t, "b", out.last().node)
		must.Eq(t, known, out.res.Tasks[0].Step.Known())
	}
}

// A save may take as long as checkpoint.timeout allows.
func TestMove_savesSlowly(t *testing.T) {
	out := runModel(t, func(s *schedule) { s.Timeout, s.Save = time.Hour, 10*time.Minute })
	must.NoError(t, out.err)
	must.Eq(t, "b", out.last().node)
	must.Between(t, 600, float64(out.res.SaveS), 601)
}

// A freeze shorter than the placement is renewed; one on an unreachable source expires, and
// still no second copy computes.
func TestMove_shortLease(t *testing.T) {
	out := runModel(t, func(s *schedule) { s.Lease, s.Stop, s.Steps = time.Second, 20*time.Second, 100 })
	must.NoError(t, out.err)
	must.Eq(t, "b", out.all[1].node)
	must.Eq(t, out.all[0].disk, out.all[0].step, must.Sprint("it stood still until its end"))
}

// The outcome of a registration whose answer is lost is resolved.
func TestMove_unknownOutcome(t *testing.T) {
	register := 0
	for call := 1; call < 40; call++ {
		out := runModel(t, func(s *schedule) { s.Faults = []fault{{Call: call, Kind: "late", Late: 3 * time.Second}} })
		if out.err == nil {
			must.Eq(t, "b", out.last().node)
			continue
		}
		register++
		must.ErrorContains(t, out.err, "bind: ")
		// The fence wins, and is removed.
		must.Eq(t, []string{"CHECKPOINT a", "FREEZE a", "register ", "FREEZE a", "register ", "RELEASE a", "RELEASE a"}, out.log)
		must.Eq(t, "a", out.last().node)
	}
	must.Eq(t, 1, register)
}

// A process that stalls until others have taken over its move thaws nothing that they froze.
func TestMove_stalled(t *testing.T) {
	for call := 1; call < 40; call++ {
		runModel(t, func(s *schedule) {
			s.Steps, s.Lease, s.Eval = 60, 35*time.Second, 2800*time.Millisecond
			s.Faults = []fault{{Call: call, Kind: "stall", Late: 40 * time.Second}}
		})
	}
}

// A process that stalls until the lease nearly ends renews it before it binds the job: the freeze
// must outlast Nomad's stop, or the source's checkpoint is no longer the last state.
func TestMove_stalledWhileFrozen(t *testing.T) {
	for call := 1; call < 40; call++ {
		runModel(t, func(s *schedule) {
			s.EmptyDisk, s.Lease, s.Stop = 0, 35*time.Second, 2*time.Second
			s.Faults = []fault{{Call: call, Kind: "stall", Late: 34 * time.Second}}
		})
	}
}

// A process that stalls while it rolls back does not register the job once the lease has ended: the
// job may have completed, and would run again.
func TestMove_stalledRollingBack(t *testing.T) {
	for call := 24; call < 60; call++ {
		for _, steps := range []int{30, 60, 100} {
			runModel(t, func(s *schedule) {
				s.EmptyDisk, s.Lease, s.Steps = 0, 5*time.Second, steps
				s.Faults = []fault{{Call: call, Kind: "stall", Late: 15 * time.Second}}
			})
		}
	}
}

// The second move of a job is refused and does not disturb the first.
func TestMove_claimed(t *testing.T) {
	for _, after := range []int{1, 400, 900} {
		out := runModel(t, func(s *schedule) { s.Mover = 1000 + after })
		must.NoError(t, out.err)
		must.Eq(t, "b", out.last().node)
		must.Len(t, 2, out.all)
	}
}

// The unbinding of an orphan does not disturb a move that begins meanwhile.
func TestUnbind_moved(t *testing.T) {
	moved := 0
	for late := range 200 {
		synctest.Test(t, func(*testing.T) {
			m := newModel(faultFree())
			m.job, _ = bind(m.job, "train", "a", "orphan", "")
			process := func(owner string) (*process, Options) {
				p, opts := m.process(undisturbed), DefaultOptions()
				opts.Claims, opts.Owner = p, owner
				return p, opts
			}
			unbind := func(owner string) {
				p, opts := process(owner)
				_, err := Unbind(p.ctx, p, "ml", "vae", "train", opts)
				must.True(t, err == nil || errors.Is(err, ErrClaimed), must.Sprint(err))
				p.kill()
			}
			var wait sync.WaitGroup
			wait.Go(func() { time.Sleep(time.Duration(late) * 5 * time.Millisecond); unbind("one") })
			unbind("other")
			p, opts := process("mover")
			var refused *Refused
			_, err := Move(p.ctx, p, Request{Alloc: m.all[0].id, Node: "b"}, opts)
			must.True(t, err == nil || errors.Is(err, ErrClaimed) || errors.As(err, &refused), must.Sprint(err))
			if err == nil {
				moved++
			}
			p.kill()
			wait.Wait()
			m.under(m.checkEnd)
			m.under(func() { m.over = true })
			must.SliceEmpty(t, m.wrong, must.Sprintf("%d: %v", late, m.log))
			time.Sleep(2 * time.Hour)
		})
	}
	must.Greater(t, 150, moved)
}

// A cancelled move leaves nothing behind.
func TestMove_dryRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(faultFree())
		p := m.process(undisturbed)
		res, err := Move(t.Context(), p, Request{Alloc: m.all[0].id, Node: "b", DryRun: true}, DefaultOptions())
		must.NoError(t, err)
		must.Eq(t, PhaseCheck, res.Phase)
		must.SliceEmpty(t, m.log)
		p.kill()
	})
}

func TestTransient(t *testing.T) {
	for _, err := range []error{apiError(500), apiError(404), &url.Error{Op: "Get", Err: io.EOF}, io.ErrUnexpectedEOF, json.Unmarshal([]byte("No path to node"), new(int))} {
		must.True(t, transient(fmt.Errorf("reading: %w", err)), must.Sprint(err))
	}
	for _, err := range []error{apiError(403), apiError(400), errors.New("lost the lock")} {
		must.False(t, transient(err), must.Sprint(err))
	}
}

// jobAt is a job, its allocation and two nodes.
type jobAt struct {
	nodes map[string]*api.Node
	job   *api.Job
	old   *api.Allocation
}

func newJobAt() *jobAt {
	var out jobAt
	out.nodes = make(map[string]*api.Node)
	for _, id := range []string{"a", "b"} {
		out.nodes[id] = &api.Node{
			ID: id, Name: "node-" + id, Status: api.NodeStatusReady, SchedulingEligibility: api.NodeSchedulingEligible,
			Drivers: map[string]*api.DriverInfo{driverName: {Detected: true, Healthy: true}},
		}
	}
	m := newModel(faultFree())
	out.job = documenttest.Change(m.job, func(map[string]any) {}).Job
	p := m.process(undisturbed)
	p.kill()
	out.old = p.alloc(m.all[0])
	return &out
}

func TestMovable(t *testing.T) {
	for want, change := range map[string]func(*jobAt){
		"it is not running: client status complete, desired status run": func(w *jobAt) { w.old.ClientStatus = api.AllocClientStatusComplete },
		"node node-b accepts no allocations: it is ready, ineligible":   func(w *jobAt) { w.nodes["b"].SchedulingEligibility = api.NodeSchedulingIneligible },
		"node node-b accepts no allocations: it is down, eligible":      func(w *jobAt) { w.nodes["b"].Status = api.NodeStatusDown },
		"its job is stopped":                                                         func(w *jobAt) { w.job.Stop = ptr(true) },
		"its job has changed since it was placed":                                    func(w *jobAt) { w.job.Version = ptr(uint64(3)) },
		`its job's type is "system", must be batch or service`:                       func(w *jobAt) { w.job.Type = ptr(api.JobTypeSystem) },
		"its job was dispatched or created periodically and cannot be re-registered": func(w *jobAt) { w.job.ParentID = ptr("parent") },
		"its job is periodic, and its children cannot be re-registered":              func(w *jobAt) { w.job.Periodic = &api.PeriodicConfig{} },
		"its job is parameterized, and its dispatched jobs cannot be re-registered":  func(w *jobAt) { w.job.ParameterizedJob = &api.ParameterizedJobConfig{} },
		"task train runs under driver java, must be ebbtide":                         func(w *jobAt) { w.job.TaskGroups[0].Tasks[0].Driver = "java" },
		"its job is multiregion, and a move in one region would register it in all":  func(w *jobAt) { w.job.Multiregion = &api.Multiregion{} },
		"its batch job has several groups: Nomad would re-run those that complete during the move": func(w *jobAt) {
			w.job.TaskGroups = append(w.job.TaskGroups, &api.TaskGroup{Name: ptr("other")})
		},
		"group train has a shutdown_delay of 5s, for which it would stay frozen before its end": func(w *jobAt) { w.job.TaskGroups[0].ShutdownDelay = ptr(5 * time.Second) },
		"task train has a shutdown_delay of 5s, for which it would stay frozen before its end":  func(w *jobAt) { w.job.TaskGroups[0].Tasks[0].ShutdownDelay = 5 * time.Second },
		"its job no longer has group \"train\"":                                                 func(w *jobAt) { w.job.TaskGroups[0].Name = ptr("other") },
		"group train would lose its disk: set ephemeral_disk { sticky = true, migrate = true }, or save to a volume that is the same on every node (checkpoint { shared = true })": func(w *jobAt) {
			w.job.TaskGroups[0].EphemeralDisk.Migrate = ptr(false)
		},
		"group train has a disconnect block: Nomad would start it on the target while its disconnected source still runs it, or leave it bound to a disconnected target": func(w *jobAt) {
			w.job.TaskGroups[0].Disconnect = &api.DisconnectStrategy{Replace: ptr(false)}
		},
		"its update block has canaries: old and new would run side by side": func(w *jobAt) { w.job.TaskGroups[0].Update = &api.UpdateStrategy{Canary: ptr(1)} },
		"its job is constrained to a node: ${node.unique.name} = x": func(w *jobAt) {
			w.job.Constraints = []*api.Constraint{api.NewConstraint("${node.unique.name}", "=", "x")}
		},
		"task train has no checkpoint block in its config": func(w *jobAt) { delete(w.job.TaskGroups[0].Tasks[0].Config, "checkpoint") },
		"driver ebbtide uses engine exec on node-a, but docker on node-b": func(w *jobAt) {
			for id, engine := range map[string]string{"a": "exec", "b": "docker"} {
				w.nodes[id].Drivers = map[string]*api.DriverInfo{driverName: {Detected: true, Healthy: true, Attributes: map[string]string{"driver.ebbtide.engine": engine}}}
			}
		},
		"task train runs under driver docker on node-a, which is not Ebbtide's": func(w *jobAt) {
			w.job.TaskGroups[0].Tasks[0].Driver = "docker"
			w.nodes["a"].Drivers["docker"] = &api.DriverInfo{Detected: true, Healthy: true}
		},
	} {
		w := newJobAt()
		change(w)
		_, reasons := movable(w.old, w.job, w.nodes["a"], w.nodes["b"])
		must.Eq(t, []string{want}, reasons)
	}

	w := newJobAt()
	tasks, reasons := movable(w.old, w.job, w.nodes["a"], w.nodes["a"])
	must.Eq(t, []string{"it is already on node-a"}, reasons)
	must.Eq(t, []string{"train"}, tasks)

	// A shared checkpoint needs no disk migration.
	s := newJobAt()
	s.job.TaskGroups[0].EphemeralDisk = nil
	s.job.TaskGroups[0].Tasks[0].Config["checkpoint"] = []any{map[string]any{"path": "/models/*", "shared": true}}
	_, reasons = movable(s.old, s.job, s.nodes["a"], s.nodes["b"])
	must.SliceEmpty(t, reasons)

	// Prestart and sidecar tasks need no checkpoint.
	w.job.TaskGroups[0].Tasks = append(w.job.TaskGroups[0].Tasks, &api.Task{Name: "fetch", Driver: "raw_exec", Lifecycle: &api.TaskLifecycle{Hook: "prestart"}})
	tasks, reasons = movable(w.old, w.job, w.nodes["a"], w.nodes["b"])
	must.SliceEmpty(t, reasons)
	must.Eq(t, []string{"train"}, tasks)

	// Installed as docker it is our driver.
	w.job.TaskGroups[0].Tasks[0].Driver = "docker"
	for _, n := range w.nodes {
		n.Drivers["docker"] = &api.DriverInfo{Detected: true, Healthy: true}
		n.Attributes = map[string]string{"driver.docker.ebbtide.version": "1"}
	}
	_, reasons = movable(w.old, w.job, w.nodes["a"], w.nodes["b"])
	must.SliceEmpty(t, reasons)
}

func TestBind(t *testing.T) {
	own := api.NewConstraint("${attr.cpu.arch}", "=", "amd64")
	job := documenttest.Parse([]byte(`{"TaskGroups": [{"Name": "train", "Constraints": [{"LTarget": "${attr.cpu.arch}", "Operand": "=", "RTarget": "amd64"}]}]}`))
	bound, err := bind(job, "train", "b", "1234", "a1")
	must.NoError(t, err)
	must.Len(t, 1, job.TaskGroups[0].Constraints, must.Sprint("the original does not change"))
	must.Eq(t, []*api.Constraint{own, api.NewConstraint("${node.unique.id}", "set_contains_any", "b,ebbtide-move:1234")}, bound.TaskGroups[0].Constraints)
	must.Eq(t, map[string]string{metaAdopt: "a1"}, bound.TaskGroups[0].Meta)
	node, id, ok := boundTo(bound, "train")
	must.Eq(t, []any{"b", "1234", true}, []any{node, id, ok})
	fenced, err := fence(bound, "train", "5678")
	must.NoError(t, err)
	node, id, ok = boundTo(fenced, "train")
	must.Eq(t, []any{"", "5678", true}, []any{node, id, ok})
	unbound, err := unbind(fenced, "train", "a1")
	must.NoError(t, err)
	must.Eq(t, []*api.Constraint{own}, unbound.TaskGroups[0].Constraints)
	must.Eq(t, map[string]string{metaAdopt: "a1"}, unbound.TaskGroups[0].Meta)
	_, err = unbind(bound, "other", "")
	must.ErrorContains(t, err, `no longer has group "other"`)
}

func TestSavingOf(t *testing.T) {
	task := func(block any) *api.Task { return &api.Task{Config: map[string]any{"checkpoint": block}} }
	must.Eq(t, saving{time.Minute, time.Minute, true, false}, savingOf(task([]map[string]any{{"path": "/alloc/data/c"}})))
	must.Eq(t, saving{time.Hour, time.Second, true, true}, savingOf(task([]any{map[string]any{"timeout": "1h", "lease": "1s", "shared": true}})))
	must.Eq(t, saving{30 * time.Minute, time.Minute, false, false}, savingOf(task([]any{map[string]any{"signal": "none"}})))
}

func TestPlacementFailure(t *testing.T) {
	must.Eq(t, "exhausted: cpu, exhausted: memory, constraint ${attr.kernel.name} = windows", placementFailure(&api.AllocationMetric{
		DimensionExhausted: map[string]int{"memory": 1, "cpu": 1},
		ConstraintFiltered: map[string]int{"${node.unique.id} set_contains_any b,ebbtide-move:1": 4, "${attr.kernel.name} = windows": 1},
	}))
	must.Eq(t, "the node is not eligible for the job", placementFailure(&api.AllocationMetric{}))
}
