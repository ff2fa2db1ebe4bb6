// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/metrics"
	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/progress/source"
	"github.com/ebbtide/ebbtide/driver/publish"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/driver/target"
)

type kernel struct {
	mu     sync.Mutex
	usage  limits.Usage
	limits limits.Limits

	resources limits.Resources
	threads   limits.Threads

	refuse error
	ignore bool // accept writes, but ignore them
	sets   int
}

func (k *kernel) Usage() (limits.Usage, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.usage, nil
}

func (k *kernel) Read() (limits.Limits, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.limits, nil
}

func (k *kernel) Set(want limits.Limits) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sets++
	if k.refuse == nil && !k.ignore {
		k.limits = want
	}
	return k.refuse
}

func (k *kernel) burn(cpuSeconds float64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.usage.CPUSeconds += cpuSeconds
}

func (k *kernel) Resources() limits.Resources {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.resources
}

func (k *kernel) Threads() limits.Threads {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.threads)
}

// thread is a thread that runs and waits for a CPU for some seconds.
func (k *kernel) thread(id int, run, wait float64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.threads == nil {
		k.threads = make(limits.Threads)
	}
	t := k.threads[id]
	k.threads[id] = limits.Thread{Run: t.Run + time.Duration(run*1e9), Wait: t.Wait + time.Duration(wait*1e9)}
}

func (k *kernel) InForce(want, got limits.Limits) bool { return want == got }
func (k *kernel) Conversion() limits.Conversion        { return limits.Identity }
func (k *kernel) SetConversion(limits.Conversion)      {}

// node is a controller in a synctest bubble, with real log files.
type node struct {
	t      testing.TB
	c      *Controller
	ctx    context.Context
	stop   context.CancelFunc
	events chan publish.Event
	dir    string
}

type fake struct {
	Task
	*kernel
	log      *os.File
	progress progress.Config // read at the task's start
}

func bubble(f func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { synctest.Test(t, f) }
}

func decider(t testing.TB, name string, options ...string) policy.Decider {
	t.Helper()
	p, err := policies.Find(name)
	must.NoError(t, err)
	values := make(map[string]json.RawMessage)
	for i := 0; i < len(options); i += 2 {
		values[options[i]] = json.RawMessage(options[i+1])
	}
	d, err := p.Configure(values)
	must.NoError(t, err)
	return d
}

func newNode(t testing.TB, change func(*Options)) *node {
	n := &node{t: t, events: make(chan publish.Event, 100), dir: t.TempDir()}
	opts := Options{
		Engine: "exec", Policy: decider(t, "flowcon"), Estimator: growth.KindRobust, Mode: plan.ModeWeight,
		Interval: 10 * time.Second, MaxInterval: time.Minute, PoolCores: 2, QuotaMinCores: 1,
		NoProgressAfter: time.Minute,
		SpeCon:          specon.DefaultParams(), SpeConInterval: 30 * time.Second,
		Emit:    func(ev publish.Event) { n.events <- ev },
		Metrics: metrics.New(),
	}
	if change != nil {
		change(&opts)
	}
	n.run(opts)
	return n
}

// run runs a controller. Tests act in the middle of its seconds.
func (n *node) run(opts Options) {
	n.c = New(opts, hclog.NewNullLogger())
	n.ctx, n.stop = context.WithCancel(n.t.Context())
	done := make(chan struct{})
	go func() { n.c.loop(n.ctx); close(done) }()
	n.t.Cleanup(func() { n.stop(); <-done })
	time.Sleep(500 * time.Millisecond)
}

// restart replaces the controller, like a restart of the plugin, and recovers the tasks.
func (n *node) restart(change func(*Options), fakes ...*fake) {
	n.t.Helper()
	n.stop()
	synctest.Wait()
	opts := n.c.opts
	if change != nil {
		change(&opts)
	}
	n.run(opts)
	for _, f := range fakes {
		f.Recovered = true
		n.start(f)
	}
}

