// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package remaining

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/growth"
)

var nan, inf = math.NaN(), math.Inf(1)

// A slow start does not count for long, nor does another process.
func TestPace(t *testing.T) {
	var p Pace
	must.Zero(t, p.Cores())
	p.Add(100, 0, nan)
	must.Zero(t, p.Cores(), must.Sprint("one reading"))
	for second := range 40 { // a core for ten seconds, then a tenth
		p.Add(101+float64(second), min(float64(second)+1, 10)+max(float64(second)-9, 0)/10, nan)
	}
	must.InDelta(t, 0.1, float64(p.Cores()), 1e-9)
	p.Add(141, nan, nan)
	must.InDelta(t, 0.1, float64(p.Cores()), 1e-9)
	p.Add(142, 1, nan)
	must.Zero(t, p.Cores(), must.Sprint("another process"))
	p.Add(152, 6, nan)
	must.Eq(t, 0.5, float64(p.Cores()))
	p.Add(102, 7, nan)
	must.Zero(t, p.Cores(), must.Sprint("the clock was set"))
}

// A step's price on one core and on more shows the overhead of further cores.
func TestPace_overhead(t *testing.T) {
	run := func(p *Pace, seconds int, cores, perStep float64) {
		at, cpu, step := 0.0, 0.0, p.last
		if n := len(p.marks); n > 0 {
			at, cpu = p.marks[n-1].Step, p.marks[n-1].CPU
		}
		for range seconds {
			at, cpu, step = at+1, cpu+cores, step+cores/perStep
			p.Add(at, cpu, step)
		}
	}
	var p Pace
	run(&p, 10, 0.5, 0.1)
	run(&p, 4, 2, 0.13)
	must.Nil(t, p.Overhead(), must.Sprint("too few readings on two cores"))
	run(&p, 6, 2, 0.13)
	must.InDelta(t, 0.3, *p.Overhead(), 1e-9)
	run(&p, 20, 1.2, 1)
	must.InDelta(t, 0.3, *p.Overhead(), 1e-9, must.Sprint("neither one core nor more"))
	run(&p, 100, 1, 0.2) // another phase
	must.Zero(t, *p.Overhead())

	var same Pace
	same.last = 7
	run(&same, 50, 2, math.Inf(1))
	must.Nil(t, same.Overhead(), must.Sprint("no steps"))
}

// feed reports steps first … last by the stride, each costing `per` CPU-seconds from
// cpu on, and returns the CPU-seconds used.
func feed(e *Estimator, first, last, stride, cpu, per, total float64) float64 {
	for s := first; s <= last; s += stride {
		e.Add(Point{CPU: cpu, Step: s, Total: total})
		cpu += per * stride
	}
	return cpu - per*stride
}

func TestSteps(t *testing.T) {
	e := New(Declared{}, State{})
	m := e.Estimate(0, Curve{})
	must.Nil(t, m.CPUS)
	must.Eq(t, Unknown, m.Source)
	e.Add(Point{CPU: 5, Step: 10, Total: 100})
	must.Nil(t, e.Estimate(5, Curve{}).CPUS)

	cpu := feed(e, 20, 50, 10, 25, 2, 100)
	m = e.Estimate(cpu, Curve{})
	must.Eq(t, Steps, m.Source)
	must.InDelta(t, 100, float64(*m.CPUS), 1e-9)
	must.InDelta(t, 2, float64(m.PerStep), 1e-9)
	must.Eq(t, 100, m.Total)
	must.StrContains(t, m.Why, "50 of 100 steps")

	// It falls with the CPU used, down to the work at the next report.
	must.InDelta(t, 90, float64(*e.Estimate(cpu+10, Curve{}).CPUS), 1e-9)
	must.InDelta(t, 80, float64(*e.Estimate(cpu+1000, Curve{}).CPUS), 1e-9)
}

func left(t *testing.T, e *Estimator, cpu float64) float64 {
	t.Helper()
	m := e.Estimate(cpu, Curve{})
	must.NotNil(t, m.CPUS, must.Sprint(m.Why))
	return float64(*m.CPUS)
}

