// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/auto"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/progress/source"
	"github.com/ebbtide/ebbtide/driver/status"
)

// kernel is a cgroup in memory. It takes what is set unless it is told to refuse.
type kernel struct {
	mu     sync.Mutex
	usage  limits.Usage
	limits limits.Limits

	resources limits.Resources
	ioSets    []uint64

	refuse error
	ignore bool // take it, but do nothing
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

func (k *kernel) set(want limits.Limits) error {
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

func (k *kernel) SetIOWeight(w uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ioSets = append(k.ioSets, w)
	return k.refuse
}

func (k *kernel) InForce(want, got limits.Limits) bool { return want == got }
func (k *kernel) Conversion() limits.Conversion        { return limits.Identity }
func (k *kernel) SetConversion(limits.Conversion)      {}

// node is a controller whose time the test moves, with real log files.
type node struct {
	t      testing.TB
	c      *Controller
	clock  time.Time
	events chan Event
	dir    string
}

// fake is a task on it.
type fake struct {
	Task
	*kernel
	log      *os.File
	progress progress.Config // read when the task is started
}

func newNode(t testing.TB, change func(*Options)) *node {
	n := &node{t: t, clock: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), events: make(chan Event, 100), dir: t.TempDir()}
	opts := Options{
		Engine: "exec", Policy: policies.FlowCon, Estimator: growth.KindRobust, Mode: limits.ModeWeight, Params: auto.DefaultParams(),
		Interval: 10 * time.Second, MaxInterval: time.Minute, PoolCores: 2, QuotaMinCores: 1,
		NoProgressAfter: time.Minute,
		SpeCon:          specon.DefaultParams(), SpeConInterval: 30 * time.Second,
		Emit: func(ev Event) { n.events <- ev },
	}
	if change != nil {
		change(&opts)
	}
	n.c = New(opts, hclog.NewNullLogger())
	n.c.now = func() time.Time { return n.clock }
	return n
}

// task makes a task's directories and its cgroup.
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
		AllocDir: alloc, Limited: true, Shares: 1000,
		Open: func() (progress.Source, error) {
			return source.Open(f.progress, source.Task{Name: name, LogDir: logs, LocalDir: alloc, AllocDir: alloc})
		},
		Locate: func(context.Context) (Cgroup, error) { return f.kernel, nil },
		Apply:  func(_ context.Context, _ Cgroup, want limits.Limits) error { return f.set(want) },
	}
	return f
}

// start adds a task and waits until the loop has found its cgroup.
func (n *node) start(f *fake) {
	n.t.Helper()
	n.c.add(n.t.Context(), f.Task)
	n.until("the cgroup of "+f.Name, func() bool { return n.c.find(f.ID).cgroup != nil })
	n.settle()
}

// until runs what was posted until a condition holds.
func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			n.t.Fatalf("waited in vain for %s", what)
		}
		for _, f := range n.c.takePosted() {
			f(n.t.Context())
		}
		time.Sleep(time.Millisecond)
	}
}

// settle waits until no limit is being set.
func (n *node) settle() {
	n.t.Helper()
	n.until("limits to be set", func() bool {
		for _, s := range n.c.tasks {
			if s.applying {
				return false
			}
		}
		return true
	})
}

// second lets a second pass: every task burns its CPU and writes its line.
func (n *node) second(tasks map[*fake]func() (cpu float64, line string)) {
	n.t.Helper()
	n.clock = n.clock.Add(time.Second)
	for f, do := range tasks {
		cpu, line := do()
		f.burn(cpu)
		if line != "" {
			_, err := fmt.Fprintln(f.log, line)
			must.NoError(n.t, err)
		}
	}
	n.c.tick(n.t.Context())
	n.settle()
}

