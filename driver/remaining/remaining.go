// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package remaining

import (
	"fmt"
	"math"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/policy"
)

// Source names what an estimate rests on.
type Source string

// The sources.
const (
	Unknown   Source = ""
	Steps     Source = "steps"     // the trainer says how many steps there are
	Epochs    Source = "epochs"    // the trainer says how many epochs there are, and no steps
	Meta      Source = "meta"      // the job declares it
	Assumed   Source = "assumed"   // an option of the command line or the environment
	Earlier   Source = "earlier"   // an earlier run of the same job
	Objective Source = "objective" // the fitted curve reaches the objective
)

// Estimate is what is known of what a task still needs.
type Estimate struct {
	// CPUS is how much more CPU time the task will use until it ends; nil if unknown.
	CPUS *policy.CPUSeconds
	// QualityCPUS is how much more it will use until its model is good enough: it reaches
	// its acceptable target, or, without one, has done 60 % of its work. 0 when that is
	// passed, or on a plateau; nil if unknown.
	QualityCPUS *policy.CPUSeconds
	// Source is what CPUS rests on.
	Source Source
	// PerStep is the price of a step; 0 if unknown.
	PerStep policy.CPUSeconds
	// Total is the number of steps that is reckoned with, in the trainer's own steps; 0 if
	// there is none. A trainer that counts down has 0.
	Total float64
	// Why explains the estimate.
	Why string
}

// Declared is what is known of a task's work before it reports. Numbers that are not
// known are 0.
type Declared struct {
	Steps  float64 `json:"steps,omitempty"`  // meta
	Epochs float64 `json:"epochs,omitempty"` // meta
	// Assumed are from the command line or the environment.
	Assumed Assumption `json:"assumed,omitzero"`
	Earlier Run        `json:"earlier,omitzero"`
}

// Assumption is what options of a task's command line or environment seem to say.
type Assumption struct {
	Steps      float64 `json:"steps,omitempty"`
	StepsFrom  string  `json:"steps_from,omitempty"` // the option's name
	Epochs     float64 `json:"epochs,omitempty"`
	EpochsFrom string  `json:"epochs_from,omitempty"`
}

// Run is what a whole run of a job took.
type Run struct {
	CPUS  float64 `json:"cpu_s"`
	Steps float64 `json:"steps,omitempty"` // in the trainer's own steps; 0 if it reported none
}

// Point is one report, with the CPU-seconds that the task had used when it was read.
// Numbers that are not known are 0 or NaN.
type Point struct {
	CPU      float64
	Step     float64
	Total    float64 // steps there will be
	PerEpoch float64 // steps of an epoch
}

// Curve is what is known of the task's metric.
type Curve struct {
	Fit        growth.Fit
	Plateau    bool
	Acceptable *float64 // target; nil if none
	Objective  *float64 // target; nil if none
	Passed     bool     // the acceptable target was reached
}

// Mark is a step, and the CPU-seconds used until it was reported.
type Mark struct {
	Step float64 `json:"s"`
	CPU  float64 `json:"c"`
}

// State is what a later process goes on with. Its numbers are finite.
type State struct {
	Reported bool    `json:"reported,omitempty"`
	Used     float64 `json:"used,omitempty"` // CPU-seconds at the last report
	// Of the last report that counts. A step that counts down is negative.
	At  Mark    `json:"at,omitzero"`
	Gap float64 `json:"gap,omitempty"` // steps between the last two
	// Before is the last step of the CPU reading before: reports may come in bursts.
	Before float64 `json:"before,omitempty"`

	Total    float64 `json:"total,omitempty"`     // as the trainer says
	Changes  float64 `json:"changes,omitempty"`   // of the total, lately
	PerEpoch float64 `json:"per_epoch,omitempty"` // steps
	Other    float64 `json:"other,omitempty"`     // total of another bar
	OtherCPU float64 `json:"other_cpu,omitempty"` // when it came
	Bars     int     `json:"bars,omitempty"`      // taken over after ours was complete

	Raw   float64 `json:"raw,omitempty"`   // last step as printed
	Falls int     `json:"falls,omitempty"` // reports in a row with a lower step; < 0: higher
	Down  bool    `json:"down,omitempty"`  // it counts down
	Peak  float64 `json:"peak,omitempty"`  // highest step before the restarts
	Backs int     `json:"backs,omitempty"` // restarts in a row that did not get beyond it

	Began   Mark    `json:"began,omitzero"` // first report of this run of steps
	Steps   []Mark  `json:"steps,omitempty"`
	Epochs  []Mark  `json:"epochs,omitempty"`  // the first report of each epoch
	Carried float64 `json:"carried,omitempty"` // CPU-seconds per step before a restart
}