// task creates a task's directories and cgroup.
func (n *node) task(name string) *fake {
	n.t.Helper()
	alloc := filepath.Join(n.dir, name, "alloc")
	logs := filepath.Join(alloc, "logs")
	must.NoError(n.t, os.MkdirAll(logs, 0o755))
	log, err := os.OpenFile(filepath.Join(logs, name+".stdout.0"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must.NoError(n.t, err)
	n.t.Cleanup(func() { _ = log.Close() })
	f := &fake{kernel: &kernel{limits: limits.Limits{Shares: 1000}}, log: log}
	f.Task = Task{
		ID: name + "-1", AllocID: "alloc-" + name, Name: name, JobID: "job-" + name,
		SharedDir: alloc, Private: private.Open(filepath.Dir(alloc)), Limited: true, Shares: 1000,
		Open: func() (progress.Source, error) {
			return source.Open(f.progress, source.Task{Name: name, LogDir: logs, LocalDir: alloc, AllocDir: alloc})
		},
		Locate: func(context.Context) (Cgroup, error) { return f.kernel, nil },
	}
	return f
}

func (n *node) start(f *fake) {
	n.t.Helper()
	n.c.Add(f.Task)
	synctest.Wait()
}

func (n *node) remove(f *fake) {
	n.t.Helper()
	n.c.Remove(f.ID, true)
	synctest.Wait()
}

// behaviour maps tasks to their CPU-seconds and output line of the next second.
type behaviour = map[*fake]func() (cpu float64, line string)

func (n *node) second(tasks behaviour) {
	n.t.Helper()
	for f, do := range tasks {
		cpu, line := do()
		f.burn(cpu)
		if line != "" {
			_, err := fmt.Fprintln(f.log, line)
			must.NoError(n.t, err)
		}
	}
	n.pass(time.Second)
}

// pass advances time, and publishes the test's changes to the loop, which owns its state.
func (n *node) pass(d time.Duration) {
	n.t.Helper()
	n.c.post(func(context.Context) {})
	time.Sleep(d)
	synctest.Wait()
}

func (n *node) seconds(count int, tasks behaviour) {
	n.t.Helper()
	for range count {
		n.second(tasks)
	}
}

func (n *node) event(kind string) publish.Event {
	n.t.Helper()
	for range 120 {
		for len(n.events) > 0 {
			if ev := <-n.events; ev.Annotations["ebbtide"] == kind {
				return ev
			}
		}
		n.pass(time.Second)
	}
	n.t.Fatalf("no event of kind %q", kind)
	return publish.Event{}
}

func (f *fake) shown(t testing.TB) status.Status {
	t.Helper()
	st, err := status.ReadStatus(filepath.Join(f.SharedDir, "data/ebbtide", f.Name+".json"))
	must.NoError(t, err)
	return st
}

// learner is a behaviour: a loss that falls as e^(−k·cpu), on cpu cores, with deterministic noise.
func learner(k, cpu, noise float64) func() (float64, string) {
	var used float64
	step := 0
	return func() (float64, string) {
		step++
		used += cpu
		wobble := noise * math.Sin(float64(step)*12.9898) * math.Cos(float64(step)*78.233)
		return cpu, fmt.Sprintf("step=%d loss=%.6f", step, 0.1+2*math.Exp(-k*used)+wobble)
	}
}

func TestGrowingTaskGetsMoreThanConverged(t *testing.T) {
	for _, mode := range []plan.Mode{plan.ModeWeight, plan.ModeQuota} {
		t.Run(string(mode), bubble(func(t *testing.T) {
			n := newNode(t, func(o *Options) { o.Mode = mode })
			flat, grows := n.task("flat"), n.task("grows")
			n.start(flat)
			do := behaviour{flat: learner(0.5, 1, 0.01)}
			n.seconds(60, do)
			must.Eq(t, limits.Limits{Shares: 1000}, flat.limits, must.Sprint("a lone task has what Nomad gave it"))

			n.start(grows)
			do[grows] = learner(0.005, 1, 0.01)
			n.seconds(60, do)
			must.Eq(t, policy.CL, n.c.find(flat.ID).decision.Category)
			must.Eq(t, policy.NL, n.c.find(grows.ID).decision.Category)
			if mode == plan.ModeWeight {
				must.Eq(t, 2000, flat.limits.Shares+grows.limits.Shares, must.Sprint("shares are conserved"))
				must.GreaterEq(t, 2*flat.limits.Shares, grows.limits.Shares)
				must.GreaterEq(t, 500, flat.limits.Shares, must.Sprint("half of its fair share is left to a converged task"))
			} else {
				must.Eq(t, 0.5, flat.limits.QuotaCores, must.Sprint("1/(β·n) of two cores"))
				must.Eq(t, 0, grows.limits.QuotaCores)
				must.Eq(t, 1000, flat.limits.Shares)
			}

			n.remove(grows)
			must.Eq(t, limits.Limits{Shares: 1000}, flat.limits, must.Sprint("released at once when it is alone again"))
		}))
	}
}

// A frozen task waits for a move, which reads the status, so it is written at once, however many
// tasks there are.
func TestMovesAreShownAtOnce(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		var last *fake
		for i := range 20 {
			last = n.task(fmt.Sprint("t", i))
			n.start(last)
		}
		n.seconds(10, nil)
		for _, state := range []string{status.MoveSaving, status.MoveReady, ""} {
			n.c.Moving(last.ID, status.Move{State: state, Step: status.Unknown()})
			synctest.Wait()
			must.Eq(t, state, last.shown(t).Move.State)
		}
	})(t)
}