// learner returns a task's behaviour: a loss that falls as e^(−k·cpu), on cpu
// cores, with some deterministic noise.
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
	for _, mode := range []limits.Mode{limits.ModeWeight, limits.ModeQuota} {
		t.Run(string(mode), func(t *testing.T) {
			n := newNode(t, func(o *Options) { o.Mode = mode })
			flat, grows := n.task("flat"), n.task("grows")
			n.start(flat)
			do := map[*fake]func() (float64, string){flat: learner(0.5, 1, 0.01)}
			for range 60 {
				n.second(do)
			}
			must.Eq(t, limits.Limits{Shares: 1000}, flat.limits, must.Sprint("a lone task has what Nomad gave it"))

			n.start(grows)
			do[grows] = learner(0.005, 1, 0.01)
			for range 60 {
				n.second(do)
			}
			must.Eq(t, policy.CL, n.c.find(flat.ID).category)
			must.Eq(t, policy.NL, n.c.find(grows.ID).category)
			if mode == limits.ModeWeight {
				must.Eq(t, 2000, flat.limits.Shares+grows.limits.Shares, must.Sprint("shares are conserved"))
				must.GreaterEq(t, 2*flat.limits.Shares, grows.limits.Shares)
				must.GreaterEq(t, 500, flat.limits.Shares, must.Sprint("half of its fair share is left to a converged task"))
			} else {
				must.Eq(t, 0.5, flat.limits.QuotaCores, must.Sprint("1/(β·n) of two cores"))
				must.Eq(t, 0, grows.limits.QuotaCores)
				must.Eq(t, 1000, flat.limits.Shares)
			}

			n.c.remove(t.Context(), grows.ID)
			n.settle()
			must.Eq(t, limits.Limits{Shares: 1000}, flat.limits, must.Sprint("released at once when it is alone again"))
		})
	}
}

func TestPolicyNoneLeavesLimitsAlone(t *testing.T) {
	n := newNode(t, func(o *Options) { o.Policy = policies.None })
	a, b := n.task("a"), n.task("b")
	n.start(a)
	n.start(b)
	do := map[*fake]func() (float64, string){a: learner(0.5, 1, 0.01), b: learner(0.01, 1, 0.01)}
	for range 60 {
		n.second(do)
	}
	must.Eq(t, 0, a.sets+b.sets)
}

func TestPolicyNoneReleasesWhatAnEarlierProcessSet(t *testing.T) {
	n := newNode(t, nil)
	flat, grows := n.task("flat"), n.task("grows")
	n.start(flat)
	n.start(grows)
	do := map[*fake]func() (float64, string){flat: learner(1, 1, 0), grows: learner(0.005, 1, 0)}
	for range 60 {
		n.second(do)
	}
	must.NotEq(t, uint64(1000), flat.limits.Shares)

	later := newNode(t, func(o *Options) { o.Policy = policies.None })
	later.clock = n.clock
	for _, f := range []*fake{flat, grows} {
		f.Recovered = true
		later.start(f)
	}
	for range 5 {
		later.second(do)
	}
	must.Eq(t, limits.Limits{Shares: 1000}, flat.limits)
	must.Eq(t, limits.Limits{Shares: 1000}, grows.limits)
}

func TestRecoveryRestoresAndKeepsLimits(t *testing.T) {
	n := newNode(t, nil)
	flat, grows := n.task("flat"), n.task("grows")
	n.start(flat)
	n.start(grows)
	do := map[*fake]func() (float64, string){flat: learner(1, 1, 0.005), grows: learner(0.005, 1, 0.005)}
	for range 90 {
		n.second(do)
	}
	before := n.c.find(flat.ID)
	must.Eq(t, policy.CL, before.category)
	inForce, sets := flat.limits, flat.sets
	must.NotEq(t, uint64(1000), inForce.Shares)

	later := newNode(t, nil)
	later.clock = n.clock
	for _, f := range []*fake{flat, grows} {
		f.Recovered = true
		later.start(f)
		must.Eq(t, inForce, flat.limits, must.Sprint("nothing is decided while tasks are still being recovered"))
	}
	after := later.c.find(flat.ID)
	must.Eq(t, policy.CL, after.category)
	must.Eq(t, limits.Limits{Shares: 1000}, after.base)
	must.True(t, after.since.Equal(before.since))
	must.Eq(t, before.reports, after.reports)
	must.Positive(t, after.estimate.Reports, must.Sprint("the history is back in the estimator"))
	for range 20 {
		later.second(do)
	}
	must.Eq(t, policy.CL, after.category)
	must.Eq(t, policy.NL, later.c.find(grows.ID).category)
	must.Eq(t, before.reports+20, after.reports, must.Sprint("no report is read twice, none is lost"))
	must.LessEq(t, sets+2, flat.sets)
}

func TestTaskWithoutProgressKeepsFairShare(t *testing.T) {
	n := newNode(t, nil)
	mute, flat, grows := n.task("mute"), n.task("flat"), n.task("grows")
	for _, f := range []*fake{mute, flat, grows} {
		n.start(f)
	}
	do := map[*fake]func() (float64, string){
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
}

// event waits for an event of a kind.
func (n *node) event(kind string) Event {
	n.t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		select {
		case ev := <-n.events:
			if ev.Annotations["ebbtide"] == kind {
				return ev
			}
		case <-timeout:
			n.t.Fatalf("no event of kind %q", kind)
		}
	}
}

