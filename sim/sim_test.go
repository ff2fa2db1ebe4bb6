// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/sim/metrics"
	"github.com/ebbtide/ebbtide/sim/scenario"
	"github.com/ebbtide/ebbtide/sim/workload"
)

// batch simulates a scenario with seeds from 1.
func batch(t must.T, text string, seeds, workers int, names ...string) []metrics.Run {
	t.Helper()
	sc, err := scenario.Parse("test.hcl", []byte(text), scenario.Changes{})
	must.NoError(t, err)
	b := Batch{Scenario: sc, First: 1, Seeds: seeds, Workers: workers}
	for _, name := range names {
		v, err := Find(name, sc)
		must.NoError(t, err)
		b.Variants = append(b.Variants, v)
	}
	runs, err := b.Run(context.Background())
	must.NoError(t, err)
	return runs
}

func summaries(t must.T, runs []metrics.Run) map[string]metrics.Summary {
	t.Helper()
	all, err := metrics.Summarize(runs, "", 1)
	must.NoError(t, err)
	out := make(map[string]metrics.Summary)
	for _, s := range all {
		out[s.Policy] = s
	}
	return out
}

const twoJobs = `
node "a" { cores = 2 }
workload "generated" {
  jobs         = 2
  median_cpu_s = 100
  sigma        = 0
  arrive_s     = [0, 20]
}
`

// Two jobs of 100 CPU-seconds on two cores, 20 s apart, computed by hand.
func TestRun_byHand(t *testing.T) {
	for _, tc := range []struct {
		policy        string
		first, second float64
	}{
		{"none", 80, 100},  // alone, then half: 40 + 60 of the first are done at 80
		{"srpt", 50, 100},  // the first has less work
		{"las", 100, 90},   // see below
		{"equal", 80, 100}, // half, and alone again
	} {
		sc := twoJobs
		if tc.policy == "las" {
			// Decisions every 10 s: the second runs for 20 s, then they alternate.
			sc = "interval_s = 10\n" + sc
		}
		r := batch(t, sc, 1, 1, tc.policy)[0]
		must.InDelta(t, tc.first, *r.Jobs[0].EndS, 1e-6, must.Sprint(tc.policy))
		must.InDelta(t, tc.second, *r.Jobs[1].EndS, 1e-6, must.Sprint(tc.policy))
		must.InDelta(t, 0, r.IdleCPUS, 1e-6)
	}
}

// A single thread leaves a core idle; equal shares are not redistributed.
func TestRun_caps(t *testing.T) {
	r := batch(t, "node \"a\" { cores = 2 }\nworkload \"generated\" {\n jobs = 1\n median_cpu_s = 100\n sigma = 0\n arrive_s = [5]\n cap_cores = [1]\n}", 1, 1, "none")[0]
	must.InDelta(t, 105, *r.Jobs[0].EndS, 1e-6)
	must.InDelta(t, 100, r.IdleCPUS, 1e-6)
	must.InDelta(t, 100, r.Jobs[0].CPUS, 1e-6)
	contended := batch(t, "contention = 0.5\n"+twoJobs, 1, 1, "none")[0]
	must.Greater(t, 100.0, *contended.Jobs[1].EndS)
}

// Under every policy each job finishes, not before it can, and uses its work.
func TestRun_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]string{"none", "equal", "las", "srpt", "flowcon", "flowcon-2019", "fsp", "fsp-completion", "fsp-quality", "fsp@relocate", "flowcon@alg4", "specon", "auto", "fsp@binpack"}).Draw(t, "policy")
		mode := rapid.SampledFrom([]string{"weight", "quota"}).Draw(t, "mode")
		sizes := rapid.SampledFrom([]string{"exact", "estimated", "unknown"}).Draw(t, "sizes")
		failures := rapid.SampledFrom([]string{"", "failures {\n every_s = 500\n repair_s = 60\n checkpoint_s = 20\n}\n"}).Draw(t, "failures")
		text := "mode = \"" + mode + "\"\nsizes = \"" + sizes + "\"\n" + failures + `
node "a" { cores = 2 }
node "b" { cores = 8 }
workload "generated" {
  jobs = 15
  cap_cores = [1, 2, 16]
  reports = 30
}
`
		r := batch(t, text, 1, 1, policy)[0]
		must.NoError(t, r.Validate())
		sc, err := scenario.Parse("test.hcl", []byte(text), scenario.Changes{})
		must.NoError(t, err)
		jobs, err := sc.Jobs(nil, 1)
		must.NoError(t, err)
		sum := r.IdleCPUS
		for i, j := range r.Jobs {
			must.NotNil(t, j.EndS)
			must.InDelta(t, jobs[i].WorkCPUS+j.LostCPUS, j.CPUS, 1e-6*(1+j.CPUS))
			must.GreaterEq(t, j.ArriveS+jobs[i].WorkCPUS/min(jobs[i].CapCores, 8)-1e-6, *j.EndS)
			must.GreaterEq(t, *j.Quality50S, *j.Quality95S)
			must.GreaterEq(t, *j.Quality95S, *j.EndS)
			sum += j.CPUS
			if failures == "" {
				must.Eq(t, 0, j.LostCPUS)
			}
		}
		must.Positive(t, sum)
	})
}