func TestPolicyNoneLeavesLimitsAlone(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Policy = decider(t, "none") })
		a, b := n.task("a"), n.task("b")
		n.start(a)
		n.start(b)
		do := behaviour{a: learner(0.5, 1, 0.01), b: learner(0.01, 1, 0.01)}
		n.seconds(60, do)
		must.Eq(t, 0, a.sets+b.sets)
	})(t)
}

func TestPolicyNoneReleasesWhatAnEarlierProcessSet(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		flat, grows := n.task("flat"), n.task("grows")
		n.start(flat)
		n.start(grows)
		do := behaviour{flat: learner(1, 1, 0), grows: learner(0.005, 1, 0)}
		n.seconds(60, do)
		must.NotEq(t, uint64(1000), flat.limits.Shares)

		n.restart(func(o *Options) { o.Policy = decider(t, "none") }, flat, grows)
		n.seconds(5, do)
		must.Eq(t, limits.Limits{Shares: 1000}, flat.limits)
		must.Eq(t, limits.Limits{Shares: 1000}, grows.limits)
	})(t)
}

func TestRecoveryRestoresAndKeepsLimits(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		flat, grows := n.task("flat"), n.task("grows")
		n.start(flat)
		n.start(grows)
		do := behaviour{flat: learner(1, 1, 0.005), grows: learner(0.005, 1, 0.005)}
		n.seconds(90, do)
		before := n.c.find(flat.ID)
		must.Eq(t, policy.CL, before.decision.Category)
		inForce, sets := flat.limits, flat.sets
		must.NotEq(t, uint64(1000), inForce.Shares)

		// Files that the task can write are ignored: a forged status must not set shares.
		must.NoError(t, os.WriteFile(filepath.Join(flat.SharedDir, "data/ebbtide/flat.json"),
			[]byte(`{"category": "NL", "limit": {"fraction": 1, "shares": 262144}, "resume": {"run": "flat-1", "base": {"Shares": 262144}}}`), 0o644))
		must.NoError(t, os.WriteFile(filepath.Join(flat.SharedDir, "data/ebbtide/flat.csv"), []byte("forged\n"), 0o644))
		n.restart(nil, flat, grows)
		must.Eq(t, inForce, flat.limits, must.Sprint("nothing is decided while tasks are still being recovered"))
		after := n.c.find(flat.ID)
		must.Eq(t, policy.CL, after.decision.Category)
		must.Eq(t, limits.Limits{Shares: 1000}, after.base)
		must.True(t, after.since.Equal(before.since))
		must.Positive(t, after.m.Estimate.Reports, must.Sprint("the curve is back in the estimator"))
		n.seconds(20, do)
		must.Eq(t, policy.CL, after.decision.Category)
		must.Eq(t, policy.NL, n.c.find(grows.ID).decision.Category)
		n.pass(2 * time.Second) // reports after the last tick
		must.Eq(t, 110, after.m.Reports, must.Sprint("no report is read twice, none is lost"))
		must.LessEq(t, sets+2, flat.sets)
	})(t)
}