const (
	maxMarks   = 64   // kept of steps and of epochs
	most       = 1e15 // steps and CPU-seconds beyond are none
	least      = 1e-6 // nor are steps below, and none lie nearer to each other
	falls      = 4    // lower steps in a row mean that it counts down
	maxBacks   = 3    // restarts in a row without getting further
	maxBars    = 3    // bars one after the other
	maxChanges = 3    // of a total, beyond what settled reports make up for
	settled    = 0.1  // change that a report with the same total makes up for
	jitter     = 0.9  // CPU readings lower by this factor are of another process
	rare       = 0.1  // of an epoch and more between two reports makes them rare
	slowStart  = 2    // a first epoch is one if its steps cost so many times what the newest do
	// qualityPart of a task's work brings it to the quality point unless a target or a
	// plateau tells better: a fit of the first reports does not.
	qualityPart = 0.6
)

// Estimator follows one task.
type Estimator struct {
	declared Declared
	s        State
}

// Recall tells what an earlier run took.
func (e *Estimator) Recall(run Run) { e.declared.Earlier = run }

// New returns an Estimator that goes on from a state; the zero State is a new task.
func New(d Declared, s State) *Estimator {
	s.Steps, s.Epochs = append([]Mark(nil), s.Steps...), append([]Mark(nil), s.Epochs...)
	return &Estimator{declared: d, s: s}
}

// State returns what a later process goes on with.
func (e *Estimator) State() State {
	s := e.s
	s.Steps, s.Epochs = append([]Mark(nil), s.Steps...), append([]Mark(nil), s.Epochs...)
	return s
}

// number is a count as a trainer says it: 0 if it is none.
func number(v float64) float64 {
	if v >= least && v < most {
		return v
	}
	return 0
}

// Add takes a report. One without a CPU reading is left out.
func (e *Estimator) Add(p Point) {
	s := &e.s
	if !(p.CPU >= 0 && p.CPU < most) {
		return
	}
	if p.CPU < s.Used {
		if p.CPU < jitter*s.Used {
			e.restart()
		} else {
			p.CPU = s.Used
		}
	}
	s.Used = p.CPU
	if !(p.Step >= 0 && p.Step < most) {
		return
	}
	e.direction(p.Step)
	step, total := p.Step, number(p.Total)
	if s.Down {
		step, total = -step, 0
	}
	if s.Reported && e.foreign(step, total, p.CPU) {
		return
	}
	if s.Reported && step < s.At.Step {
		e.back()
	}
	s.Changes = max(0, s.Changes-settled)
	if total > 0 {
		if s.Total > 0 && total != s.Total {
			s.Changes++
		}
		s.Total, s.Other = total, 0
	} else if s.Reported && !s.Down {
		s.Total = 0 // the trainer does not say any more: it was of a bar
	}
	if step > s.Peak {
		s.Backs = 0
	}
	if step == s.At.Step && len(s.Steps) > 0 {
		return // the same step once more
	}
	switch {
	case len(s.Steps) == 0:
		s.Began, s.Gap, s.Before = Mark{step, p.CPU}, 0, step
	case p.CPU > s.At.CPU:
		s.Before = s.At.Step
		fallthrough
	default:
		s.Gap = step - s.At.Step
	}
	e.epoch(Mark{step, p.CPU}, number(p.PerEpoch))
	s.Reported, s.At = true, Mark{step, p.CPU}
	s.Steps = mark(s.Steps, s.At)
}

// direction notes whether the step counts down.
func (e *Estimator) direction(raw float64) {
	s := &e.s
	switch {
	case !s.Reported || raw == s.Raw:
	case raw < s.Raw:
		s.Falls = max(s.Falls, 0) + 1
	default:
		s.Falls = min(s.Falls, 0) - 1
	}
	s.Raw = raw
	if down := s.Falls >= falls || s.Down && s.Falls > -falls; down != s.Down {
		s.Down = down
		e.restart()
		s.Carried, s.Peak, s.Backs, s.Total, s.PerEpoch = 0, 0, 0, 0, 0
		s.Reported = false
	}
}

// foreign says whether a report is of another bar.
func (e *Estimator) foreign(step, total, cpu float64) bool {
	s := &e.s
	if total == 0 || s.Total == 0 || total == s.Total || total != s.Other && step >= s.At.Step {
		return false
	}
	if total != s.Other {
		s.Other, s.OtherCPU = total, cpu
	}
	complete := s.At.Step+s.Gap >= s.Total
	if !complete && cpu-s.OtherCPU <= s.At.CPU-s.Began.CPU {
		return true
	}
	if complete {
		s.Bars++
	}
	e.restart()
	s.Carried, s.Total, s.At.Step, s.Peak = 0, total, step, 0
	return false
}