// The same seed gives the same bytes with any number of workers.
func TestRun_deterministic(t *testing.T) {
	const text = "node \"a\" {\n cores = 4\n count = 3\n}\nworkload \"generated\" {\n jobs = 20\n targets = true\n}\n"
	encode := func(workers int) []byte {
		out, err := json.Marshal(batch(t, text, 3, workers, "none", "fsp@relocate", "tradl", "specon"))
		must.NoError(t, err)
		return out
	}
	one := encode(1)
	must.Eq(t, string(one), string(encode(1)))
	must.Eq(t, string(one), string(encode(4)))
	runs := batch(t, text, 2, 1, "none")
	must.NotEq(t, runs[0].Jobs[0].CPUS, runs[1].Jobs[0].CPUS)
}

// Fair finish with known sizes: the mean is near the bound, and no job is later, within 2 % for
// planner and damper. Unknown sizes cost little; without any, nothing changes.
func TestRun_fairFinish(t *testing.T) {
	const text = "node \"a\" { cores = 2 }\nworkload \"generated\" { jobs = 12 }\n"
	exact := summaries(t, batch(t, "sizes = \"exact\"\n"+text, 8, 2, "none", "srpt", "fsp-completion", "fsp", "flowcon"))
	bound := exact["srpt"].Gain()
	must.Greater(t, 0.3, bound)
	for _, name := range []string{"fsp-completion", "fsp"} {
		must.LessEq(t, 1.02, exact[name].Ratio.Max, must.Sprint(name))
		must.Less(t, bound+0.01, exact[name].Gain())
	}
	must.Greater(t, 0.9*bound, exact["fsp-completion"].Gain())
	must.Greater(t, exact["flowcon"].Gain(), exact["fsp"].Gain())

	estimated := summaries(t, batch(t, text, 8, 2, "none", "srpt", "fsp-completion"))
	// They are seldom seen on two cores, which would show that these pay.
	must.Greater(t, 0.7*bound, estimated["fsp-completion"].Gain())
	must.Less(t, exact["fsp-completion"].Gain(), estimated["fsp-completion"].Gain())
	must.LessEq(t, 1.3, estimated["fsp-completion"].Ratio.Max)

	unknown := summaries(t, batch(t, "sizes = \"unknown\"\n"+text, 4, 2, "none", "fsp"))
	must.Between(t, 0.99, unknown["fsp"].Ratio.Min, 1.001)
	must.Between(t, 0.999, unknown["fsp"].Ratio.Max, 1.01)
}

// A wrong total changes what happens, a right one nothing.
func TestRun_totals(t *testing.T) {
	ends := func(totals string) (out []float64) {
		for _, r := range batch(t, "node \"a\" { cores = 2 }\nworkload \"generated\" {\n jobs = 6\n"+totals+"}\n", 2, 1, "auto") {
			for _, j := range r.Jobs {
				out = append(out, *j.EndS)
			}
		}
		return out
	}
	right := ends("")
	must.Eq(t, right, ends(" totals = [1]\n"))
	must.Eq(t, right, ends(" totals = [1, 1]\n"))
	for _, wrong := range []string{"[5]", "[0.2]", "[1, 5]", "[1, 0.2]"} {
		must.NotEq(t, right, ends(" totals = "+wrong+"\n"), must.Sprint(wrong))
	}
	must.NotEq(t, ends(" totals = [1, 5]\n"), ends(" totals = [5, 1]\n"))
}

