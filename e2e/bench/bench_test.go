// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/e2e/mix"
)

func TestParse(t *testing.T) {
	var errs bytes.Buffer
	o, err := parse(nil, &errs)
	must.NoError(t, err)
	must.Eq(t, result.All(), o.whats)
	must.Eq(t, []int{3, 5, 10, 15}, o.jobs)
	must.Eq(t, 5, o.seeds)
	must.True(t, filepath.IsAbs(o.out))
	o, err = parse([]string{"-what", "dqoes", "-mode", "both", "-cases", "varied, reachable", "-variants", "dqoes,auto", "-from", "a,b"}, &errs)
	must.NoError(t, err)
	must.Eq(t, []string{"weight", "quota"}, o.modes())
	must.Eq(t, []string{"varied", "reachable"}, o.cases)
	must.Eq(t, []string{"dqoes", "auto"}, o.variants)
	must.Eq(t, []string{"a", "b"}, o.from)
	must.Eq(t, "", errs.String())

	_, err = parse([]string{"-h"}, &errs)
	must.True(t, errors.Is(err, flag.ErrHelp))
	for bad, want := range map[string]string{
		"extra":              `unexpected argument "extra"`,
		"-what=flowcon":      `-what: must be of train, torch, cluster, tradl, dqoes, auto, or all, got "flowcon"`,
		"-what=":             "-what: must name one of train",
		"-jobs=3,0":          `-jobs: must be whole numbers from 1 to 100, got "0"`,
		"-jobs=":             "-jobs: must name a number",
		"-cases=":            "-cases: must name one",
		"-mixes=":            "-mixes: must name one",
		"-mixes=odd":         `-mixes: must be of papers, single, waits, got "odd"`,
		"-mode=hard":         `-mode: must be weight, quota or both, got "hard"`,
		"-seeds=0":           "-seeds: must be ≥ 1, got 0",
		"-interval=100ms":    "-interval: must be from 1s to 1m, got 100ms",
		"-length=5s":         "-length: must be ≥ ten intervals, 50s, got 5s",
		"-threads=0":         "-threads: must be from 1 to 64, got 0",
		"-scale=NaN":         "-scale: must be from 0.05 to 100, got NaN",
		"-cases=odd":         `-cases: must be of varied, reachable, unreachable, got "odd"`,
		"-variants=flowcon":  `-variants: must be of none, flowcon-2019, flowcon-2022, auto, auto completion with -what train, got "flowcon"`,
		"-variants=auto,odd": `got "odd"`,
	} {
		errs.Reset()
		_, err := parse([]string{bad}, &errs)
		must.Error(t, err)
		must.StrContains(t, errs.String(), want)
	}
}

func TestPlan(t *testing.T) {
	must.Len(t, 0, rotate([]int{}, 3))
	must.Eq(t, []int{3, 1, 2}, rotate([]int{1, 2, 3}, 2))

	count := func(steps []step, keep func(step) bool) (n int) {
		for _, s := range steps {
			if keep(s) {
				n++
			}
		}
		return n
	}
	o := options{what: result.TRADL, mode: "both", seed: 3, seeds: 2}
	steps := plan(o)
	must.Len(t, 2*(3+2), steps) // unlimited runs and presets serve both modes
	must.Eq(t, []string{"auto", "weight"}, []string{steps[0].name, steps[0].mode})
	must.Eq(t, []string{"auto", "quota"}, []string{steps[5].name, steps[5].mode}) // the next seed starts with another variant
	must.Eq(t, 5, count(steps, func(s step) bool { return s.seed == 4 }))
	must.Eq(t, 6, count(steps, func(s step) bool { return s.mode == "" }))

	o = options{what: result.DQoES, mode: "weight", seed: 1, seeds: 3, cases: []string{"varied", "unreachable"}, variants: []string{"dqoes"}}
	steps = plan(o)
	must.Len(t, 3*(1+2), steps)
	for i, s := range steps {
		must.Eq(t, i%3 == 0, s.free)
		must.Eq(t, s.free, s.kase == "varied" && s.name == result.None)
	}
	o = options{what: result.Train, mode: "both", seed: 1, seeds: 2, jobs: []int{3, 10}, mixes: []string{papers, waits}}
	steps = plan(o)
	must.Len(t, 2*2*2*(3+2*2), steps)
	must.Eq(t, 7, count(steps, func(s step) bool { return s.kase == "10 jobs" && s.mix == papers && s.seed == 2 }))
	must.Eq(t, 7, count(steps, func(s step) bool { return s.kase == "10 jobs, half of them wait" && s.mix == waits && s.seed == 2 }))
	o = options{what: result.Auto, mode: "quota", seed: 1, seeds: 1}
	must.Eq(t, []string{"none", "flowcon", "auto"}, names(allVariants(o.what)))
	must.Len(t, 3, plan(o))
}

