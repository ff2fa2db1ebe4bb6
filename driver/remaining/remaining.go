// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package remaining

import (
	"fmt"
	"math"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/fields"
)

// Source names the basis of an estimate.
type Source string

const (
	Unknown   Source = ""
	Steps     Source = "steps"     // the trainer's number of steps
	Epochs    Source = "epochs"    // the trainer's number of epochs, without steps
	Meta      Source = "meta"      // declared by the job
	Assumed   Source = "assumed"   // an option of the command line or environment
	Earlier   Source = "earlier"   // an earlier run of the same job
	Objective Source = "objective" // the fitted curve reaches the objective
)

// Estimate is a task's remaining work.
type Estimate struct {
	// CPUS is the CPU time until the task ends; nil if unknown.
	CPUS *policy.CPUSeconds
	// QualityCPUS is the CPU time until the model is good enough: at the acceptable
	// target or, without one, at 75 % of the work. 0 after that or on a plateau; nil if
	// unknown.
	QualityCPUS *policy.CPUSeconds
	// Source is the basis of CPUS.
	Source Source
	// PerStep is the price of a step; 0 if unknown.
	PerStep policy.CPUSeconds
	// Total is the assumed number of steps, in the trainer's unit; 0 if unknown or if the trainer
	// counts down.
	Total float64
	// Why explains the estimate.
	Why string
	// Lost is the reason why a size that followed from step reports was withdrawn; "" if
	// none was.
	Lost string
}

// Declared is a task's size before it reports; 0 means unknown.
type Declared struct {
	Steps  float64 `json:"steps,omitempty"`  // meta
	Epochs float64 `json:"epochs,omitempty"` // meta
	// Assumed are from the command line or the environment.
	Assumed Assumption `json:"assumed,omitzero"`
	Earlier Run        `json:"earlier,omitzero"`
}

// Assumption holds the totals found in a command line or environment.
type Assumption struct {
	Steps      float64 `json:"steps,omitempty"`
	StepsFrom  string  `json:"steps_from,omitempty"` // the option's name
	Epochs     float64 `json:"epochs,omitempty"`
	EpochsFrom string  `json:"epochs_from,omitempty"`
}

// Run is the cost of a whole run of a job.
type Run struct {
	CPUS  float64 `json:"cpu_s"`
	Steps float64 `json:"steps,omitempty"` // in the trainer's unit; 0 if not reported
	// Overhead is of further cores (policy.Task.Overhead); nil if unknown.
	Overhead *float64 `json:"overhead,omitempty"`
}

// Point is a report, with the CPU-seconds used when it was read. 0 or NaN mean unknown.
type Point struct {
	CPU      float64
	Step     float64
	Total    float64 // total number of steps
	PerEpoch float64 // steps per epoch
	StepOnly bool    // a step report
	Bar      string  // of a step report: its name
}

// Curve is the state of the task's metric.
type Curve struct {
	Fit        growth.Fit
	Plateau    bool
	Acceptable *float64 // target; nil if none
	Objective  *float64 // target; nil if none
	Passed     bool     // the acceptable target has been reached
}

// Mark is a step and the CPU-seconds at its report.
type Mark struct {
	Step float64 `json:"s"`
	CPU  float64 `json:"c"`
}

// State lets a later process continue. Its numbers are finite.
type State struct {
	Reported bool    `json:"reported,omitempty"`
	Used     float64 `json:"used,omitempty"` // CPU-seconds at the last report
	// The last valid report. A step that counts down is negative.
	At  Mark    `json:"at,omitzero"`
	Gap float64 `json:"gap,omitempty"` // steps between the last two
	// Before is the last step of the previous CPU reading, because reports come in
	// bursts.
	Before float64 `json:"before,omitempty"`

	Total    float64 `json:"total,omitempty"`     // from the trainer
	Changes  float64 `json:"changes,omitempty"`   // recent changes of the total
	PerEpoch float64 `json:"per_epoch,omitempty"` // steps
	Other    float64 `json:"other,omitempty"`     // total of another bar
	OtherCPU float64 `json:"other_cpu,omitempty"` // CPU-seconds at its first report
	Bars     int     `json:"bars,omitempty"`      // adopted after ours was complete

	Raw   float64 `json:"raw,omitempty"`   // last step as printed
	Falls int     `json:"falls,omitempty"` // consecutive reports with a lower step; < 0: with a higher one
	Down  bool    `json:"down,omitempty"`  // the step counts down
	Peak  float64 `json:"peak,omitempty"`  // highest step before the restarts
	Backs int     `json:"backs,omitempty"` // consecutive restarts that did not exceed it

	Began   Mark    `json:"began,omitzero"` // first report of this run of steps
	Steps   []Mark  `json:"steps,omitempty"`
	Epochs  []Mark  `json:"epochs,omitempty"`  // the first report of each epoch
	Carried float64 `json:"carried,omitempty"` // CPU-seconds per step before a restart

	// Of step reports. If ByBar, the fields above are those of the followed bar.
	ByBar      bool    `json:"by_bar,omitempty"`
	Tracks     []Bar   `json:"tracks,omitempty"`
	Lead       int     `json:"lead,omitempty"`        // the followed one
	TrackedCPU float64 `json:"tracked_cpu,omitempty"` // CPU-seconds at the last one's report
	Sized      float64 `json:"sized,omitempty"`       // CPU-seconds in total when first known; 0 = unknown
	Lost       int     `json:"lost,omitempty"`        // times that it was wrong
	LostWhy    string  `json:"lost_why,omitempty"`
}