// Weights and other options delay no job either, and a floor of 1 is fair sharing.
func TestRun_options(t *testing.T) {
	const text = "sizes = \"exact\"\nnode \"a\" { cores = 2 }\nworkload \"generated\" {\n jobs = 10\n weights = [1, 2, 4]\n}\n"
	usual := summaries(t, batch(t, text, 6, 2, "none", "fsp-completion"))["fsp-completion"]
	must.LessEq(t, 1.02, usual.Ratio.Max)
	must.Greater(t, 0.2, usual.Gain())
	held := summaries(t, batch(t, "options = { fsp_floor = 0.5 }\n"+text, 6, 2, "none", "fsp-completion"))["fsp-completion"]
	must.Less(t, usual.Gain(), held.Gain())
	must.LessEq(t, 1.02, held.Ratio.Max)
}

func TestRun_queue(t *testing.T) {
	dir := os.DirFS("testdata")
	sc, err := scenario.Parse("test.hcl", []byte("node \"a\" { cores = 8 }\nworkload \"alibaba\" {\n jobs = 6\n over_s = 10\n asks = true\n}\n"), scenario.Changes{})
	must.NoError(t, err)
	v, err := Find("none", sc)
	must.NoError(t, err)
	r, err := Run(context.Background(), Config{Scenario: sc, Data: dir, Variant: v, Seed: 1})
	must.NoError(t, err)
	waited := 0
	for _, j := range r.Jobs {
		if *j.StartS > j.ArriveS+1 {
			waited++
		}
	}
	must.Positive(t, waited)
	sc.Nodes[0].Cores = 1
	_, err = Run(context.Background(), Config{Scenario: sc, Data: dir, Variant: v, Seed: 1})
	must.ErrorContains(t, err, "cores that job pod-")
	must.True(t, Input(err))
}

// An order of places is for jobs that ask for one.
func TestRun_orderWithoutAsks(t *testing.T) {
	sc, err := scenario.Parse("test.hcl", []byte("node \"a\" { cores = 2 }\nworkload \"generated\" { jobs = 2 }\n"), scenario.Changes{})
	must.NoError(t, err)
	v, err := Find("none@fifo", sc)
	must.NoError(t, err)
	_, err = Run(t.Context(), Config{Scenario: sc, Variant: v, Seed: 1})
	must.True(t, Input(err))
	must.ErrorContains(t, err, "placement: fifo is for jobs that ask for cores (asks), and job ")
}

// Orders of waiting jobs: fair finish is sooner in the mean, and near every job's fair share. Only
// some suspend jobs, and fifo never overtakes.
func TestRun_orders(t *testing.T) {
	const text = "move_s = 60\nnode \"a\" {\n count = 2\n cores = 8\n}\nworkload \"generated\" {\n jobs = 60\n median_cpu_s = 3600\n sigma = 1.2\n spread = 1.1\n cap_cores = [1, 2, 8]\n asks = true\n}\n"
	runs := batch(t, text, 4, 2, "none", "none@fifo", "none@dynamic", "none@easy", "none@las", "none@queue", "none@srtf")
	all := summaries(t, runs)
	for name, s := range all {
		must.Eq(t, 0, s.Unfinished)
		must.Eq(t, name == "none@las" || name == "none@queue" || name == "none@srtf", s.Moves > 0, must.Sprint(name))
		must.Eq(t, s.Moves > 0, s.Lost > 0)
	}
	fair, bound := all["none@queue"], all["none@srtf"]
	must.Greater(t, 0.2, fair.Gain())
	must.Greater(t, 0.8*bound.Gain(), fair.Gain())
	must.Less(t, 0.25, fair.Time("start").Ratio.Mean)
	must.Less(t, all["none"].Share.Max/4, fair.Share.Max)
	must.Less(t, 2, fair.Share.P95)
	for _, r := range runs {
		last := 0.0
		for _, j := range r.Jobs {
			if r.Policy == "none@fifo" {
				must.LessEq(t, *j.StartS, last)
				last = *j.StartS
			}
			must.GreaterEq(t, j.ArriveS+(j.CPUS-j.LostCPUS)/j.CapCores-1e-6, *j.FairEndS)
		}
	}
}