func TestDivergedGivesWay(t *testing.T) {
	n := newNode(t, nil)
	bad, grows := n.task("bad"), n.task("grows")
	n.start(bad)
	n.start(grows)
	good := learner(0.01, 1, 0.001)
	step := 0
	do := map[*fake]func() (float64, string){
		bad: func() (float64, string) {
			if step++; step > 40 {
				return 1, fmt.Sprintf("step=%d loss=nan", step)
			}
			return good()
		},
		grows: learner(0.005, 1, 0.001),
	}
	for range 80 {
		n.second(do)
	}
	must.Eq(t, policy.CL, n.c.find(bad.ID).category)
	must.Less(t, grows.limits.Shares, bad.limits.Shares)
	must.StrContains(t, n.event("diverged").Message, "diverged")
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
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nil)
			flat, grows := n.task("flat"), n.task("grows")
			n.start(flat)
			n.start(grows)
			fail(flat.kernel, true)
			do := map[*fake]func() (float64, string){flat: learner(1, 1, 0), grows: learner(0.005, 1, 0)}
			for range 120 {
				n.second(do)
			}
			must.Eq(t, limits.Limits{Shares: 1000}, flat.limits)
			must.StrContains(t, n.event("limit-failed").Message, "limit could not be set")
			st, err := status.ReadStatus(filepath.Join(flat.AllocDir, "data/ebbtide/flat.json"))
			must.NoError(t, err)
			must.NotEq(t, "", st.Limit.Error)
			must.Less(t, 120, flat.sets, must.Sprint("ever more slowly"))

			fail(flat.kernel, false)
			for range 120 {
				n.second(do)
			}
			must.Less(t, uint64(1000), flat.limits.Shares)
			must.Eq(t, "", n.c.find(flat.ID).limitErr)
			for len(n.events) > 0 {
				must.NotEq(t, "limit-failed", (<-n.events).Annotations["ebbtide"], must.Sprint("said once"))
			}
		})
	}
}

func TestLimitChangedByOthersIsSetAgain(t *testing.T) {
	n := newNode(t, nil)
	flat, grows := n.task("flat"), n.task("grows")
	n.start(flat)
	n.start(grows)
	do := map[*fake]func() (float64, string){flat: learner(1, 1, 0), grows: learner(0.005, 1, 0)}
	for range 60 {
		n.second(do)
	}
	want := flat.limits
	must.NoError(t, flat.set(limits.Limits{Shares: 77}))
	for range 90 {
		n.second(do)
	}
	must.Eq(t, want, flat.limits)
}

func TestOptedOutIsNeverTouched(t *testing.T) {
	n := newNode(t, nil)
	out, flat, grows := n.task("out"), n.task("flat"), n.task("grows")
	out.Limited = false
	for _, f := range []*fake{out, flat, grows} {
		n.start(f)
	}
	do := map[*fake]func() (float64, string){out: learner(1, 0.5, 0), flat: learner(1, 0.5, 0), grows: learner(0.005, 1, 0)}
	for range 60 {
		n.second(do)
	}
	must.Eq(t, 0, out.sets)
	must.Positive(t, flat.sets)
	st, err := status.ReadStatus(filepath.Join(out.AllocDir, "data/ebbtide/out.json"))
	must.NoError(t, err)
	must.StrContains(t, st.Why, "not to be limited")
}

func TestPinnedCoresComeOffThePool(t *testing.T) {
	n := newNode(t, func(o *Options) { o.PoolCores = 8 })
	pinned := n.task("pinned")
	pinned.Limited, pinned.Pinned = false, 2
	n.start(pinned)
	must.Eq(t, 6, n.c.poolCores())
	n.c.opts.PoolFixed = true
	must.Eq(t, 8, n.c.poolCores())
}

func TestCgroupThatComesLate(t *testing.T) {
	n := newNode(t, nil)
	f := n.task("late")
	var mu sync.Mutex
	tries := 0
	f.Locate = func(context.Context) (Cgroup, error) {
		mu.Lock()
		defer mu.Unlock()
		if tries++; tries < 3 {
			return nil, errors.New("not yet")
		}
		return f.kernel, nil
	}
	n.start(f)
	must.Eq(t, 3, tries)
}

func TestRemovedWhileLookedFor(t *testing.T) {
	n := newNode(t, nil)
	f := n.task("brief")
	found := make(chan struct{})
	f.Locate = func(context.Context) (Cgroup, error) { <-found; return f.kernel, nil }
	n.c.add(t.Context(), f.Task)
	n.c.remove(t.Context(), f.ID)
	close(found)
	n.until("the answer", func() bool { n.c.mu.Lock(); defer n.c.mu.Unlock(); return len(n.c.posted) == 0 })
	must.Nil(t, n.c.find(f.ID))
	n.c.remove(t.Context(), "never heard of")
}