// epochs reports epochs of ten steps, one CPU-second each, with 5 CPU-seconds of
// validation at their end. It returns the CPU-seconds at the last report.
func epochs(e *Estimator, from, to int, total float64) (cpu float64) {
	for n := from; n <= to; n++ {
		for i := 1; i <= 10; i++ {
			cpu = float64(15*(n-from) + i)
			e.Add(Point{CPU: cpu, Step: float64(10*(n-1) + i), Total: total, PerEpoch: 10})
		}
	}
	return cpu
}

func TestWholeEpochs(t *testing.T) {
	e := New(Declared{}, State{})
	must.Eq(t, 10, epochs(e, 1, 1, 100))
	must.Eq(t, 90, left(t, e, 10)) // validation not seen yet
	cpu := epochs(e, 1, 4, 100)
	m := e.Estimate(cpu, Curve{})
	must.Eq(t, 1.5, m.PerStep)
	must.InDelta(t, 6*15+5, left(t, e, cpu), 0.5+1e-9)
	must.StrContains(t, m.Why, "over whole epochs")
	// During the validation, and after; then the next report is overdue.
	must.InDelta(t, 6*15+1, left(t, e, cpu+4), 0.5+1e-9)
	must.InDelta(t, 6*15-1.5, left(t, e, cpu+400), 1e-9)
	// In the middle of an epoch, steps before its end cost a second each.
	for i := 1; i <= 4; i++ {
		e.Add(Point{CPU: 60 + float64(i), Step: float64(40 + i), Total: 100, PerEpoch: 10})
	}
	must.InDelta(t, 5*15+5+6, left(t, e, 64), 0.5+1e-9)
	must.InDelta(t, 5*15+5, left(t, e, 84), 0.5+1e-9)
	// At the end of the last epoch its validation is left.
	e = New(Declared{}, State{})
	cpu = epochs(e, 1, 10, 100)
	must.InDelta(t, 5, left(t, e, cpu), 0.5+1e-9)
	must.Eq(t, 0, left(t, e, cpu+100))
}

// The first steps compile and fill caches, at ten times the cost.
func TestSlowStart(t *testing.T) {
	e := New(Declared{}, State{})
	cpu := 0.0
	for i := 1.0; i <= 35; i++ {
		if cpu++; i <= 5 {
			cpu += 9
		}
		e.Add(Point{CPU: cpu, Step: i, Total: 100, PerEpoch: 10})
		if i == 11 || i == 35 {
			must.InDelta(t, 100-i, left(t, e, cpu), 1e-9)
		}
	}
}

// With one or two reports per epoch, none is at the place of the last epoch's.
func TestRareReports(t *testing.T) {
	e := New(Declared{}, State{})
	at := func(step float64) float64 { return step + 32*math.Floor(step/128) } // with validation
	for i := 100.0; i <= 1000; i += 100 {
		e.Add(Point{CPU: at(i), Step: i, Total: 12800, PerEpoch: 128})
	}
	m := e.Estimate(at(1000), Curve{})
	must.InDelta(t, 1.25, float64(m.PerStep), 0.02)
	must.InDelta(t, at(12800)-at(1000), float64(*m.CPUS), 300)
	must.StrContains(t, m.Why, "whole epochs")
}

func TestEpochsAlone(t *testing.T) {
	e := New(Declared{}, State{})
	for n := 1.0; n <= 4; n++ {
		e.Add(Point{CPU: 20 * n, Step: n, Total: 10, PerEpoch: 1})
	}
	m := e.Estimate(80, Curve{})
	must.Eq(t, Epochs, m.Source)
	must.Eq(t, 120, *m.CPUS)
	must.Eq(t, 110, left(t, e, 90))
	must.Eq(t, 100, left(t, e, 900))
}