func TestForgedStateIsNone(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.task("t")
		n.start(f)
		n.seconds(20, behaviour{f: learner(1, 1, 0)})
		n.stop()
		path := filepath.Join(n.dir, "t", private.DirName, private.StateName("t"))
		data, err := os.ReadFile(path)
		must.NoError(t, err)
		forged := strings.Replace(string(data), `"Shares":1000`, `"Shares":262144`, 1)
		must.NotEq(t, string(data), forged)
		must.NoError(t, os.WriteFile(path, []byte(forged), 0o600))
		n.restart(nil, f)
		must.Eq(t, 1000, n.c.find(f.ID).base.Shares)
	})(t)
}

// slow is a source that is slow, as a valid pattern can be.
type slow struct {
	progress.Source
	takes time.Duration
	polls *atomic.Int32
}

func (s slow) Poll(ctx context.Context) ([]progress.Report, error) {
	s.polls.Add(1)
	time.Sleep(s.takes)
	return s.Source.Poll(ctx)
}

// A slow source delays only its own task, within its time budget.
func TestSlowSourceDelaysItsOwnTaskOnly(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		hostile, flat, grows := n.task("hostile"), n.task("flat"), n.task("grows")
		open, polls := hostile.Open, new(atomic.Int32)
		hostile.Open = func() (progress.Source, error) {
			src, err := open()
			return slow{src, 700 * time.Millisecond, polls}, err
		}
		for _, f := range []*fake{hostile, flat, grows} {
			n.start(f)
		}
		do := behaviour{hostile: learner(0.5, 0.5, 0), flat: learner(1, 0.5, 0), grows: learner(0.005, 1, 0)}
		n.seconds(120, do)
		must.Eq(t, policy.CL, n.c.find(flat.ID).decision.Category)
		must.Between(t, 119, n.c.find(grows.ID).m.Reports, 120)
		must.Less(t, grows.limits.Shares, flat.limits.Shares)
		must.Between(t, 2, polls.Load(), 14, must.Sprint("a twentieth of a core"))
	})(t)
}

func TestSourceThatHangs(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		hangs, flat, grows := n.task("hangs"), n.task("flat"), n.task("grows")
		open, polls := hangs.Open, new(atomic.Int32)
		hangs.Open = func() (progress.Source, error) {
			src, err := open()
			return slow{src, 10 * time.Minute, polls}, err
		}
		for _, f := range []*fake{hangs, flat, grows} {
			n.start(f)
		}
		n.seconds(90, behaviour{hangs: learner(0.5, 0.5, 0), flat: learner(1, 0.5, 0), grows: learner(0.005, 1, 0)})
		must.Less(t, grows.limits.Shares, flat.limits.Shares)
		must.Eq(t, 1, polls.Load())
		must.InDelta(t, 90, n.c.find(grows.ID).m.Report.Step, 1)
		n.remove(hangs)
		n.stop()
		time.Sleep(10 * time.Minute) // until it ends
	})(t)
}

// One measurement changes the category once, despite a slow interval and a join.
func TestCategoryChangesOnNewEvidenceOnly(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f, other := n.task("f"), n.task("other")
		n.start(f)
		n.start(other)
		do := behaviour{f: learner(0.01, 1, 0), other: learner(0.01, 1, 0)}
		n.seconds(45, do)
		must.Eq(t, policy.NL, n.c.find(f.ID).decision.Category)
		step := 45
		do[f] = func() (float64, string) { step++; return 1, fmt.Sprintf("step=%d loss=0.5", step) }
		for range 200 {
			if n.c.find(f.ID).decision.Category != policy.NL {
				break
			}
			n.second(do)
		}
		must.Eq(t, policy.WL, n.c.find(f.ID).decision.Category)
		for i := range 3 {
			n.start(n.task(fmt.Sprint("guest", i)))
			must.Eq(t, policy.WL, n.c.find(f.ID).decision.Category)
		}
	})(t)
}

