// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package remaining

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/shoenig/test/must"
)

// trainee is a task that draws bars.
type trainee struct {
	t   *testing.T
	e   *Estimator
	cpu float64
}

func newTrainee(t *testing.T, d Declared, startup float64) *trainee {
	return &trainee{t, New(d, State{}), startup}
}

// draw reports a bar's steps first … last, each costing per CPU-seconds before it.
func (k *trainee) draw(bar string, first, last, total, per float64) {
	for s := first; s <= last; s++ {
		if s > first {
			k.cpu += per
		}
		k.e.Add(Point{CPU: k.cpu, Step: s, Total: total, StepOnly: true, Bar: bar})
		k.e.Estimate(k.cpu, Curve{})
	}
}

func (k *trainee) unknown(why string) {
	k.t.Helper()
	m := k.e.Estimate(k.cpu, Curve{})
	must.Nil(k.t, m.CPUS, must.Sprint(m.Why))
	must.StrContains(k.t, m.Why, why)
}

func (k *trainee) left(want float64, from Source) Estimate {
	k.t.Helper()
	m := k.e.Estimate(k.cpu, Curve{})
	must.NotNil(k.t, m.CPUS, must.Sprint(m.Why))
	must.InDelta(k.t, want, float64(*m.CPUS), 1e-3*want+1e-9, must.Sprint(m.Why))
	must.Eq(k.t, from, m.Source)
	return m
}

// A bar's total counts once the bar has covered a tenth of its steps and half of the
// CPU time.
func TestBarTrust(t *testing.T) {
	k := newTrainee(t, Declared{}, 40) // imports
	k.draw("", 0, 39, 400, 1)
	k.unknown("too little of the CPU time")
	k.draw("", 39, 40, 400, 1)
	m := k.left(360, Steps)
	must.Eq(t, 400, m.Total)
	must.Eq(t, "", m.Lost)

	k = newTrainee(t, Declared{}, 1)
	k.draw("", 0, 39, 400, 1)
	k.unknown("too few of the steps")
	k.draw("", 39, 40, 400, 1)
	k.left(360, Steps)
	k.cpu += 100 // an evaluation without output
	k.left(359, Steps)
	k.draw("", 40, 400, 400, 1)
	k.left(0, Steps)
	step, total, ok := k.e.Position(k.cpu)
	must.True(t, ok)
	must.Eq(t, []float64{400, 400}, []float64{step, total})
	must.Eq(t, Run{CPUS: k.cpu, Steps: 400}, k.e.State().Run(k.cpu))
}

// A total that something else also names is trusted with fewer steps; one that something
// else contradicts is not.
func TestBarAgreement(t *testing.T) {
	for _, d := range []Declared{
		{Steps: 400}, {Epochs: 400}, {Earlier: Run{CPUS: 1, Steps: 400}},
		{Assumed: Assumption{Steps: 400, StepsFrom: "--max-steps"}}, {Assumed: Assumption{Epochs: 400, EpochsFrom: "--epochs"}},
	} {
		k := newTrainee(t, d, 0)
		k.draw("", 0, 2, 400, 1)
		k.e.declared.Earlier.CPUS = 0
		must.NotNil(t, k.e.Estimate(k.cpu, Curve{}).CPUS)
		k.draw("", 2, 100, 400, 1)
		m := k.e.Estimate(k.cpu, Curve{})
		must.Eq(t, 300, *m.CPUS, must.Sprintf("%+v: %s", d, m.Why))
	}
	for _, d := range []Declared{
		{Epochs: 20}, {Assumed: Assumption{Epochs: 20, EpochsFrom: "--epochs"}}, {Assumed: Assumption{Steps: 8000, StepsFrom: "--max-steps"}},
	} {
		k := newTrainee(t, d, 0)
		k.draw("", 0, 300, 400, 1)
		k.unknown("may be those of one epoch")
	}
	k := newTrainee(t, Declared{}, 0)
	k.draw("Epoch 1", 0, 300, 400, 1)
	k.unknown("may be those of one epoch")
	// The previous run had more steps: a round for each epoch.
	k = newTrainee(t, Declared{Earlier: Run{CPUS: 900, Steps: 800}}, 0)
	k.draw("", 0, 300, 400, 1)
	k.left(500, Earlier)
	// The trainer's own steps per epoch show that the bar has more than one.
	k = newTrainee(t, Declared{Epochs: 20}, 0)
	for i := 0.0; i < 300; i++ {
		k.e.Add(Point{CPU: i, Step: i, Total: 1000, PerEpoch: 40, StepOnly: true})
	}
	k.cpu = 299
	must.Eq(t, Meta, k.e.Estimate(k.cpu, Curve{}).Source)
}