const (
	maxMarks   = 64   // kept of steps and of epochs
	maxValue   = 1e15 // greater steps and CPU-seconds are invalid
	least      = 1e-6 // so are smaller steps, and smaller distances
	falls      = 4    // consecutive lower steps that mean counting down
	maxBacks   = 3    // consecutive restarts without progress
	maxBars    = 3    // consecutive bars
	maxChanges = 3    // of a total, less what settled reports offset
	settled    = 0.1  // change offset by a report with the same total
	jitter     = 0.9  // a CPU reading lower by this factor is another process's
	rare       = 0.1  // part of an epoch between two reports that makes them rare
	slowStart  = 2    // a first epoch with this many times the newest price of a step was slow
	// qualityPart is the part of the work after which the model counts as good, without
	// a target or plateau: a fit of the first reports is too unreliable.
	qualityPart = 0.75
)

// Estimator estimates one task's remaining work.
type Estimator struct {
	declared Declared
	s        State
}

// Recall sets the cost of an earlier run.
func (e *Estimator) Recall(run Run) { e.declared.Earlier = run }

// Earlier returns the cost of an earlier run; the zero Run if none is known.
func (e *Estimator) Earlier() Run { return e.declared.Earlier }

// New returns an Estimator that continues from a state; the zero State is a new task.
func New(d Declared, s State) *Estimator {
	if len(s.Tracks) > maxTracked || s.Lead < 0 || s.Lead >= max(len(s.Tracks), 1) || s.ByBar && len(s.Tracks) == 0 {
		s = State{} // another version's
	}
	return &Estimator{declared: d, s: s.clone()}
}

func (e *Estimator) State() State { return e.s.clone() }

func (s State) clone() State {
	s.Steps, s.Epochs, s.Tracks = append([]Mark(nil), s.Steps...), append([]Mark(nil), s.Epochs...), append([]Bar(nil), s.Tracks...)
	return s
}

func number(v float64) float64 {
	if v >= least && v < maxValue {
		return v
	}
	return 0
}