// Use and limits refer to the same pool: with 2 of 8 cores owned by others and the rest in use, it
// is full.
func TestUseIsAPartOfThePoolThatIsLimited(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) {
			o.PoolCores = 8
			o.SharedCPUs = func() ([]int, error) { return []int{0, 1, 2, 3, 4, 5}, nil }
			o.Policy = decider(t, "tradl")
		})
		good, _ := n.target("good", target.Targets{Acceptable: num(0.9), Hold: 1})
		other, _ := n.target("other", target.Targets{Acceptable: num(0.001), Hold: 1})
		n.start(good)
		n.start(other)
		n.seconds(90, behaviour{good: learner(0.01, 3, 0), other: learner(0.001, 3, 0)})
		must.InDelta(t, 0.5, float64(good.shown(t).Use), 0.05)
		must.StrContains(t, good.shown(t).Rule, "tradl.acceptable")
	})(t)
}

// A task's entitlement is Nomad's, not 1/n.
func TestEntitlement(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		big := n.task("big")
		big.limits.Shares = 8000
		do := behaviour{big: func() (float64, string) { return 1, "" }}
		n.start(big)
		var small []*fake
		for i := range 7 {
			f := n.task(fmt.Sprint("small", i))
			f.limits.Shares = 500
			small = append(small, f)
			do[f] = learner(0.005+0.3*float64(i), 0.1, 0)
			n.start(f)
		}
		for range 90 {
			n.second(do)
			must.Eq(t, 8000, big.limits.Shares)
			sum := uint64(0)
			for _, f := range small {
				sum += f.limits.Shares
				must.GreaterEq(t, 249, f.limits.Shares, must.Sprint("the floor is a half of the entitlement"))
			}
			must.Eq(t, 3500, sum)
		}
		must.Greater(t, small[6].limits.Shares, small[0].limits.Shares)
	})(t)
}

func TestTaskWithoutCgroup(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f, reached := n.target("lost", target.Targets{Objective: num(0.3), Hold: 1})
		f.Locate = func(context.Context) (Cgroup, error) { return nil, errors.New("no such process") }
		n.start(f)
		n.seconds(5, behaviour{f: says(0.5, 0.4, 0.35, 0.3)})
		must.Eq(t, policy.Objective, (<-reached).State)
		must.StrContains(t, n.event("cgroup").Message, "neither measured nor limited: no such process")
		st := f.shown(t)
		must.Eq(t, 5, st.Reports)
		must.StrContains(t, st.Why, "cgroup not found yet")
	})(t)
}

// The node's last snapshot is in the private directory of one allocation, and valid for every
// policy.
func TestSnapshotIsWhatDecideReads(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Policies = map[string]json.RawMessage{"flowcon": json.RawMessage(`{"beta": 3}`)} })
		first, second := n.task("first"), n.task("second")
		second.Targets = target.Targets{QoE: 0.1}
		n.start(first)
		n.start(second)
		do := behaviour{first: learner(0.05, 1, 0), second: func() (float64, string) { return 1, "loss=0.2" }}
		n.seconds(40, do)
		path := func(name string) string { return filepath.Join(n.dir, name, private.DirName, private.SnapshotName) }
		data, err := os.ReadFile(path("first"))
		must.NoError(t, err)
		for _, p := range policies.All() {
			out, err := p.Decide(data)
			must.NoError(t, err, must.Sprint(p.Name))
			must.Len(t, 2, out.(policy.Outcome).Tasks)
		}
		n.remove(first)
		n.seconds(2, do)
		_, err = os.Stat(path("second"))
		must.NoError(t, err)
		_, err = os.Stat(path("first"))
		must.ErrorIs(t, err, fs.ErrNotExist)
	})(t)
}