// A bar that ends and begins anew is an epoch, whose number only something else can tell.
func TestBarEpochs(t *testing.T) {
	for _, c := range []struct {
		declared Declared
		source   Source
	}{
		{Declared{}, Unknown},
		{Declared{Epochs: 10}, Meta},
		{Declared{Steps: 1000}, Meta},
		{Declared{Assumed: Assumption{Epochs: 10, EpochsFrom: "--epochs"}}, Assumed},
		{Declared{Assumed: Assumption{Steps: 1000, StepsFrom: "--max-steps"}}, Assumed},
		{Declared{Earlier: Run{Steps: 1000}}, Earlier},
	} {
		k := newTrainee(t, c.declared, 10)
		for n := range 5 {
			k.draw("Epoch "+string(rune('0'+n)), 0, 100, 100, 1)
			if n < 4 {
				k.cpu += 10 // validation
			}
		}
		step, total, ok := k.e.Position(k.cpu)
		must.True(t, ok)
		must.Eq(t, 500, step)
		if c.source == Unknown {
			k.unknown("the number of epochs is unknown")
			must.True(t, math.IsNaN(total))
			continue
		}
		must.Eq(t, 1000, total)
		k.left(5*110+10, c.source)
		must.Eq(t, "", k.e.Estimate(k.cpu, Curve{}).Lost)
		must.Eq(t, 1000, 2*k.e.State().Run(k.cpu).Steps)
	}
}

// Rounds of validation in a silent training are not the training.
func TestBarSilentTraining(t *testing.T) {
	k := newTrainee(t, Declared{Epochs: 5}, 0)
	for range 3 {
		k.cpu += 100
		k.draw("Validation", 0, 20, 20, 1)
	}
	k.unknown("too little of the CPU time")
}

// Several processes may draw the same bar.
func TestBarProcesses(t *testing.T) {
	k := newTrainee(t, Declared{Epochs: 5}, 0)
	for range 2 {
		for n := 0.0; n <= 100; n++ {
			k.draw("", n, n, 100, 0)
			k.draw("", max(n-2, 0), max(n-2, 0), 100, 0)
			k.cpu++
		}
	}
	step, total, _ := k.e.Position(k.cpu)
	must.Eq(t, []float64{200, 500}, []float64{step, total})
	must.NotNil(t, k.e.Estimate(k.cpu, Curve{}).CPUS)
}

// Only the steps of a bar that lasted are those of the job.
func TestBarRun(t *testing.T) {
	k := newTrainee(t, Declared{}, 1)
	k.draw("Loading", 0, 3, 3, 10)
	must.Eq(t, Run{CPUS: 100}, k.e.State().Run(100))
	k.draw("Training", 0, 20000, 20000, 0.1)
	must.Eq(t, 20000, k.e.State().Run(k.cpu).Steps)
	k = newTrainee(t, Declared{Earlier: Run{CPUS: 2000, Steps: 2.00001e6}}, 1) // rounded
	k.draw("Training", 0, 5, 2e6, 1)
	m := k.e.Estimate(k.cpu, Curve{})
	must.Eq(t, Steps, m.Source, must.Sprint(m.Why))
}

// A bar of epochs around one of steps and one of validation tells the size; until its
// first step nothing does.
func TestBarNested(t *testing.T) {
	k := newTrainee(t, Declared{}, 5)
	k.draw("Loading checkpoint shards", 0, 3, 3, 2)
	k.draw("Epochs", 0, 0, 20, 0)
	for n := 1.0; n <= 10; n++ {
		k.draw("Train", 0, 60, 80, 1)
		if n == 1 {
			k.unknown("began before has not ended")
		}
		k.draw("Train", 60, 80, 80, 1)
		k.draw("Validation", 0, 20, 20, 1)
		k.draw("Epochs", n, n, 20, 0)
		if n >= 2 {
			k.left(100*(20-n), Steps)
			must.Eq(t, "", k.e.Estimate(k.cpu, Curve{}).Lost)
		}
	}
	must.Eq(t, 20, k.e.Estimate(k.cpu, Curve{}).Total)
}

// What is printed once is no bar, and is not waited for, unless it counts from 0.
func TestBarSetting(t *testing.T) {
	k := newTrainee(t, Declared{}, 5)
	k.draw("step", 10, 10, 90, 0)
	_, _, ok := k.e.Position(k.cpu)
	must.False(t, ok)
	k.draw("", 0, 40, 100, 1)
	k.left(60, Steps)
}

// The headers of epochs tell the size, and bars in them may end with each or go on.
func TestBarInEpochs(t *testing.T) {
	for _, goOn := range []float64{0, 100} {
		k := newTrainee(t, Declared{}, 5)
		for n := 0.0; n < 4; n++ {
			k.draw("epoch", n, n, 5, 0)
			from := n * goOn
			k.draw("", from, from+100, 100+4*goOn, 1)
			if n == 0 {
				k.unknown("")
			}
		}
		step, total, _ := k.e.Position(k.cpu)
		must.Eq(t, []float64{3, 5}, []float64{step, total})
		k.left(100, Steps)
		must.Eq(t, "", k.e.Estimate(k.cpu, Curve{}).Lost)
	}
}