// readers counts who has a task's log open beside the test, which writes it.
func (f *fake) readers(t testing.TB) int {
	t.Helper()
	want, err := f.log.Stat()
	must.NoError(t, err)
	fds, err := filepath.Glob("/proc/self/fd/*")
	must.NoError(t, err)
	count := -1
	for _, fd := range fds {
		if fi, err := os.Stat(fd); err == nil && os.SameFile(fi, want) {
			count++
		}
	}
	return count
}

// published is what a task's files say.
func (f *fake) published(t testing.TB) (status.Status, []status.Row) {
	t.Helper()
	st, err := status.ReadStatus(filepath.Join(f.AllocDir, "data/ebbtide", f.Name+".json"))
	must.NoError(t, err)
	rows, err := status.ReadHistory(filepath.Join(f.AllocDir, "data/ebbtide", f.Name+".csv"))
	must.NoError(t, err)
	return st, rows
}

// ended runs a task for five seconds and removes it. What follows is in the second
// after.
func (n *node) ended(name string) *fake {
	n.t.Helper()
	f := n.task(name)
	n.start(f)
	do := map[*fake]func() (float64, string){f: learner(0.01, 1, 0)}
	for range 5 {
		n.second(do)
	}
	n.c.remove(n.t.Context(), f.ID)
	must.Eq(n.t, 1, f.readers(n.t), must.Sprint("its log is looked at once more"))
	n.clock = n.clock.Add(time.Second)
	return f
}

// lookLast waits until the last look at a task that has ended: its log is closed.
func (n *node) lookLast(f *fake) {
	n.t.Helper()
	n.until("the last look at "+f.Name, func() bool { return f.readers(n.t) == 0 })
}

func TestLinesThatComeLateAreInTheLastStatus(t *testing.T) {
	n := newNode(t, nil)
	f := n.ended("t")
	before, history := f.published(t)
	must.Eq(t, 5, before.Reports)

	_, err := fmt.Fprint(f.log, "step=6 loss=0.25\nstep=7 loss=0.125\n")
	must.NoError(t, err)
	n.lookLast(f)
	st, rows := f.published(t)
	must.Eq(t, 7, st.Reports)
	must.Eq(t, 7, st.Step)
	must.Eq(t, 0.125, float64(st.Value))
	must.True(t, st.Updated.Equal(n.clock))
	must.Len(t, len(history)+1, rows)
	must.Eq(t, 0.125, rows[len(history)].Value)
	must.Nil(t, n.c.find(f.ID))
}

func TestLastLookThatFindsNothingWritesNothing(t *testing.T) {
	n := newNode(t, nil)
	f := n.ended("t")
	before, history := f.published(t)
	_, err := fmt.Fprintln(f.log, "done, no report in this line")
	must.NoError(t, err)
	n.lookLast(f)
	st, rows := f.published(t)
	must.True(t, st.Updated.Equal(before.Updated))
	must.Len(t, len(history), rows)
}

func TestLastLookLeavesATaskStartedAnewAlone(t *testing.T) {
	n := newNode(t, nil)
	f := n.ended("t")
	history := func() int { _, rows := f.published(t); return len(rows) }
	_, err := fmt.Fprintln(f.log, "step=6 loss=0.25")
	must.NoError(t, err)

	anew := &fake{Task: f.Task, kernel: f.kernel, log: f.log} // as a restart in the same allocation
	anew.ID = "t-2"
	n.start(anew)
	before := history()
	n.lookLast(f)
	must.Eq(t, before, history(), must.Sprint("the files are the new one's to write"))

	n.second(map[*fake]func() (float64, string){anew: learner(0.01, 1, 0)})
	st, _ := anew.published(t)
	must.Eq(t, 2, st.Reports, must.Sprint("the late line is the new one's to read, and nobody else's"))
}

func TestLastLookWithoutAReader(t *testing.T) {
	n := newNode(t, nil)
	f := n.task("t")
	f.progress.Pattern = "(" // as if it had not been validated
	n.start(f)
	s := n.c.find(f.ID)
	must.Nil(t, s.source)
	n.c.remove(t.Context(), f.ID)
	n.c.lastLook(t.Context(), s)
}