func TestTaskWithoutProgressKeepsFairShare(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		mute, flat, grows := n.task("mute"), n.task("flat"), n.task("grows")
		for _, f := range []*fake{mute, flat, grows} {
			n.start(f)
		}
		do := behaviour{
			mute:  func() (float64, string) { return 1, "nothing to see here" },
			flat:  learner(1, 0.5, 0.005),
			grows: learner(0.005, 0.5, 0.005),
		}
		for range 120 {
			n.second(do)
			must.GreaterEq(t, 999, mute.limits.Shares)
		}
		must.Eq(t, 1000, mute.limits.Shares)
		must.Less(t, grows.limits.Shares, flat.limits.Shares)
		ev := n.event("no-progress")
		must.StrContains(t, ev.Message, "ebbtide progress")
	})(t)
}

// Without collected output there is nothing to wait for.
func TestNoOutput(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.task("silenced")
		f.NoOutput = true
		n.start(f)
		n.seconds(5, behaviour{f: func() (float64, string) { return 1, "" }})
		must.Eq(t, 1, len(n.events))
		must.StrContains(t, n.event("no-progress").Message, "Nomad does not collect the task's output (logs { disabled = true })")
	})(t)
}

func TestDivergedGivesWay(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		bad, grows := n.task("bad"), n.task("grows")
		n.start(bad)
		n.start(grows)
		good := learner(0.01, 1, 0.001)
		step := 0
		do := behaviour{
			bad: func() (float64, string) {
				if step++; step > 40 {
					return 1, fmt.Sprintf("step=%d loss=nan", step)
				}
				return good()
			},
			grows: learner(0.005, 1, 0.001),
		}
		n.seconds(80, do)
		must.Eq(t, policy.CL, n.c.find(bad.ID).decision.Category)
		must.Less(t, grows.limits.Shares, bad.limits.Shares)
		must.StrContains(t, n.event("diverged").Message, "diverged")
	})(t)
}

func TestLimitThatFailsIsSaidOnceAndTriedAgain(t *testing.T) {
	for name, fail := range map[string]func(*kernel, bool){
		"refused": func(k *kernel, on bool) {
			k.refuse = nil
			if on {
				k.refuse = errors.New("daemon does not answer")
			}
		},
		"not taken": func(k *kernel, on bool) { k.ignore = on },
	} {
		t.Run(name, bubble(func(t *testing.T) {
			n := newNode(t, nil)
			flat, grows := n.task("flat"), n.task("grows")
			n.start(flat)
			n.start(grows)
			fail(flat.kernel, true)
			do := behaviour{flat: learner(1, 1, 0), grows: learner(0.005, 1, 0)}
			n.seconds(120, do)
			must.Eq(t, limits.Limits{Shares: 1000}, flat.limits)
			must.StrContains(t, n.event("limit-failed").Message, "cannot set its CPU limit")
			st := flat.shown(t)
			must.NotEq(t, "", st.Limit.Error)
			must.Less(t, 120, flat.sets, must.Sprint("ever more slowly"))

			fail(flat.kernel, false)
			n.seconds(120, do)
			must.Less(t, uint64(1000), flat.limits.Shares)
			must.NoError(t, n.c.find(flat.ID).enforced.Err)
			for len(n.events) > 0 {
				must.NotEq(t, "limit-failed", (<-n.events).Annotations["ebbtide"], must.Sprint("said once"))
			}
		}))
	}
}

func TestLimitChangedByOthersIsSetAgain(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		flat, grows := n.task("flat"), n.task("grows")
		n.start(flat)
		n.start(grows)
		do := behaviour{flat: learner(1, 1, 0), grows: learner(0.005, 1, 0)}
		n.seconds(60, do)
		want := flat.limits
		must.NoError(t, flat.Set(limits.Limits{Shares: 77}))
		n.seconds(90, do)
		must.Eq(t, want, flat.limits)
	})(t)
}