func TestTotals(t *testing.T) {
	assumed := Assumption{Steps: 70, StepsFrom: "--max_steps", Epochs: 9, EpochsFrom: "EPOCHS"}
	for _, c := range []struct {
		declared Declared
		total    float64 // the trainer's
		per      float64
		source   Source
		want     float64
		why      string
	}{
		{Declared{Steps: 50, Epochs: 9, Assumed: assumed}, 60, 10, Meta, 50, "as the job declares"},
		{Declared{Epochs: 9, Assumed: assumed}, 60, 10, Meta, 90, "as the job declares"},
		{Declared{Epochs: 9, Assumed: assumed}, 60, 0, Steps, 60, "as the trainer reports"},
		{Declared{Assumed: assumed, Earlier: Run{CPUS: 9, Steps: 80}}, 0, 10, Assumed, 70, "assumed from --max_steps"},
		{Declared{Assumed: Assumption{Epochs: 9, EpochsFrom: "EPOCHS"}}, nan, 10, Assumed, 90, "assumed from EPOCHS"},
		{Declared{Assumed: Assumption{Epochs: 9, EpochsFrom: "EPOCHS"}, Earlier: Run{CPUS: 9, Steps: 80}}, -1, 0, Earlier, 80, "as in the previous run"},
		{Declared{Assumed: assumed, Earlier: Run{CPUS: 9, Steps: 80}}, 600, 10, Earlier, 80, "as in the previous run"},
		{Declared{Earlier: Run{CPUS: 9, Steps: 80}}, 60, 10, Steps, 60, "as the trainer reports"},
		{Declared{Earlier: Run{CPUS: 9, Steps: 30}}, 600, 10, Steps, 600, "as the trainer reports"},
		{Declared{Assumed: assumed}, 0, 1, Unknown, 0, "beyond"}, // epoch 40, not step 40
		{Declared{}, inf, 10, Unknown, 0, "no total is known"},
		{Declared{}, 0, 10, Unknown, 0, "no total is known"},
		{Declared{Steps: 20, Epochs: 2, Assumed: assumed}, 30, 10, Assumed, 70, ""},
		{Declared{Steps: 20}, 30, 0, Unknown, 0, "beyond"},
	} {
		e := New(c.declared, State{})
		for i := 1.0; i <= 40; i++ {
			e.Add(Point{CPU: i, Step: i, Total: c.total, PerEpoch: c.per})
		}
		m := e.Estimate(40, Curve{})
		must.Eq(t, c.source, m.Source)
		must.Eq(t, c.want, m.Total)
		must.StrContains(t, m.Why, c.why)
		if c.want > 0 {
			must.InDelta(t, c.want-40, float64(*m.CPUS), 1e-9)
		} else {
			must.Nil(t, m.CPUS)
		}
	}
}

// A step one beyond the total is its end; two beyond disprove it.
func TestBeyond(t *testing.T) {
	e := New(Declared{}, State{})
	feed(e, 1, 11, 1, 1, 1, 10)
	must.Eq(t, 0, left(t, e, 11))
	e.Add(Point{CPU: 12, Step: 12, Total: 10})
	must.Nil(t, e.Estimate(12, Curve{}).CPUS)
}

// The earlier run is the size of a task without steps, and the price of its first ones.
func TestEarlier(t *testing.T) {
	e := New(Declared{}, State{})
	must.Nil(t, e.Estimate(50, Curve{}).CPUS)
	e.Recall(Run{CPUS: 200, Steps: 100})
	m := e.Estimate(50, Curve{})
	must.Eq(t, 150, *m.CPUS)
	must.Eq(t, Earlier, m.Source)
	must.Nil(t, e.Estimate(250, Curve{}).CPUS)

	e.Add(Point{CPU: 20, Step: 5, Total: 50})
	m = e.Estimate(20, Curve{})
	must.Eq(t, Steps, m.Source)
	must.Eq(t, 90, *m.CPUS)
	e.Add(Point{CPU: 25, Step: 6, Total: 50})
	must.Eq(t, 5*44, left(t, e, 25))
}

// Nomad restarts the process: CPU-seconds begin at 0, the step at a checkpoint.
func TestRestart(t *testing.T) {
	e := New(Declared{}, State{})
	feed(e, 1, 50, 1, 1, 2, 100)
	must.Eq(t, 100, left(t, e, 99))
	e.Add(Point{CPU: 4, Step: nan})
	must.Eq(t, 100, left(t, e, 4))
	e.Add(Point{CPU: 5, Step: 41, Total: 100})
	m := e.Estimate(5, Curve{})
	must.Eq(t, 2*59, *m.CPUS)
	must.StrContains(t, m.Why, "as before the restart")
	feed(e, 42, 60, 1, 8, 3, 100)
	must.Eq(t, 3*40, left(t, e, 8+18*3))

	// Or the trainer itself rolls back.
	feed(e, 45, 50, 1, 100, 3, 100)
	must.Eq(t, 3*50, left(t, e, 115))

	e.Add(Point{CPU: 117, Step: 51, Total: 100})
	e.Add(Point{CPU: 116, Step: 52, Total: 100})
	must.StrContains(t, e.Estimate(116, Curve{}).Why, "latest steps")
}