// Checkpoints that stay on their nodes cost a part of the gain only.
func TestRun_local(t *testing.T) {
	const text = "sizes = \"exact\"\nmove_s = 60\nnode \"a\" {\n count = 4\n cores = 1\n}\nworkload \"generated\" {\n jobs = 60\n median_cpu_s = 3600\n sigma = 1.2\n spread = 1.1\n cap_cores = [1]\n asks = true\n}\n"
	anywhere := summaries(t, batch(t, text, 8, 2, "none", "none@queue"))["none@queue"]
	local := summaries(t, batch(t, "local = true\n"+text, 8, 2, "none", "none@queue"))["none@queue"]
	must.Positive(t, local.Moves)
	must.Greater(t, anywhere.Moves/10, local.Moves)
	must.Less(t, anywhere.Moves, local.Moves)
	must.Less(t, anywhere.Gain(), local.Gain())
	must.Greater(t, anywhere.Gain()/2, local.Gain())
}

// Tasks of a node that failed wait like the others.
func TestRun_orderFailures(t *testing.T) {
	const text = "local = true\nnode \"a\" {\n count = 2\n cores = 4\n}\nfailures {\n every_s = 4000\n repair_s = 500\n checkpoint_s = 300\n}\nworkload \"generated\" {\n jobs = 30\n median_cpu_s = 1000\n cap_cores = [1, 4]\n asks = true\n}\n"
	for _, r := range batch(t, text, 3, 2, "none", "none@queue") {
		must.Eq(t, 0, r.Unfinished())
	}
}

// A job ends at its objective under every policy; TRADL lets acceptable ones yield.
func TestRun_targets(t *testing.T) {
	const text = "node \"a\" { cores = 4 }\nworkload \"papers\" {\n jobs = 8\n targets = true\n noise = 0.001\n}\n"
	runs := batch(t, text, 4, 2, "none", "tradl")
	for _, r := range runs {
		for _, j := range r.Jobs {
			must.NotNil(t, j.AcceptableS)
			must.NotNil(t, j.ObjectiveS)
			must.GreaterEq(t, *j.AcceptableS, *j.ObjectiveS)
			must.InDelta(t, *j.ObjectiveS, *j.EndS, 5)
		}
	}
	must.Less(t, 1, summaries(t, runs)["tradl"].Time("acceptable").Ratio.Mean)
}

func TestRun_services(t *testing.T) {
	const service = "service \"api\" {\n objective_s = 1\n batch_cpu_s = 1\n for_s = 600\n}\n"
	alone := batch(t, "node \"a\" { cores = 2 }\n"+service, 1, 1, "none")[0]
	must.Positive(t, alone.Jobs[0].QoEChecks)
	must.Eq(t, alone.Jobs[0].QoEChecks, alone.Jobs[0].QoEHits)
	crowd := "node \"a\" { cores = 2 }\nworkload \"generated\" {\n jobs = 8\n median_cpu_s = 400\n over_s = 1\n}\n" + service
	hits := make(map[string]float64)
	for _, r := range batch(t, crowd, 1, 1, "none", "auto") {
		for _, j := range r.Jobs {
			if j.QoEChecks > 0 {
				hits[r.Policy] = float64(j.QoEHits) / float64(j.QoEChecks)
			}
		}
	}
	must.Less(t, 0.2, hits["none"])
	must.Greater(t, hits["none"], hits["auto"])
}