func TestOptedOutIsNeverTouched(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		out, flat, grows := n.task("out"), n.task("flat"), n.task("grows")
		out.Limited = false
		for _, f := range []*fake{out, flat, grows} {
			n.start(f)
		}
		do := behaviour{out: learner(1, 0.5, 0), flat: learner(1, 0.5, 0), grows: learner(0.005, 1, 0)}
		n.seconds(60, do)
		must.Eq(t, 0, out.sets)
		must.Positive(t, flat.sets)
		st := out.shown(t)
		must.StrContains(t, st.Why, "not to be limited")
	})(t)
}

func TestPinnedCoresComeOffThePool(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.PoolCores = 8 })
		pinned := n.task("pinned")
		pinned.Limited, pinned.Pinned = false, 2
		n.start(pinned)
		must.Eq(t, 6, n.c.poolCores())
		n.c.opts.PoolFixed = true
		must.Eq(t, 8, n.c.poolCores())
	})(t)
}

func TestCgroupThatComesLate(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.task("late")
		tries := 0
		f.Locate = func(context.Context) (Cgroup, error) {
			if tries++; tries < 3 {
				return nil, errors.New("not yet")
			}
			return f.kernel, nil
		}
		n.start(f)
		n.seconds(2, nil)
		must.Eq(t, 3, tries)
		must.NotNil(t, n.c.find(f.ID).cgroup)
	})(t)
}

// A recovered task whose cgroup is not found yet keeps its figures: a counter does not return to 0.
func TestRecoveredCgroupThatComesLate(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.task("late")
		n.start(f)
		n.seconds(10, behaviour{f: learner(0.1, 0.5, 0)})
		before := f.shown(t)
		must.Positive(t, before.CPUSeconds)
		f.Locate = func(context.Context) (Cgroup, error) { return nil, errors.New("not yet") }
		n.restart(nil, f)
		n.seconds(5, behaviour{f: learner(0.1, 0.5, 0)})
		st := f.shown(t)
		must.Greater(t, before.Reports, st.Reports)
		must.Eq(t, before.CPUSeconds, st.CPUSeconds)
		must.NotNil(t, n.c.find(f.ID).restored)
	})(t)
}

func TestRemovedWhileLookedFor(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.task("brief")
		found := make(chan struct{})
		f.Locate = func(context.Context) (Cgroup, error) { <-found; return f.kernel, nil }
		n.start(f)
		n.remove(f)
		close(found)
		synctest.Wait()
		must.Nil(t, n.c.find(f.ID))
		n.remove(n.task("never heard of"))
	})(t)
}

func (f *fake) history(t testing.TB) []status.Row {
	t.Helper()
	rows, err := status.ReadHistory(filepath.Join(f.SharedDir, "data/ebbtide", f.Name+".csv"))
	must.NoError(t, err)
	return rows
}

func (n *node) ended(name string) *fake {
	n.t.Helper()
	f := n.task(name)
	n.start(f)
	n.seconds(5, behaviour{f: learner(0.01, 1, 0)})
	n.remove(f)
	return f
}

func TestLinesThatComeLateAreInTheLastStatus(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.ended("t")
		history := f.history(t)
		must.Eq(t, 5, f.shown(t).Reports)

		_, err := fmt.Fprint(f.log, "step=6 loss=0.25\nstep=7 loss=0.125\n")
		must.NoError(t, err)
		n.seconds(1, nil)
		st, rows := f.shown(t), f.history(t)
		must.Eq(t, 7, st.Reports)
		must.Eq(t, 7, st.Step)
		must.Eq(t, 0.125, float64(st.Value))
		must.Len(t, len(history)+1, rows)
		must.Eq(t, 0.125, rows[len(history)].Value)
		must.Nil(t, n.c.find(f.ID))
	})(t)
}

func TestLastLookThatFindsNothingWritesNothing(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.ended("t")
		before, history := f.shown(t), f.history(t)
		_, err := fmt.Fprintln(f.log, "done, no report in this line")
		must.NoError(t, err)
		n.seconds(1, nil)
		must.True(t, f.shown(t).Updated.Equal(before.Updated))
		must.Len(t, len(history), f.history(t))
	})(t)
}