// A step that decreases repeatedly without passing its peak is no position, until it
// passes it.
func TestRepeatedRestarts(t *testing.T) {
	e := New(Declared{}, State{})
	cpu := 0.0
	for range 3 {
		cpu = feed(e, 1, 40, 1, cpu+1, 1, 100)
		must.Eq(t, 60, left(t, e, cpu))
	}
	cpu = feed(e, 1, 20, 1, cpu+1, 1, 100)
	m := e.Estimate(cpu, Curve{})
	must.Nil(t, m.CPUS)
	must.Eq(t, Unknown, m.Source)
	must.StrContains(t, m.Why, "keeps going backwards")
	cpu = feed(e, 21, 50, 1, cpu+1, 1, 100)
	must.Eq(t, 50, left(t, e, cpu))
	for n := 60.0; n < 100; n += 10 {
		cpu = feed(e, n-30, n, 1, cpu+1, 1, 100)
		must.Eq(t, 100-n, left(t, e, cpu))
	}
}

func TestCountdown(t *testing.T) {
	e := New(Declared{Earlier: Run{CPUS: 1, Steps: 1000}}, State{})
	for i := range 20 {
		e.Add(Point{CPU: float64(2 * i), Step: float64(100 - i), Total: 100})
	}
	m := e.Estimate(38, Curve{})
	must.Eq(t, Steps, m.Source)
	must.Eq(t, 2*81, *m.CPUS)
	must.StrContains(t, m.Why, "81 steps left")
	must.Eq(t, Run{CPUS: 38}, e.State().Run(38))
	cpu := feed(e, 90, 100, 1, 40, 2, 200)
	must.Eq(t, 200, left(t, e, cpu))
}

func TestTotalChanges(t *testing.T) {
	e := New(Declared{}, State{})
	feed(e, 1, 50, 1, 1, 1, 100)
	cpu := feed(e, 51, 60, 1, 51, 1, 200)
	must.Eq(t, 140, left(t, e, cpu))
	for i := 61.0; i < 70; i++ {
		e.Add(Point{CPU: i, Step: i, Total: i})
	}
	must.Nil(t, e.Estimate(70, Curve{}).CPUS)
	e = New(Declared{}, State{})
	feed(e, 1, 50, 1, 1, 1, 100)
	e.Add(Point{CPU: 51, Step: 51})
	must.Nil(t, e.Estimate(51, Curve{}).CPUS)
}

func TestBars(t *testing.T) {
	e := New(Declared{}, State{})
	cpu := feed(e, 1, 50, 1, 1, 1, 1000)
	for n := range 4 {
		cpu = feed(e, 1, 20, 1, cpu+1, 0.1, 20)
		must.Between(t, 1000-50*float64(n+1)-3, left(t, e, cpu), 1.07*(1000-50*float64(n+1))) // its time is in the steps'
		cpu = feed(e, float64(51+50*n), float64(100+50*n), 1, cpu+1, 1, 1000)
	}
	// A bar that stays is the training's; so is one that comes when ours is complete.
	cpu = feed(e, 1, 600, 1, cpu+1, 1, 2000)
	must.Eq(t, 1400, left(t, e, cpu))
	e = New(Declared{}, State{})
	cpu = feed(e, 1, 2, 1, 1, 1, 2)
	cpu = feed(e, 1, 10, 1, cpu+1, 1, 100)
	must.Eq(t, 90, left(t, e, cpu))
	for n := 0.0; n < 3; n++ {
		cpu = feed(e, 1, 100+n, 1, cpu+1, 1, 100+n)
	}
	must.Nil(t, e.Estimate(cpu, Curve{}).CPUS)
}