// Add adds a report. It is ignored without a valid CPU reading.
func (e *Estimator) Add(p Point) {
	s := &e.s
	if !(p.CPU >= 0 && p.CPU < maxValue) {
		return
	}
	if p.CPU < s.Used {
		switch {
		case p.CPU >= jitter*s.Used:
			p.CPU = s.Used
		default:
			if s.ByBar {
				e.forget() // nothing tells the rounds of another process
			}
			e.restart()
			s.Tracks, s.Lead = nil, 0
		}
	}
	s.Used = p.CPU
	if p.StepOnly && !e.bar(&p) {
		return
	}
	if !(p.Step >= 0 && p.Step < maxValue) {
		return
	}
	if s.ByBar && !p.StepOnly {
		if _, from, _ := e.barTotal(p.CPU); number(p.Total) == 0 && from != Unknown {
			return // the bar tells the size
		}
		e.forget() // the metric's own step is surer
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
		s.Total = 0 // the trainer no longer prints it: it was a bar's
	}
	if step > s.Peak {
		s.Backs = 0
	}
	if step == s.At.Step && len(s.Steps) > 0 {
		return // the same step again
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

func (e *Estimator) back() {
	s := &e.s
	if s.At.Step > s.Peak {
		s.Backs = 0
	}
	s.Peak = max(s.Peak, s.At.Step)
	s.Backs++
	e.restart()
}

// restart drops the reported steps and keeps the price of a step.
func (e *Estimator) restart() {
	s := &e.s
	if per, _ := s.measured(); per > 0 {
		s.Carried = per
	}
	s.Steps, s.Epochs, s.Gap = s.Steps[:0], s.Epochs[:0], 0
}

// epoch records the start of an epoch: its first report or, if reports are rare, the
// interpolated end of the previous epoch.
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

func epochOf(step, per float64) float64 { return math.Ceil(step/per) - 1 }

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

// price returns the CPU-seconds per step over the newer half of the marks; 0 with fewer than two.
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

// Pace is how much CPU a task uses in a second and for a step. The zero Pace knows nothing.
type Pace struct {
	marks         []Mark // whose steps are seconds
	last          float64
	single, multi spent // on one core, and on more
}

// spent are sums over the time between readings, the recent ones first.
type spent struct{ readings, cpu, steps, seconds float64 }

func (s *spent) add(cpu, steps, seconds float64) {
	const keep = 0.97
	s.readings, s.cpu, s.steps, s.seconds = s.readings*keep+1, s.cpu*keep+cpu, s.steps*keep+steps, s.seconds*keep+seconds
}

// Uses of CPU, in cores, that count as one and as more.
const (
	single = 1.15
	multi  = 1.25
)

// Add adds a reading: CPU-seconds used, the time in seconds, and the last step.
func (p *Pace) Add(at, cpu, step float64) {
	if !fields.Finite(cpu) {
		return
	}
	n := len(p.marks)
	if n > 0 && (cpu < p.marks[n-1].CPU || at < p.marks[n-1].Step) {
		p.marks, n = p.marks[:0], 0 // another process's, or the clock was set
	}
	if n > 0 {
		seconds, used, steps := at-p.marks[n-1].Step, cpu-p.marks[n-1].CPU, step-p.last
		switch cores := used / seconds; {
		case !(steps > 0 && seconds > 0 && used > 0):
		case cores <= single:
			p.single.add(used, steps, seconds)
		case cores >= multi:
			p.multi.add(used, steps, seconds)
		}
	}
	p.last = step
	p.marks = mark(p.marks, Mark{at, cpu})
}

// Overhead returns how much more CPU time a step takes per further core, as a part of that on one
// (policy.Task.Overhead); nil until it has been seen on one core and on more.
func (p *Pace) Overhead() *float64 {
	const readings = 4.5 // of five, the older ones count less
	if p.single.readings < readings || p.multi.readings < readings {
		return nil
	}
	more := p.multi.cpu/p.multi.steps/(p.single.cpu/p.single.steps) - 1
	o := max(more/(p.multi.cpu/p.multi.seconds-1), 0)
	return &o
}

// Cores returns the use over the newer half of the time, in cores; 0 if unknown.
func (p *Pace) Cores() policy.Cores { return policy.Cores(price(p.marks)) }

// measured returns the price of a step since the last restart, and whether it spans whole epochs.
func (s *State) measured() (per float64, epochs bool) {
	steps := price(s.Steps)
	if per = price(s.Epochs); per == 0 || len(s.Epochs) == 2 && steps > 0 && per > slowStart*steps {
		return steps, false
	}
	return per, true
}

// Estimate returns the remaining work of the task that has used cpu CPU-seconds.
func (e *Estimator) Estimate(cpu float64, c Curve) Estimate {
	if !(cpu >= e.s.Used && cpu < maxValue) {
		cpu = e.s.Used
	}
	out := e.toEnd(cpu)
	e.trust(cpu, &out)
	out.Lost = e.s.LostWhy
	if c.Objective != nil && !c.Plateau {
		if way, ok := c.Fit.To(*c.Objective, cpu); ok && (out.CPUS == nil || way < float64(*out.CPUS)) {
			out.CPUS, out.Source = seconds(way), Objective
			out.Why = fmt.Sprintf("the fitted curve reaches the objective %.6g in %.4g CPU-seconds", *c.Objective, way)
		}
	}
	out.QualityCPUS = quality(cpu, c, out.CPUS)
	return out
}

// quality returns the work to the quality point; nil if unknown.
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

// total returns the step at which the task ends, and its source, after cpu CPU-seconds.
func (e *Estimator) total(cpu float64) (total float64, from Source, name string) {
	s := &e.s
	if s.ByBar {
		return e.barTotal(cpu)
	}
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
		by, assumed = Epochs, 0 // only epochs are reported
	}
	return e.end(trainer, by, assumed, d.Earlier.Steps)
}

// end returns the first total that exists and that the task has not passed, and its
// source. The trainer's is from by; assumed and earlier are 0 if in another unit.
func (e *Estimator) end(trainer float64, by Source, assumed, earlier float64) (total float64, from Source, name string) {
	s, d := &e.s, e.declared
	shorter := earlier // nothing else contradicts a total that is too large, the costly error
	if earlier >= trainer {
		shorter = 0
	}
	for _, c := range []struct {
		total float64
		from  Source
		name  string
	}{
		{d.Steps, Meta, "as the job declares"},
		{d.Epochs * s.PerEpoch, Meta, "as the job declares"},
		{shorter, Earlier, "as in the previous run"},
		{trainer, by, "as the trainer reports"},
		{assumed, Assumed, "assumed from " + d.Assumed.StepsFrom},
		{d.Assumed.Epochs * s.PerEpoch, Assumed, "assumed from " + d.Assumed.EpochsFrom},
		{earlier, Earlier, "as in the previous run"},
	} {
		if c.total > 0 && s.At.Step <= c.total+max(s.Gap, 1) {
			return c.total, c.from, c.name
		}
	}
	return 0, Unknown, "no total is known, or the task is beyond it"
}

func (e *Estimator) toEnd(cpu float64) Estimate {
	s := &e.s
	before := e.declared.Earlier
	byCPU := Estimate{Why: "no step has been reported"}
	if before.CPUS > cpu {
		byCPU = Estimate{CPUS: seconds(before.CPUS - cpu), Source: Earlier, Total: before.Steps,
			Why: fmt.Sprintf("the previous run took %.4g CPU-seconds", before.CPUS)}
	}
	if !s.Reported {
		return byCPU
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
		per, how = before.CPUS/before.Steps, "as in the previous run"
	}
	out := Estimate{PerStep: policy.CPUSeconds(per)}
	if s.Backs >= maxBacks {
		out.Why = "the step keeps going backwards, so progress is unknown"
		return out
	}
	total, from, name := e.total(cpu)
	switch {
	case from == Unknown && s.ByBar && byCPU.CPUS != nil:
		return byCPU
	case from == Unknown:
		out.Why = name
		return out
	case per == 0:
		out.Why = "one report: a second is needed"
		return out
	}
	out.Total, out.Source = total, from
	out.CPUS = seconds(e.left(per, epochs, total+e.ahead(), cpu))
	done := fmt.Sprintf("%.6g of %.6g steps (%s)", s.At.Step, total, name)
	if s.Down {
		done = fmt.Sprintf("%.6g steps left (%s)", -s.At.Step, name)
	}
	out.Why = fmt.Sprintf("%s, %.3g CPU-seconds each %s", done, per, how)
	return out
}

// left returns the CPU time from now until step total, given the price of a step.
func (e *Estimator) left(per float64, epochs bool, total, cpu float64) float64 {
	s := &e.s
	at, next := s.At, 2*s.At.Step-s.Before // estimated step of the next report
	atNext := per * (total - next)
	if !epochs {
		// If the counter has restarted without a step, the time since is unknown.
		return max(per*(total-at.Step)-max(0, cpu-at.CPU), atNext)
	}
	began := s.Epochs[len(s.Epochs)-1]
	if end := min(total, (epochOf(at.Step, s.PerEpoch)+1)*s.PerEpoch); next <= end {
		// Steps alone cost less than an epoch's average, which includes the work at its end.
		within := per
		if at.Step > began.Step {
			within = min(per, (at.CPU-began.CPU)/(at.Step-began.Step))
		}
		atNext = per*(total-end) + within*(end-next)
	}
	return max(per*(total-began.Step)-(cpu-began.CPU), atNext)
}

// Run returns the cost of the whole task, which ended after cpu CPU-seconds. If it
// resumed from a checkpoint, the cost is extrapolated.
func (s State) Run(cpu float64) Run {
	run := Run{CPUS: s.Used}
	if cpu > run.CPUS && cpu < maxValue {
		run.CPUS = cpu
	}
	if !s.Reported || s.Down || s.Backs >= maxBacks || s.ByBar && s.Tracks[s.Lead].cover() < mostCPU*run.CPUS {
		return run
	}
	run.Steps = s.At.Step
	if per, _ := s.measured(); per > 0 {
		// Steps before the first report are assumed to have cost at least the price of
		// a step.
		run.CPUS = max(run.CPUS, per*s.Began.Step+run.CPUS-s.Began.CPU)
	}
	return run
}