// restarted starts a task anew in its allocation.
func (n *node) restarted(f *fake) *fake {
	n.t.Helper()
	next := &fake{Task: f.Task, kernel: f.kernel, log: f.log}
	next.ID = "t-2"
	n.start(next)
	return next
}

func TestLastLinesOfAnEarlierRun(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.ended("t")
		began := time.Now()
		time.AfterFunc(100*time.Millisecond, func() { _, _ = fmt.Fprintln(f.log, "step=6 loss=0.25") })

		n.c.LastLines(t.Context(), f.AllocID, f.Name)
		must.Between(t, 100*time.Millisecond, time.Since(began), time.Second)
		must.Eq(t, 6, f.shown(t).Reports)
		restarted := n.restarted(f)
		n.second(behaviour{restarted: learner(0.01, 1, 0)})
		n.seconds(2, nil)
		must.Eq(t, 1, restarted.shown(t).Reports, must.Sprint("the late line belongs to the earlier run only"))

		again := time.Now()
		n.c.LastLines(t.Context(), f.AllocID, f.Name)
		n.c.LastLines(t.Context(), f.AllocID, "never heard of")
		must.Zero(t, time.Since(again))
	})(t)
}

func TestLastLinesOfAReaderThatHangs(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.task("t")
		hangs := make(chan struct{})
		open := f.Open
		f.Open = func() (progress.Source, error) { <-hangs; return open() }
		n.start(f)
		n.remove(f)
		began := time.Now()
		n.c.LastLines(t.Context(), f.AllocID, f.Name)
		must.Between(t, time.Second, time.Since(began), 3*time.Second)
		f.Open = open
		restarted := n.restarted(f)
		n.second(behaviour{restarted: learner(0.01, 1, 0)})
		n.seconds(2, nil)
		close(hangs)
		n.seconds(1, nil)
		must.Eq(t, 1, restarted.shown(t).Reports, must.Sprint("the restarted task's status is left alone"))
	})(t)
}

func TestLastLookWithoutAReader(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.task("t")
		f.progress.Pattern = "(" // not validated
		n.start(f)
		n.remove(f)
		n.seconds(1, nil)
	})(t)
}

func TestUnwritableDirectoryHurtsNobody(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.task("t")
		must.NoError(t, os.WriteFile(filepath.Join(f.SharedDir, "data"), []byte("in the way"), 0o644))
		n.start(f)
		do := behaviour{f: learner(0.01, 1, 0)}
		n.seconds(60, do)
		must.True(t, n.c.find(f.ID).measured())
		must.StrContains(t, n.event("status").Message, "not affected")
	})(t)
}

func TestHistoryAndStatusAreWritten(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.task("t")
		n.start(f)
		do := behaviour{f: learner(0.01, 1, 0)}
		n.seconds(40, do)
		n.seconds(1, nil) // one tick
		st := f.shown(t)
		must.Eq(t, "loss", st.Metric)
		must.Eq(t, "min", st.Goal)
		must.Eq(t, 40, st.Step)
		must.Eq(t, "NL", st.Category)
		must.Eq(t, 40, st.Reports)
		must.Eq(t, 1, st.Node.Tasks)
		must.Positive(t, float64(st.Growth))
		must.InDelta(t, 0.5, float64(st.Use), 0.06)
		rows, err := status.ReadHistory(filepath.Join(f.SharedDir, "data/ebbtide/t.csv"))
		must.NoError(t, err)
		must.GreaterEq(t, 35, len(rows))
	})(t)
}

func TestRunTakesTasksAndEnds(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, func(o *Options) { o.Interval = time.Second })
		ctx, cancel := context.WithCancel(t.Context())
		c, done := New(n.c.opts, hclog.NewNullLogger()), make(chan struct{})
		go func() { c.Run(ctx); close(done) }()
		f := n.task("t")
		c.Add(f.Task)
		time.Sleep(3 * time.Second)
		must.StrHasPrefix(t, "flowcon.", f.shown(t).Rule)
		c.Remove(f.ID, true)
		cancel()
		<-done
	})(t)
}