func TestNoNumbers(t *testing.T) {
	e := New(Declared{}, State{})
	cpu := feed(e, 1, 50, 1, 1, 1, 100)
	for _, v := range []float64{nan, inf, -inf, -1, 1e300} {
		e.Add(Point{CPU: v, Step: 10, Total: 20})
		e.Add(Point{CPU: cpu, Step: v, Total: 20})
		must.Eq(t, 50, left(t, e, cpu))
		must.Eq(t, 50, left(t, e, v))
	}
	e.Add(Point{CPU: cpu, Step: 50, Total: 100})
	must.Eq(t, 50, left(t, e, cpu))
}

// Reports read at once share one CPU reading; a later one continues from there.
func TestOneReading(t *testing.T) {
	e := New(Declared{}, State{})
	for i := 1.0; i <= 100; i++ {
		e.Add(Point{CPU: 10 * math.Ceil(i/10), Step: i, Total: 200})
	}
	must.Eq(t, 100, left(t, e, 100))
	must.Eq(t, 95, left(t, e, 105))
	must.Eq(t, 90, left(t, e, 500))

	// Docker passes a bar on when it is full: an epoch at once, before its validation.
	e = New(Declared{}, State{})
	for i := 1.0; i <= 50; i++ {
		e.Add(Point{CPU: 15*math.Ceil(i/10) - 5, Step: i, Total: 100, PerEpoch: 10})
	}
	must.Eq(t, 75, left(t, e, 70))
	must.Eq(t, 70, left(t, e, 75))
	must.Eq(t, 60, left(t, e, 500))
}

func TestState(t *testing.T) {
	a := New(Declared{}, State{})
	epochs(a, 1, 6, 100)
	data, err := json.Marshal(a.State())
	must.NoError(t, err)
	var s State
	must.NoError(t, json.Unmarshal(data, &s))
	b := New(Declared{}, s)
	must.Eq(t, a.State(), b.State())
	for i := range 20 {
		p := Point{CPU: 91 + float64(i), Step: 61 + float64(i), Total: 100, PerEpoch: 10}
		a.Add(p)
		b.Add(p)
		must.Eq(t, a.Estimate(p.CPU, Curve{}), b.Estimate(p.CPU, Curve{}))
	}
}

func TestRun(t *testing.T) {
	e := New(Declared{}, State{})
	must.Eq(t, Run{CPUS: 7}, e.State().Run(7))
	must.Eq(t, Run{}, e.State().Run(nan))
	cpu := feed(e, 1, 100, 1, 11, 2, 100) // ten CPU-seconds of imports
	must.Eq(t, 209, cpu)
	run := e.State().Run(cpu + 3)
	must.Eq(t, Run{CPUS: 212, Steps: 100}, run)

	resumed := New(Declared{}, State{})
	feed(resumed, 51, 100, 1, 11, 2, 100)
	must.Eq(t, Run{CPUS: 2*51 + 98 + 3, Steps: 100}, resumed.State().Run(11+98+3))
}

func TestTargets(t *testing.T) {
	fit, err := growth.New(growth.KindRobust, growth.Min)
	must.NoError(t, err)
	e := New(Declared{}, State{})
	value := func(c float64) float64 { return 2 + 3/(1+c/10) }
	for c := 1.0; c <= 100; c++ {
		fit.Add(growth.Point{T: c, CPU: c, Value: value(c), Step: c})
		e.Add(Point{CPU: c, Step: c, Total: 1000})
	}
	near, far, now := value(150), 1.0, value(50)
	c := Curve{Fit: fit.Measure().Fit, Objective: &near}
	m := e.Estimate(100, c)
	must.Eq(t, Objective, m.Source)
	must.InDelta(t, 50, float64(*m.CPUS), 20)
	must.StrContains(t, m.Why, "reaches the objective")
	must.LessEq(t, *m.CPUS, *m.QualityCPUS)

	// Objectives that the curve does not reach, or not before the end, or from a
	// plateau.
	c.Objective = &far
	must.Eq(t, Steps, e.Estimate(100, c).Source)
	c.Objective, c.Plateau = &near, true
	m = e.Estimate(100, c)
	must.Eq(t, Steps, m.Source)
	must.Eq(t, 0, *m.QualityCPUS)

	// The quality point: the acceptable target, or a part of the work.
	c = Curve{Fit: c.Fit, Acceptable: &near}
	must.InDelta(t, 50, float64(*e.Estimate(100, c).QualityCPUS), 20)
	c.Acceptable = &far
	must.Nil(t, e.Estimate(100, c).QualityCPUS)
	c.Passed = true
	must.Eq(t, 0, *e.Estimate(100, c).QualityCPUS)
	c = Curve{Fit: c.Fit, Acceptable: &now}
	must.Eq(t, 0, *e.Estimate(100, c).QualityCPUS)
	c.Acceptable = nil
	must.InDelta(t, qualityPart*1000-100, float64(*e.Estimate(100, c).QualityCPUS), 10)
	// With an unknown end only a plateau has a quality point.
	unsized := New(Declared{}, State{})
	must.Nil(t, unsized.Estimate(100, c).QualityCPUS)
	c.Plateau = true
	must.Eq(t, 0, *unsized.Estimate(100, c).QualityCPUS)
}