// The header may be read after the first report of its epoch's bar.
func TestBarLateHeader(t *testing.T) {
	k := newTrainee(t, Declared{Epochs: 4}, 0)
	k.draw("Epoch 1", 0, 100, 100, 1)
	k.draw("Epoch 1", 0, 10, 100, 1)
	k.cpu++
	k.draw("Epoch 2", 11, 50, 100, 1)
	k.left(250, Meta)
}

// A bar goes on with other words, and with a total that per cents tell better and better.
func TestBarGoesOn(t *testing.T) {
	k := newTrainee(t, Declared{}, 5)
	k.draw("warmup", 0, 30, 100, 1)
	k.cpu++
	k.draw("sample", 31, 40, 100, 1)
	k.left(60, Steps)
	k = newTrainee(t, Declared{}, 5)
	k.draw("", 0, 20, 0, 1)
	k.cpu++
	k.draw("", 21, 50, 101, 1)
	k.cpu++
	k.draw("", 51, 60, 100, 1)
	k.left(40, Steps)
	must.Len(t, 1, k.e.State().Tracks)
}

// The header of an epoch comes before its work, and the last one is not the end.
func TestBarHeaders(t *testing.T) {
	k := newTrainee(t, Declared{}, 5)
	for n := 1.0; n <= 5; n++ {
		k.draw("Epoch", n, n, 5, 0)
		if n >= 3 {
			k.left(100*(6-n), Steps)
		}
		k.cpu += 100
	}
	k.left(0, Steps)
	k.cpu += 1000
	k.unknown("the task goes on")

	// A report at the end of the epoch has no such work left.
	k = newTrainee(t, Declared{}, 5)
	for n := 1.0; n <= 5; n++ {
		k.cpu += 100
		k.draw("Epoch", n, n, 5, 0)
	}
	k.left(0, Steps)
}

// Validation after an epoch's bar does not disprove its size.
func TestBarValidation(t *testing.T) {
	k := newTrainee(t, Declared{Epochs: 10}, 0)
	for range 2 {
		k.draw("Train", 0, 100, 100, 1)
		k.draw("Validation", 0, 50, 50, 1)
	}
	m := k.e.Estimate(k.cpu, Curve{})
	must.Eq(t, Meta, m.Source, must.Sprint(m.Why))
	must.InDelta(t, 8*150, float64(*m.CPUS), 20)
	must.Eq(t, "", m.Lost)
}

// Bars of preparations end before the training's, which then lasts.
func TestBarPreparation(t *testing.T) {
	k := newTrainee(t, Declared{}, 10)
	k.draw("Downloading data", 0, 5, 5, 0.2)
	k.draw("Map", 0, 50, 50, 0.2)
	k.draw("Training", 0, 400, 2000, 1)
	k.left(1600, Steps)
	for n := 400.0; n < 700; n += 100 { // an evaluation's bar does not matter
		k.draw("Evaluating", 0, 20, 20, 1)
		k.draw("Training", n, n+100, 2000, 1)
	}
	m := k.e.Estimate(k.cpu, Curve{})
	must.Eq(t, 2000, m.Total, must.Sprint(m.Why))
	must.Eq(t, "", m.Lost)
}

// Wrong sizes are withdrawn at once.
func TestBarLost(t *testing.T) {
	started := func() *trainee {
		k := newTrainee(t, Declared{}, 0)
		k.draw("", 0, 40, 100, 1)
		k.left(60, Steps)
		return k
	}
	k := started() // it goes on after the bar
	k.draw("", 40, 100, 100, 1)
	k.cpu += 9
	k.left(0, Steps)
	k.cpu += 2
	k.unknown("the task goes on")
	must.StrContains(t, k.e.Estimate(k.cpu, Curve{}).Lost, "goes on")

	k = started() // beyond the total
	k.draw("", 40, 103, 100, 1)
	k.unknown("")
	must.StrContains(t, k.e.Estimate(k.cpu, Curve{}).Lost, "beyond")

	k = started() // it was an epoch's
	k.draw("", 40, 100, 100, 1)
	k.draw("", 0, 10, 100, 1)
	must.StrContains(t, k.e.Estimate(k.cpu, Curve{}).Lost, "begin anew")

	k = started() // a step costs more and more
	k.draw("", 40, 52, 100, 6)
	must.Eq(t, "the estimate has doubled", k.e.Estimate(k.cpu, Curve{}).Lost)
	k.unknown("")
	k.draw("", 52, 99, 100, 6) // trusted again after as much CPU time again
	k.left(6, Steps)

	k = started() // again and again
	k.e.s.Lost = maxLost
	k.unknown("wrong too often")
}