func TestUnwritableDirectoryHurtsNobody(t *testing.T) {
	n := newNode(t, nil)
	f := n.task("t")
	must.NoError(t, os.WriteFile(filepath.Join(f.AllocDir, "data"), []byte("in the way"), 0o644))
	n.start(f)
	do := map[*fake]func() (float64, string){f: learner(0.01, 1, 0)}
	for range 60 {
		n.second(do)
	}
	must.NotNil(t, n.c.find(f.ID).growth)
	must.StrContains(t, n.event("status").Message, "not affected")
}

func TestHistoryAndStatusAreWritten(t *testing.T) {
	n := newNode(t, nil)
	f := n.task("t")
	n.start(f)
	do := map[*fake]func() (float64, string){f: learner(0.01, 1, 0)}
	for range 40 {
		n.second(do)
	}
	st, err := status.ReadStatus(filepath.Join(f.AllocDir, "data/ebbtide/t.json"))
	must.NoError(t, err)
	must.Eq(t, "loss", st.Metric)
	must.Eq(t, "min", st.Goal)
	must.Eq(t, 40, st.Step)
	must.Eq(t, "NL", st.Category)
	must.Eq(t, 40, st.Reports)
	must.Eq(t, 1, st.Node.Tasks)
	must.Positive(t, float64(st.Growth))
	must.InDelta(t, 0.5, float64(st.Use), 0.06)
	rows, err := status.ReadHistory(filepath.Join(f.AllocDir, "data/ebbtide/t.csv"))
	must.NoError(t, err)
	must.GreaterEq(t, 35, len(rows))
}

func TestSpeaker(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var sent []string
	emit := func(ev Event) { sent = append(sent, ev.Message) }
	var sp speaker
	sp.flush(now, emit)
	must.Len(t, 0, sent)
	sp.say("one", "a")
	sp.flush(now, emit)
	sp.say("two", "category")
	sp.say("other", "b")
	sp.flush(now.Add(eventEvery-1), emit)
	must.Eq(t, []string{"one"}, sent, must.Sprint("one each 30 s"))
	sp.say("two, newer", "category")
	sp.flush(now.Add(eventEvery), emit)
	must.Eq(t, []string{"one", "two, newer"}, sent, must.Sprint("the newest of a kind, in order"))
	sp.drop("b")
	sp.drop("unknown")
	sp.flush(now.Add(3*eventEvery), emit)
	must.Len(t, 2, sent)
}

type painter struct{ drawn int }

func (p *painter) Picture() error { p.drawn++; return nil }

func TestArtist(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a := newArtist()
	p, q := &painter{}, &painter{}
	const rich, poor, broke = pictureBurst, pictureBurst / 4, -time.Millisecond
	a.want(p, soon)
	d, _, wait := a.next(now, broke)
	must.Nil(t, d, must.Sprint("milestones wait for the budget, too"))
	must.Eq(t, time.Second/2, wait)
	d, _, _ = a.next(now, poor)
	must.Eq[drawer](t, p, d)
	a.want(p, whenDue)
	a.want(p, whenDue)
	d, _, wait = a.next(now.Add(time.Second), rich)
	must.Nil(t, d)
	must.Eq(t, pictureEvery-time.Second, wait)
	d, _, _ = a.next(now.Add(pictureEvery), poor)
	must.Nil(t, d, must.Sprint("half of what is saved up is for milestones"))
	a.want(q, soon)
	d, _, _ = a.next(now.Add(pictureEvery), rich)
	must.Eq[drawer](t, q, d, must.Sprint("a milestone comes before the others"))
	d, _, _ = a.next(now.Add(pictureEvery), rich)
	must.Eq[drawer](t, p, d)
	a.want(q, last)
	d, _, _ = a.next(now, broke)
	must.Eq[drawer](t, q, d, must.Sprint("the last one does not wait"))
	must.MapNotContainsKey(t, a.drawn, drawer(q))
	_, _, wait = a.next(now, rich)
	must.Eq(t, time.Hour, wait)
}

func TestRunTakesTasksAndEnds(t *testing.T) {
	n := newNode(t, func(o *Options) { o.Interval = time.Second })
	n.c.now = time.Now
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { n.c.Run(ctx); close(done) }()
	f := n.task("t")
	n.c.Add(f.Task)
	path := filepath.Join(f.AllocDir, "data/ebbtide/t.json")
	deadline := time.Now().Add(30 * time.Second)
	for {
		if st, err := status.ReadStatus(path); err == nil && strings.HasPrefix(st.Rule, "flowcon.") {
			break
		}
		must.True(t, time.Now().Before(deadline), must.Sprint("no status was written"))
		time.Sleep(10 * time.Millisecond)
	}
	n.c.Remove(f.ID)
	cancel()
	<-done
}