// For any input: not negative, no NaN, bounded memory, a reason, and a state that
// survives encoding.
func TestAnything(t *testing.T) {
	weird := rapid.OneOf(rapid.Float64Range(0, 200), rapid.Map(rapid.IntRange(0, 50), func(i int) float64 { return float64(i) }),
		rapid.Float64(), rapid.SampledFrom([]float64{0, 1, 10, nan, inf, -inf, -1, 1e14, 1e15, 1e-300, math.MaxFloat64}))
	rapid.Check(t, func(t *rapid.T) {
		d := Declared{Steps: number(weird.Draw(t, "steps")), Epochs: number(weird.Draw(t, "epochs")),
			Assumed: Assumption{Epochs: number(weird.Draw(t, "assumed"))}, Earlier: Run{CPUS: number(weird.Draw(t, "cpu_s")), Steps: number(weird.Draw(t, "before"))}}
		if rapid.Bool().Draw(t, "nothing") {
			d = Declared{}
		}
		e := New(d, State{})
		cpu, step := 0.0, 0.0
		for range rapid.IntRange(0, 300).Draw(t, "n") {
			cpu += rapid.Float64Range(0, 2).Draw(t, "dc")
			step++
			p := Point{CPU: cpu, Step: step, Total: 100, PerEpoch: 10}
			if rapid.IntRange(0, 2).Draw(t, "bar") > 0 {
				p.StepOnly, p.Bar = true, rapid.SampledFrom([]string{"", "Train", "Epoch 3"}).Draw(t, "name")
				p.Step = math.Mod(step, rapid.SampledFrom([]float64{7, 101}).Draw(t, "of"))
			}
			for _, f := range []*float64{&p.CPU, &p.Step, &p.Total, &p.PerEpoch} {
				if rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
					*f = weird.Draw(t, "v")
				}
			}
			e.Add(p)
			at := rapid.OneOf(rapid.Just(p.CPU), weird).Draw(t, "at")
			m := e.Estimate(at, Curve{Plateau: rapid.Bool().Draw(t, "flat")})
			if m.Why == "" || (m.CPUS == nil) != (m.Source == Unknown) {
				t.Fatalf("%+v", m)
			}
			for _, v := range []*float64{(*float64)(m.CPUS), (*float64)(m.QualityCPUS), (*float64)(&m.PerStep), &m.Total} {
				if v != nil && (!(*v >= 0) || math.IsInf(*v, 0)) {
					t.Fatalf("%+v after %+v: %v", m, p, *v)
				}
			}
			s := e.State()
			if step, _, ok := e.Position(at); ok && !(step >= 0) {
				t.Fatal(step)
			}
			if len(s.Tracks) > maxTracked || len(s.Steps) > maxMarks || len(s.Epochs) > maxMarks {
				t.Fatal("too many marks")
			}
			if r := s.Run(at); !(r.CPUS >= 0) || !(r.Steps >= 0) || math.IsInf(r.CPUS, 0) {
				t.Fatalf("%+v", r)
			}
			if _, err := json.Marshal(s); err != nil {
				t.Fatal(err)
			}
		}
	})
}