func TestSubmissions(t *testing.T) {
	a := submissions(5, 1, 1)
	must.Eq(t, a, submissions(5, 1, 1))
	must.NotEq(t, a, submissions(5, 2, 1))
	must.Eq(t, 0, slices.Min(a))
	must.Less(t, spreadOver, slices.Max(a))
	half := submissions(5, 1, 0.5)
	for i := range a {
		must.InDelta(t, float64(a[i])/2, float64(half[i]), float64(time.Microsecond))
	}
	must.Eq(t, 1.75, courses(0.5)[0].pool)
}

// The thesis's objectives, relative to the response with equal shares.
func TestObjectives(t *testing.T) {
	varied := objectivesOf(result.Varied, 0.316)
	must.Len(t, 10, varied)
	must.InDelta(t, 0.75, varied[0], 1e-6)
	must.InDelta(t, 0.05, varied[7], 1e-6)
	for i, o := range objectivesOf(result.Reachable, 0.316) {
		must.InDelta(t, 0.4, o, 1e-6)
		must.InDelta(t, 0.2, objectivesOf(result.Unreachable, 0.316)[i], 1e-6)
	}
	must.Eq(t, 75.0, objectives[0]) // unchanged
}

func TestJobs(t *testing.T) {
	hcl := serviceJob("s-1", 7, 12.5, 0.25)
	for _, want := range []string{`job "s-1"`, `port "http"`, `ebbtide_qoe_target = "0.25"`, `ebbtide_limit = "off"`, `"-work", "12.5"`, `"-record", "/alloc/data/load.csv"`} {
		must.StrContains(t, hcl, want)
	}
	must.StrNotContains(t, serviceJob("s-1", 7, 12.5, 0), "qoe_target")
	hcl = trainingJob("t", "job1", "vae", 100, 2, 7, 120.5, 110)
	for _, want := range []string{`ebbtide_acceptable = "120.5"`, `ebbtide_objective = "110"`, `grace = "5s"`, `"-steps", "100"`} {
		must.StrContains(t, hcl, want)
	}
	must.StrNotContains(t, trainingJob("t", "job1", "vae", 100, 2, 7, 0, 0), "meta")
	must.StrContains(t, quietJob("q", 1), `"silent"`)
	must.Eq(t, "a-none-3-jobs-half-of-them-wait-7", id("a", step{variant: variant{name: "none"}, kase: "3 jobs, half of them wait", seed: 7}))
	must.Eq(t, "a-no-targets-7", id("a", step{variant: variant{name: "no targets"}, seed: 7}))
	must.Eq(t, "a-auto-weight-varied-7", id("a", step{variant: variant{name: "auto"}, mode: "weight", kase: "varied", seed: 7}))

	n := node{options: options{what: result.DQoES, interval: 2 * time.Second}}
	config := n.pluginConfig(step{variant: allVariants(result.DQoES)[2], mode: "quota"}, 0)
	for _, want := range []string{`policy = "dqoes"`, `mode = "quota"`, `interval = "2s"`, `dqoes_step = "proportional"`} {
		must.StrContains(t, config, want)
	}
	config = n.pluginConfig(step{variant: allVariants(result.DQoES)[1]}, 0)
	must.StrContains(t, config, `preset = "dqoes"`)
	must.StrNotContains(t, config, "policy")
	must.StrNotContains(t, config, "mode")
	must.StrContains(t, n.pluginConfig(step{variant: allVariants(result.DQoES)[0]}, 0), `mode = "weight"`)
}

func TestRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "load.csv")
	f := records{path: path}
	read := func() (int, float64) {
		n, mean, err := f.read()
		must.NoError(t, err)
		return n, float64(mean)
	}
	n, mean := read() // no file yet
	must.Eq(t, 0, n)
	must.True(t, math.IsNaN(mean))
	write := func(text string) {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		must.NoError(t, err)
		_, err = file.WriteString(text)
		must.NoError(t, errors.Join(err, file.Close()))
	}
	write("t_s,response_s,error\n0.1,0.5,\n0.6,1.5,\n2,9,timeout\n3,0.")
	n, mean = read()
	must.Eq(t, 2, n)
	must.Eq(t, 1.0, mean)
	n, _ = read()
	must.Eq(t, 0, n)
	write("25,\n")
	n, mean = read()
	must.Eq(t, 1, n)
	must.Eq(t, 0.25, mean)
	write("3,x,\n")
	_, _, err := f.read()
	must.Error(t, err)
}

func TestParseMachine(t *testing.T) {
	m, err := parseMachine("cpu  100 20 30 4000 500 6 7 200 0 0\ncpu0 1 2 3\n")
	must.NoError(t, err)
	must.InDelta(t, 3.63, m.busy, 1e-9)
	must.InDelta(t, 2, m.steal, 1e-9)
	for _, bad := range []string{"", "cpu 1 2", "intr 1 2 3 4 5 6 7 8 9", "cpu  1 2 3 4 x 6 7 8"} {
		_, err := parseMachine(bad)
		must.Error(t, err)
	}
	now, err := readMachine()
	must.NoError(t, err)
	must.Positive(t, now.busy)
}