// back notes that the step went back.
func (e *Estimator) back() {
	s := &e.s
	if s.At.Step > s.Peak {
		s.Backs = 0
	}
	s.Peak = max(s.Peak, s.At.Step)
	s.Backs++
	e.restart()
}

// restart forgets where steps were reported, and keeps their price.
func (e *Estimator) restart() {
	s := &e.s
	if per, _ := s.measured(); per > 0 {
		s.Carried = per
	}
	s.Steps, s.Epochs, s.Gap = s.Steps[:0], s.Epochs[:0], 0
}

// epoch notes where an epoch begins: its first report, or, where reports are rare, the
// end of the one before, between two reports.
func (e *Estimator) epoch(at Mark, per float64) {
	s := &e.s
	if per == 0 {
		return
	}
	if math.Abs(per-s.PerEpoch) > 0.05*per {
		s.Epochs = s.Epochs[:0]
	}
	s.PerEpoch = per
	n, was := len(s.Epochs), s.At
	switch {
	case n == 0 || at.CPU <= s.Epochs[n-1].CPU:
	case at.Step-was.Step > rare*per:
		end := math.Floor(at.Step/per) * per
		if end <= was.Step {
			return
		}
		at = Mark{end, was.CPU + (at.CPU-was.CPU)*(end-was.Step)/(at.Step-was.Step)}
	case epochOf(at.Step, per) <= epochOf(was.Step, per):
		return
	}
	s.Epochs = mark(s.Epochs, at)
}

// epochOf counts the epochs that were complete before the step.
func epochOf(step, per float64) float64 { return math.Ceil(step/per) - 1 }

// mark adds a mark. Reports that were read in one go have one CPU reading; it is that of
// the last. When there are too many, every second goes.
func mark(ms []Mark, m Mark) []Mark {
	if n := len(ms); n > 0 && m.CPU <= ms[n-1].CPU {
		ms[n-1].Step = m.Step
		return ms
	}
	ms = append(ms, m)
	if len(ms) > maxMarks {
		n := 0
		for i := 0; i < len(ms); i += 2 {
			ms[n] = ms[i]
			n++
		}
		ms = ms[:n]
	}
	return ms
}

// price is CPU-seconds per step over the newer half of the marks; 0 with fewer than two.
func price(ms []Mark) float64 {
	n := len(ms)
	if n < 2 {
		return 0
	}
	first, last := ms[0], ms[n-1]
	from := n - 2
	for from > 0 && ms[from].Step-first.Step > (last.Step-first.Step)/2 {
		from--
	}
	if last.Step-ms[from].Step < least {
		return 0
	}
	return (last.CPU - ms[from].CPU) / (last.Step - ms[from].Step)
}

// measured is the price of a step as measured since the last restart, and whether over
// whole epochs.
func (s *State) measured() (per float64, epochs bool) {
	steps := price(s.Steps)
	if per = price(s.Epochs); per == 0 || len(s.Epochs) == 2 && steps > 0 && per > slowStart*steps {
		return steps, false
	}
	return per, true
}

// Estimate tells what the task needs, which has used so many CPU-seconds by now.
func (e *Estimator) Estimate(cpu float64, c Curve) Estimate {
	if !(cpu >= e.s.Used && cpu < most) {
		cpu = e.s.Used
	}
	out := e.toEnd(cpu)
	if c.Objective != nil && !c.Plateau {
		if way, ok := c.Fit.To(*c.Objective, cpu); ok && (out.CPUS == nil || way < float64(*out.CPUS)) {
			out.CPUS, out.Source = seconds(way), Objective
			out.Why = fmt.Sprintf("the fitted curve reaches the objective %.6g in %.4g CPU-seconds", *c.Objective, way)
		}
	}
	out.QualityCPUS = quality(cpu, c, out.CPUS)
	return out
}

// quality is the way to the quality point; nil if unknown.
func quality(cpu float64, c Curve, end *policy.CPUSeconds) *policy.CPUSeconds {
	way, ok := 0.0, true
	switch {
	case c.Passed || c.Plateau:
	case c.Acceptable != nil:
		if way, ok = c.Fit.To(*c.Acceptable, cpu); ok && end != nil {
			way = min(way, float64(*end))
		}
	case end != nil:
		way = qualityPart*(cpu+float64(*end)) - cpu
	default:
		ok = false
	}
	if !ok {
		return nil
	}
	return seconds(way)
}