// Lost work is repeated from the last checkpoint, and moves take time.
func TestRun_failures(t *testing.T) {
	lost := func(checkpoint string) (sum float64) {
		text := "node \"a\" {\n cores = 2\n count = 2\n}\nworkload \"generated\" { jobs = 10 }\nfailures {\n every_s = 800\n repair_s = 50\n" + checkpoint + "}\n"
		for _, r := range batch(t, text, 3, 2, "none") {
			for _, j := range r.Jobs {
				sum += j.LostCPUS
			}
		}
		return sum
	}
	none, often := lost(""), lost(" checkpoint_s = 10\n")
	must.Positive(t, often)
	must.Less(t, none/2, often)

	// Without checkpoints it never finishes, and the run is stopped.
	r := batch(t, "node \"a\" { cores = 2 }\nworkload \"generated\" {\n jobs = 1\n median_cpu_s = 2000\n sigma = 0\n}\nfailures {\n every_s = 100\n repair_s = 10\n}\n", 1, 1, "none")[0]
	must.Eq(t, 1, r.Unfinished())

	const cluster = "node \"a\" {\n cores = 2\n count = 2\n}\nworkload \"generated\" {\n jobs = 10\n sigma = 2\n}\n"
	cheap := batch(t, cluster, 3, 2, "auto@relocate")
	dear := batch(t, "move_s = 2000\n"+cluster, 3, 2, "auto@relocate")
	count := func(runs []metrics.Run) (n int) {
		for _, r := range runs {
			for _, j := range r.Jobs {
				n += j.Moves
			}
		}
		return n
	}
	must.Positive(t, count(cheap))
	must.Zero(t, count(dear))
}

// Nomad shuffles the nodes and scores the first two with room for a batch job, more for a service.
func TestShim_byLot(t *testing.T) {
	for name, tc := range map[string]struct {
		nodes     int
		down      int // the first ones
		placement string
		task      task
		want      []float64 // by load, the least first
	}{
		"spread":                {4, 0, scenario.Spread, task{}, []float64{3. / 6, 2. / 6, 1. / 6, 0}},
		"binpack":               {4, 0, scenario.Binpack, task{}, []float64{0, 1. / 6, 2. / 6, 3. / 6}},
		"only nodes with room":  {4, 1, scenario.Spread, task{}, []float64{0, 2. / 3, 1. / 3, 0}},
		"one has room":          {4, 3, scenario.Spread, task{}, []float64{0, 0, 0, 1}},
		"one node":              {1, 0, scenario.Spread, task{}, []float64{1}},
		"a service, five nodes": {5, 0, scenario.Spread, task{Job: workload.Job{Service: &workload.Service{}}}, []float64{6. / 10, 3. / 10, 1. / 10, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &simulation{v: Variant{placement: tc.placement}}
			for i := range tc.nodes {
				s.nodes = append(s.nodes, &node{index: i, cores: 1, down: i < tc.down, tasks: make([]*task, i)})
			}
			s.shim.begin(s, 1, 0)
			got := make([]float64, tc.nodes)
			const throws = 10_000
			for range throws {
				got[s.shim.choose(s, &tc.task).index] += 1. / throws
			}
			for i, want := range tc.want {
				must.InDelta(t, want, got[i], 0.02)
			}
		})
	}
	s := &simulation{nodes: []*node{{down: true}, {down: true}}}
	s.shim.begin(s, 1, 0)
	must.Nil(t, s.shim.choose(s, &task{}))
}

// Nodes are scored with the task on them: an empty small one may come after a large one with tasks.
func TestShim_byLot_unequal(t *testing.T) {
	for name, tc := range map[string]struct {
		ask, asked float64 // the task's, the large node's
		tasks      int     // on the large node
		placement  string
		want       string
	}{
		"spread: 1 of 4, 3 of 16":          {0, 0, 2, scenario.Spread, "large"},
		"spread: 1 of 4, 5 of 16":          {0, 0, 4, scenario.Spread, "small"},
		"binpack: 1 of 4, 3 of 16":         {0, 0, 2, scenario.Binpack, "small"},
		"spread: asks for 2 of 4, 7 of 16": {2, 5, 1, scenario.Spread, "large"},
		"spread: asks for 2 of 4, 9 of 16": {2, 7, 1, scenario.Spread, "small"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &simulation{v: Variant{placement: tc.placement}, nodes: []*node{
				{id: "small", cores: 4},
				{id: "large", cores: 16, asked: tc.asked, tasks: make([]*task, tc.tasks)},
			}}
			s.shim.begin(s, 1, 0)
			for range 10 { // in either order
				must.Eq(t, tc.want, s.shim.choose(s, &task{Job: workload.Job{AskCores: tc.ask}}).id)
			}
		})
	}
}