// Reports with a metric and a step replace step reports, and are replaced when they
// have been missing for half of the task's CPU time.
func TestBarAndMetric(t *testing.T) {
	k := newTrainee(t, Declared{}, 0)
	k.draw("", 0, 40, 100, 1)
	k.left(60, Steps)
	k.e.Add(Point{CPU: k.cpu, Step: math.NaN()}) // a value without step: the bar stays
	k.left(60, Steps)
	k.cpu = feed(k.e, 410, 500, 10, k.cpu+1, 0.1, 1000)
	k.left(50, Steps)
	k.draw("", 41, 60, 100, 1)
	must.Eq(t, 1000, k.e.Estimate(k.cpu, Curve{}).Total)
	_, _, ok := k.e.Position(k.cpu)
	must.False(t, ok)
	must.Eq(t, "", k.e.Estimate(k.cpu, Curve{}).Lost)
	k.draw("", 60, 100, 100, 1)
	k.draw("", 0, 300, 400, 1)
	must.Eq(t, 400, k.e.Estimate(k.cpu, Curve{}).Total)
}

// The metric's lines may have a step, and only the bar a total.
func TestBarTellsTotal(t *testing.T) {
	k := newTrainee(t, Declared{}, 0)
	for n := 0.0; n < 100; n++ {
		k.draw("", n, n, 400, 0)
		if n > 0 {
			k.draw("Evaluating", math.Mod(n, 10), math.Mod(n, 10), 10, 0)
		}
		if math.Mod(n, 10) == 0 {
			k.e.Add(Point{CPU: k.cpu, Step: n})
		}
		k.cpu++
		if n == 39 {
			k.unknown("")
		} else if n > 41 {
			k.left(399-n, Steps)
		}
	}
	must.Eq(t, "", k.e.Estimate(k.cpu, Curve{}).Lost)
	k.e.Add(Point{CPU: k.cpu, Step: 100, Total: 800}) // the metric's is surer
	must.Nil(t, k.e.Estimate(k.cpu, Curve{}).CPUS)
	k.e.Add(Point{CPU: k.cpu + 1, Step: 101, Total: 800})
	must.Eq(t, 800, k.e.Estimate(k.cpu+1, Curve{}).Total)
}

// A previous run's CPU time is the size until a bar is trusted; another process begins
// without rounds.
func TestBarEarlier(t *testing.T) {
	k := newTrainee(t, Declared{Earlier: Run{CPUS: 1000}}, 0)
	k.draw("", 0, 39, 400, 1)
	k.left(961, Earlier)
	k.draw("", 39, 40, 400, 1)
	k.left(360, Steps)
	k = newTrainee(t, Declared{Earlier: Run{CPUS: 1000, Steps: 100}}, 0)
	k.draw("", 0, 39, 400, 1) // perhaps in another unit
	k.left(961, Earlier)
	k.draw("", 39, 40, 400, 1)
	k.left(60, Earlier)
	k = newTrainee(t, Declared{Epochs: 3}, 0)
	k.draw("", 0, 100, 100, 1)
	k.draw("", 0, 50, 100, 1)
	k.left(150, Meta)
	k.cpu = 5
	k.draw("", 0, 50, 100, 1)
	k.unknown("one epoch")
	must.Eq(t, "", k.e.Estimate(k.cpu, Curve{}).Lost)
}

func TestBarState(t *testing.T) {
	a := newTrainee(t, Declared{Epochs: 4}, 10)
	a.draw("Epochs", 0, 0, 4, 0)
	a.draw("Train", 0, 100, 100, 1)
	a.draw("Train", 0, 20, 100, 1)
	data, err := json.Marshal(a.e.State())
	must.NoError(t, err)
	var s State
	must.NoError(t, json.Unmarshal(data, &s))
	b := &trainee{t, New(Declared{Epochs: 4}, s), a.cpu}
	for _, k := range []*trainee{a, b} {
		k.draw("Train", 20, 60, 100, 1)
	}
	must.Eq(t, a.e.State(), b.e.State())
	must.Eq(t, a.e.Estimate(a.cpu, Curve{}), b.e.Estimate(b.cpu, Curve{}))
	for _, bad := range []State{{ByBar: true}, {Lead: -1}, {Lead: 1}, {Tracks: make([]Bar, maxTracked+1)}} {
		must.Eq(t, State{}, New(Declared{}, bad).State())
	}
	for i := range 100 { // bounded memory
		b.draw(string(rune('a'+i)), 0, 5, 10+float64(i), 1)
	}
	must.LessEq(t, maxTracked, len(b.e.State().Tracks))
}