func seconds(v float64) *policy.CPUSeconds {
	s := policy.CPUSeconds(max(v, 0))
	return &s
}

// total is the step at which the task ends, and who says so.
func (e *Estimator) total() (total float64, from Source, name string) {
	s := &e.s
	if s.Down {
		return 0, Steps, "counting down"
	}
	d := e.declared
	trainer := s.Total
	if s.Changes >= maxChanges || s.Bars >= maxBars {
		trainer = 0
	}
	by, assumed := Steps, d.Assumed.Steps
	if s.PerEpoch == 1 {
		by, assumed = Epochs, 0 // no step is told, only epochs
	}
	for _, c := range []struct {
		total float64
		from  Source
		name  string
	}{
		{d.Steps, Meta, "as the job declares"},
		{d.Epochs * s.PerEpoch, Meta, "as the job declares"},
		{trainer, by, "as the trainer says"},
		{assumed, Assumed, "assumed from " + d.Assumed.StepsFrom},
		{d.Assumed.Epochs * s.PerEpoch, Assumed, "assumed from " + d.Assumed.EpochsFrom},
		{d.Earlier.Steps, Earlier, "as in the run before"},
	} {
		if c.total > 0 && s.At.Step <= c.total+max(s.Gap, 1) {
			return c.total, c.from, c.name
		}
	}
	return 0, Unknown, ""
}

// toEnd tells what the task needs until its own end.
func (e *Estimator) toEnd(cpu float64) Estimate {
	s := &e.s
	before := e.declared.Earlier
	if !s.Reported {
		if before.CPUS > cpu {
			return Estimate{CPUS: seconds(before.CPUS - cpu), Source: Earlier, Total: before.Steps,
				Why: fmt.Sprintf("the run before took %.4g CPU-seconds", before.CPUS)}
		}
		return Estimate{Why: "no step has been reported"}
	}
	per, epochs := s.measured()
	how := "over the latest steps"
	switch {
	case epochs:
		how = "over whole epochs"
	case per > 0:
	case s.Carried > 0:
		per, how = s.Carried, "as before the restart"
	case before.Steps >= least && !s.Down:
		per, how = before.CPUS/before.Steps, "as in the run before"
	}
	out := Estimate{PerStep: policy.CPUSeconds(per)}
	if s.Backs >= maxBacks {
		out.Why = "the step goes back again and again: it does not tell how far the task is"
		return out
	}
	total, from, name := e.total()
	switch {
	case from == Unknown:
		out.Why = "no total is known, or the task is beyond it"
		return out
	case per == 0:
		out.Why = "one report: a second is needed"
		return out
	}
	out.Total, out.Source = total, from
	out.CPUS = seconds(e.left(per, epochs, total, cpu))
	done := fmt.Sprintf("%.6g of %.6g steps (%s)", s.At.Step, total, name)
	if s.Down {
		done = fmt.Sprintf("%.6g steps left (%s)", -s.At.Step, name)
	}
	out.Why = fmt.Sprintf("%s, %.3g CPU-seconds each %s", done, per, how)
	return out
}

// left is the CPU time from now until a step, at a price of a step.
func (e *Estimator) left(per float64, epochs bool, total, cpu float64) float64 {
	s := &e.s
	at, next := s.At, 2*s.At.Step-s.Before // as far as the next reports may be
	atNext := per * (total - next)
	if !epochs {
		// A counter that went back without a step since says nothing of the time since.
		return max(per*(total-at.Step)-max(0, cpu-at.CPU), atNext)
	}
	began := s.Epochs[len(s.Epochs)-1]
	if end := min(total, (epochOf(at.Step, s.PerEpoch)+1)*s.PerEpoch); next <= end {
		// Steps cost less than what an epoch costs on average, with all that comes at its end.
		within := per
		if at.Step > began.Step {
			within = min(per, (at.CPU-began.CPU)/(at.Step-began.Step))
		}
		atNext = per*(total-end) + within*(end-next)
	}
	return max(per*(total-began.Step)-(cpu-began.CPU), atNext)
}

// Run returns what the task took as a whole, when it has ended after so many CPU-seconds.
// One that went on from a checkpoint is reckoned up.
func (s State) Run(cpu float64) Run {
	run := Run{CPUS: s.Used}
	if cpu > run.CPUS && cpu < most {
		run.CPUS = cpu
	}
	if !s.Reported || s.Down || s.Backs >= maxBacks {
		return run
	}
	run.Steps = s.At.Step
	if per, _ := s.measured(); per > 0 {
		// What came before the first report took at least the price of its steps.
		run.CPUS = max(run.CPUS, per*s.Began.Step+run.CPUS-s.Began.CPU)
	}
	return run
}