// On several nodes, plain Nomad runs several times with the same jobs and failures.
func TestBatch_draws(t *testing.T) {
	const jobs = "workload \"generated\" { jobs = 8 }\nfailures {\n every_s = 400\n repair_s = 50\n checkpoint_s = 10\n}\n"
	const several = "node \"a\" {\n count = 3\n cores = 2\n}\n" + jobs
	runs := batch(t, several, 2, 1, "none", "none@binpack", "auto")
	must.Eq(t, runs, batch(t, several, 2, 4, "none", "none@binpack", "auto"))
	for _, r := range runs {
		if r.Policy != "none" {
			must.SliceEmpty(t, r.Draws)
			continue
		}
		must.Len(t, Draws-1, r.Draws)
		luck := false
		for _, d := range r.Draws {
			for i, j := range d.Jobs {
				must.Eq(t, r.Jobs[i].ArriveS, j.ArriveS)
				luck = luck || *j.EndS != *r.Jobs[i].EndS
			}
		}
		must.True(t, luck)
	}
	for text, want := range map[string]int{
		"node \"a\" { cores = 2 }\n" + jobs: 1, several: Draws, "placement = \"binpack\"\n" + several: Draws,
		"placement = \"alg4\"\n" + several: 1, "placement = \"fifo\"\n" + several: 1,
	} {
		sc, err := scenario.Parse("test.hcl", []byte(text), scenario.Changes{})
		must.NoError(t, err)
		v, err := Find("none", sc)
		must.NoError(t, err)
		must.Eq(t, want, Batch{Scenario: sc}.draws(v), must.Sprint(text))
	}
}

// A failed node's twins stop: its tasks continue elsewhere.
func TestFail(t *testing.T) {
	s := &simulation{sc: scenario.Scenario{Failures: &scenario.Failures{}}, v: Variant{twin: true}}
	job := &task{}
	n := &node{cores: 2, tasks: []*task{job}, tracked: []*task{job}, twins: []policy.Task{{Entitlement: 1}}}
	must.NoError(t, s.fail(n))
	s.now = 10
	n.advance(s)
	must.Zero(t, job.fair)
}

func TestFind_errors(t *testing.T) {
	sc, err := scenario.Parse("test.hcl", []byte(twoJobs), scenario.Changes{})
	must.NoError(t, err)
	for _, tc := range []struct{ name, want string }{
		{"fastest", `policy: must be one of auto, dqoes, dqoes-published, equal, flowcon, flowcon-2019, flowcon-2022, fsp`},
		{"fsp@moon", `policy: placement of "fsp@moon" must be one of spread, binpack, alg4, relocate`},
		{"tradl", `policy: "tradl" needs jobs with targets`},
		{"dqoes", `policy: "dqoes" needs services`},
		{"specon", `policy: "specon" moves tasks and needs 2 nodes at least, got 1`},
	} {
		_, err := Find(tc.name, sc)
		must.ErrorContains(t, err, tc.want)
		must.True(t, Input(err))
	}
}

func TestBatch_stops(t *testing.T) {
	sc, err := scenario.Parse("test.hcl", []byte(twoJobs), scenario.Changes{})
	must.NoError(t, err)
	v, err := Find("none", sc)
	must.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	stop()
	_, err = Batch{Scenario: sc, Variants: []Variant{v}, Seeds: 3}.Run(ctx)
	must.True(t, errors.Is(err, context.Canceled))
	must.False(t, Input(err))

	sc.Workloads[0].Source = "adaptdl"
	_, err = Batch{Scenario: sc, Variants: []Variant{v}, Seeds: 3}.Run(context.Background())
	must.True(t, Input(err))
	must.ErrorContains(t, err, "no directory is named (-data, or data in the scenario)")
}

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("scenarios/*.hcl")
	must.NoError(t, err)
	must.SliceNotEmpty(t, files)
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			text, err := os.ReadFile(f)
			must.NoError(t, err)
			sc, err := scenario.Parse(f, text, scenario.Changes{})
			must.NoError(t, err)
			if sc.Name == "scale" {
				t.Skip("takes a minute")
			}
			for _, name := range []string{"none", "fsp"} {
				v, err := Find(name, sc)
				must.NoError(t, err)
				_, err = Run(context.Background(), Config{Scenario: sc, Data: os.DirFS("testdata"), Variant: v, Seed: 1})
				must.NoError(t, err)
			}
		})
	}
}