func TestReadTorch(t *testing.T) {
	out := "Train Epoch: 1 [0/8192 (0%)]\tLoss: 2.3\n\nTest set: Average loss: 1.5000, Accuracy: 1/2 (50%), 2.00 s\n\n" +
		"Test set: Average loss: 0.5000, Accuracy: 2/2 (100%), 4.50 s\n"
	c, err := readTorch(out, 6*time.Second)
	must.NoError(t, err)
	must.Eq(t, mix.Curve{{T: 3.5, Step: 1, Value: 1.5}, {T: 6, Step: 2, Value: 0.5}}, c)
	_, err = readTorch("killed", time.Second)
	must.ErrorContains(t, err, "it has printed no line such as")
}

func TestTorchJobs(t *testing.T) {
	jobs := torchMix(1, 1)
	must.Len(t, torchJobs, jobs)
	must.Eq(t, "cnn1", jobs[0].Name)
	hcl := mix.Jobspec("cnn1-none-1", false, torchTask(jobs[0], 12, 2, 1, "/src"))
	for _, want := range []string{`"--epochs", "12"`, `"/src/e2e/bench/torch:/job:ro"`, `"/usr:/usr:ro"`, "memory = 600"} {
		must.StrContains(t, hcl, want)
	}
}

func TestCluster(t *testing.T) {
	jobs := clusterMix(1, 0.5)
	must.Len(t, clusterJobs, jobs)
	task := jobs[0].Task(100, 2, 1)
	task.Image = "trainer:e2e"
	task.Moves = true
	hcl := mix.JobspecWith("a", false, migrateMeta, task)
	for _, want := range []string{`ebbtide_migrate = "true"`, "sticky = true", `"-checkpoint", "/alloc/data/model.ckpt", "-resume"`, `path = "/alloc/data/model.ckpt"`, `image        = "trainer:e2e"`, `command = "/bin/trainer"`} {
		must.StrContains(t, hcl, want)
	}
	n := node{options: options{what: result.Cluster, interval: 2 * time.Second}}
	must.StrContains(t, n.pluginConfig(step{variant: variant{policy: "auto"}}, 3), fmt.Sprintf("pool_cores = %g", float64(pool())/4))
	steps := plan(options{what: result.Cluster, mode: "weight", seed: 1, seeds: 1})
	must.Len(t, 5, steps)
	must.Eq(t, "20 jobs", steps[0].kase)
}

// Results of another commit or setting, or of a dirty tree, are not continued.
func TestOpen(t *testing.T) {
	o := options{what: result.Train, out: t.TempDir(), interval: 2 * time.Second, scale: 1, threads: 2, command: "first"}
	e, err := o.open("abc")
	must.NoError(t, err)
	must.SliceEmpty(t, e.Runs)
	e.Runs = []result.Run{{What: result.Train, Variant: "auto", Mode: "weight", Case: "3 jobs", Seed: 1, Joined: 1}}
	must.NoError(t, o.write(e))

	o.command = "second"
	e, err = o.open("abc")
	must.NoError(t, err)
	must.Eq(t, []string{"first", "second"}, e.Commands)
	must.Len(t, 1, e.Runs)
	must.True(t, step{variant: variant{name: "auto"}, mode: "weight", kase: "3 jobs", seed: 1}.is(e.Runs[0]))
	must.False(t, step{variant: variant{name: "auto"}, mode: "weight", kase: "3 jobs", seed: 2}.is(e.Runs[0]))

	_, err = o.open("def")
	must.ErrorContains(t, err, "train.json: here commit is def, not abc")
	o.scale = 2
	_, err = o.open("abc")
	must.ErrorContains(t, err, "scale is 2, not 1")
	o.restart = true
	e, err = o.open("def")
	must.NoError(t, err)
	must.SliceEmpty(t, e.Runs)

	o.restart, o.scale = false, 1
	e.Commit = "abc-dirty"
	must.NoError(t, o.write(e))
	e.Scale = 1
	must.NoError(t, o.write(e))
	_, err = o.open("abc-dirty")
	must.ErrorContains(t, err, "uncommitted changes")
}

func TestAgain(t *testing.T) {
	dir := t.TempDir()
	run := func(mode, variant string) result.Run {
		return result.Run{What: result.TRADL, Variant: variant, Mode: mode, Seed: 1, Joined: 1, Tasks: []result.Task{{Name: "a", Kind: result.Training, AcceptableAt: 5, ObjectiveAt: 10}}}
	}
	o := options{what: result.TRADL, out: dir}
	must.NoError(t, o.write(result.Experiment{Setting: result.Setting{Machine: "m", Cores: 2, Interval: 2}, Runs: []result.Run{run("", result.None), run("weight", "tradl")}}))
	var out bytes.Buffer
	must.NoError(t, options{from: []string{o.path()}}.again(&out))
	must.StrContains(t, out.String(), "TRADL, mode weight, seeds: 1")
	must.Error(t, options{from: []string{filepath.Join(dir, "none")}}.again(&out))
}
