// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package remaining

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode"
)

// Bar is one counter of step reports, such as a progress bar. Name and Total tell it
// from others.
type Bar struct {
	Name  string  `json:"name,omitempty"` // without digits
	Total float64 `json:"total,omitempty"`
	// Epoch is the number in a name that numbers an epoch: "3" in "Epoch 3".
	Epoch string `json:"epoch,omitempty"`
	// Began is its first report, or the first that counts as evidence for its total.
	Began Mark    `json:"began"`
	First Mark    `json:"first"`
	At    Mark    `json:"at"`            // its last report
	Gap   float64 `json:"gap,omitempty"` // steps between the last two
	// Rounds counts how often it has ended and begun anew.
	Rounds float64 `json:"rounds,omitempty"`
	Used   float64 `json:"used,omitempty"` // CPU-seconds from the report before, of any bar, to its own
}

const (
	maxTracked = 8  // bars; an epoch has one for training, one for validation, and one may count epochs
	maxBarName = 64 // bytes
	// mostCPU is the part of the job's CPU time that a bar must cover to be the
	// training: with less, most of the job is something else.
	mostCPU = 0.5
	// leastSteps is the part of a bar's steps that must be seen before its total counts:
	// bars of preparations and first steps come and go, and without a size a tenth of
	// the job runs as under plain Nomad.
	leastSteps = 0.1
	// silence is the CPU time without a report, as a part of that covered by the reports
	// before, after which a bar counts as given up. One that counts epochs may wait for
	// its next report as long as the first epoch took, and an epoch's time varies.
	silence = 1.5
	// overrun is the CPU time after a complete bar, as a part of the bar's, in which the
	// job may save and evaluate its model; later, it goes on.
	overrun = 0.1
	// clearly is how many times as much CPU another bar must cover to be followed
	// instead, lest two similar ones alternate.
	clearly = 1.5
	// doubled is the growth of an estimated size that disproves it: steps whose cost
	// varies by less are common.
	doubled = 2
	// rounded is the part by which an earlier run's steps may differ from those of the
	// same bar: they are passed on with six digits.
	rounded = 1e-5
	// nearly is the part by which a total that follows from per cents may change.
	nearly = 0.05
	// maxLost bounds how often a size is trusted by a bar alone.
	maxLost = 3
)

// complete reports whether the next report would be beyond the total.
func (b *Bar) complete() bool { return b.Total > 0 && b.At.Step+b.Gap >= b.Total }

// ended reports whether all steps are done.
func (b *Bar) ended() bool { return b.Total > 0 && b.At.Step >= b.Total }

// position is the step over all rounds.
func (b *Bar) position() Mark { return Mark{b.Rounds*b.Total + b.At.Step, b.At.CPU} }

// cover is the CPU time from the bar's first report to its last or, if it restarts (and
// other bars come between), of its own reports.
func (b *Bar) cover() float64 {
	if b.Rounds == 0 {
		return b.At.CPU - b.Began.CPU
	}
	return b.Used
}

// lasts reports whether the bar covers most of the job's CPU time so far.
func (b *Bar) lasts() bool { return b.cover() > 0 && b.cover() >= mostCPU*b.At.CPU }

// open reports whether a bar has not ended after used CPU-seconds.
func (b *Bar) open(used float64) bool {
	return b.Rounds == 0 && b.Total > 0 && !b.ended() &&
		(b.At.Step == 0 || used-b.At.CPU <= silence*b.cover())
}

// bar adds a step report. If it is the followed bar's, it changes the report to one of
// the step over all rounds.
func (e *Estimator) bar(p *Point) (followed bool) {
	s := &e.s
	total := number(p.Total)
	if !(p.Step >= 0 && p.Step < maxValue) || total > 0 && total < 2 {
		return false // one step tells nothing
	}
	name, epoch := barName(p.Bar)
	i := s.track(name, epoch, total, Mark{p.Step, p.CPU})
	lead := s.lead()
	if lead < 0 {
		return false
	}
	if s.Reported && !s.ByBar && p.CPU-s.At.CPU <= s.At.CPU && !e.sizes(lead) {
		return false // the metric's reports have steps
	}
	if !s.ByBar || lead != s.Lead {
		e.follow(lead)
	}
	if i != s.Lead {
		return false
	}
	b := &s.Tracks[i]
	p.Step = b.position().Step
	if b.Rounds > 0 {
		p.PerEpoch = b.Total
	}
	return true
}

// sizes reports whether a bar tells the size and the metric's reports do not.
func (e *Estimator) sizes(bar int) bool {
	if _, from, _ := e.total(e.s.Used); from != Unknown {
		return false
	}
	other := Estimator{e.declared, e.s} // shares what follow and barTotal do not change
	other.follow(bar)
	_, from, _ := other.barTotal(e.s.Used)
	return from != Unknown
}

// barName returns a name without its digits, and these if they number an epoch.
func barName(text string) (name, epoch string) {
	text = strings.ToValidUTF8(text[:min(len(text), maxBarName)], "")
	var digits strings.Builder
	name = strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			digits.WriteRune(r)
			return -1
		}
		return r
	}, text)
	if strings.Contains(strings.ToLower(name), "epoch") {
		epoch = digits.String()
	}
	return name, epoch
}

// track notes a report and returns its bar's index.
func (s *State) track(name, epoch string, total float64, at Mark) int {
	since := at.CPU - s.TrackedCPU
	s.TrackedCPU = at.CPU
	i := slices.IndexFunc(s.Tracks, func(b Bar) bool { return b.Name == name && b.Total == total })
	if i < 0 && total > 0 { // it may go on with other words, such as "sample" after "warmup"
		i = slices.IndexFunc(s.Tracks, func(b Bar) bool {
			same := b.Total == total || b.Name == name && (b.Total == 0 || math.Abs(b.Total-total) <= nearly*total)
			return same && b.At.Step > 0 && b.At.Step < at.Step
		})
	}
	if i >= 0 {
		b := &s.Tracks[i]
		b.Name, b.Total = name, total
		if at.Step > b.At.Step/2 {
			b.Used += since // what came before a round may be the work of something silent
		}
		numbered := epoch != b.Epoch
		b.Epoch = epoch
		switch {
		case numbered && (at.Step <= b.At.Step || b.complete()): // else the epoch's header was read late
			b.Rounds++
		case at.Step >= b.At.Step:
			if gap := at.Step - b.At.Step; gap > 0 {
				b.Gap = gap
			}
		case at.Step > b.At.Step/2:
			return i // another process of the job draws it too, or goes back to a checkpoint
		case b.complete():
			b.Rounds++
		default: // given up, or restarted
			b.Began = Mark{b.Rounds*b.Total + at.Step, at.CPU}
		}
		b.At = at
		return i
	}
	b := Bar{Name: name, Epoch: epoch, Total: total, First: at, Began: at, At: at}
	if len(s.Tracks) < maxTracked {
		s.Tracks = append(s.Tracks, b)
		return len(s.Tracks) - 1
	}
	drop := 0
	for i := range s.Tracks {
		if drop == s.Lead || i != s.Lead && s.Tracks[i].cover() < s.Tracks[drop].cover() {
			drop = i
		}
	}
	s.Tracks[drop] = b
	return drop
}

// lead returns the bar that is the training: one that lasts without beginning anew,
// since it counts the job's steps or epochs, else the one that covers the most CPU time;
// -1 if none has moved: "step 10/90" may be a setting.
func (s *State) lead() int {
	best, whole, most := -1, false, 0.0
	for i := range s.Tracks {
		b := &s.Tracks[i]
		w, cover := b.open(s.Used) && b.lasts(), b.cover()
		if i == s.Lead {
			cover *= clearly
		}
		switch {
		case b.Gap == 0 && b.Rounds == 0:
		case best < 0, w && (!whole || b.before(&s.Tracks[best])), !w && !whole && cover > most:
			best, whole, most = i, w, cover
		}
	}
	return best
}

// before reports whether a bar began before another or, in doubt, has fewer steps: it may
// count epochs.
func (b *Bar) before(o *Bar) bool {
	return cmp.Or(cmp.Compare(b.Began.CPU, o.Began.CPU), cmp.Compare(b.Total, o.Total)) < 0
}

// forget drops all reports and keeps the bars and what is known about trust.
func (e *Estimator) forget() {
	s := &e.s
	*s = State{Used: s.Used, Tracks: s.Tracks, Lead: s.Lead, TrackedCPU: s.TrackedCPU, Lost: s.Lost, LostWhy: s.LostWhy}
}

// follow continues with another bar.
func (e *Estimator) follow(i int) {
	s := &e.s
	sized, b := s.Sized, s.Tracks[i]
	e.forget()
	s.Sized = sized
	s.ByBar, s.Lead, s.Reported, s.Total = true, i, true, b.Total
	s.Began, s.At = b.Began, b.position()
	s.Raw, s.Before = s.At.Step, b.Began.Step
	s.Steps = mark([]Mark{s.Began}, s.At)
}

// Position returns the step that follows from step reports, over all epochs, and its
// total, NaN if unknown, of the task that has used cpu CPU-seconds; ok is false if there
// are none or the metric's reports have steps.
func (e *Estimator) Position(cpu float64) (step, total float64, ok bool) {
	s := &e.s
	if !s.ByBar || s.Down {
		return math.NaN(), math.NaN(), false
	}
	b := &s.Tracks[s.Lead]
	total, _, _ = e.total(max(cpu, s.Used))
	if total == 0 && b.Rounds == 0 {
		total = b.Total
	}
	if total == 0 {
		total = math.NaN()
	}
	return s.At.Step, total, true
}

// At returns the last step, in the trainer's unit, or by a bar in all its rounds.
func (e *Estimator) At() float64 { return e.s.At.Step }

// barTotal returns the step at which the task ends and its source, or why it is unknown,
// after cpu CPU-seconds.
func (e *Estimator) barTotal(cpu float64) (total float64, from Source, name string) {
	s, d := &e.s, e.declared
	b := &s.Tracks[s.Lead]
	switch {
	case s.Down:
		return 0, Unknown, "the number of steps falls"
	case !b.lasts():
		return 0, Unknown, "the steps cover too little of the CPU time so far"
	case b.Rounds > 0 || !b.ended():
	case e.ahead() == 0 && cpu-b.At.CPU > overrun*b.cover(), cpu-b.At.CPU > silence*b.cover():
		return 0, Unknown, "the steps are complete, and the task goes on"
	case s.Sized == 0:
		return 0, Unknown, "the steps are complete"
	}
	whole := 0.0
	if b.Rounds == 0 {
		whole = b.Total
	}
	epochs := cmp.Or(d.Epochs, d.Assumed.Epochs)
	agreed, why := false, ""
	for _, v := range []float64{d.Steps, d.Epochs, d.Assumed.Steps, d.Assumed.Epochs, d.Earlier.Steps} {
		agreed = agreed || math.Abs(v-whole) <= rounded*whole
	}
	switch {
	case whole == 0:
		why = "the steps begin anew with each epoch, and the number of epochs is unknown"
		if b.Rounds == 0 {
			why = "no total is known"
		}
	case agreed:
	case epochs > 1 && whole > s.PerEpoch && s.PerEpoch > 0: // not one epoch's
	case b.Epoch != "", epochs > 1, d.Assumed.Steps > 0, d.Earlier.Steps > whole:
		whole, why = 0, "the steps may be those of one epoch"
	}
	switch {
	case whole == 0 || agreed:
	case b.At.Step-b.Began.Step < leastSteps*whole:
		whole, why = 0, "too few of the steps have been seen to trust their total"
	case s.Lost >= maxLost:
		whole, why = 0, "totals have been wrong too often"
	case s.older(b):
		whole, why = 0, "another count that began before has not ended"
	}
	assumed, earlier := d.Assumed.Steps, d.Earlier.Steps
	if b.Rounds == 0 && b.Total > 0 {
		assumed = 0 // perhaps in another unit
		if whole == 0 && earlier < b.Total {
			earlier = 0
		}
	}
	total, from, name = e.end(whole, Steps, assumed, earlier)
	if from == Unknown {
		name = cmp.Or(why, "the task is beyond the total of its steps")
	}
	return total, from, name
}

// ahead is 1 if the step of a report is the one that begins then, as in the header of an
// epoch, else 0: the first report of a step that is done comes after the step's time.
func (e *Estimator) ahead() float64 {
	per, _ := e.s.measured()
	if e.s.ByBar && e.s.Tracks[e.s.Lead].First.Step == 1 && e.s.Tracks[e.s.Lead].First.CPU < per/2 {
		return 1
	}
	return 0
}

// older reports whether a bar that began before b is open.
func (s *State) older(b *Bar) bool {
	return slices.ContainsFunc(s.Tracks, func(o Bar) bool { return o.before(b) && o.open(s.Used) })
}

// trust withdraws an estimate from step reports that turns out wrong.
func (e *Estimator) trust(cpu float64, out *Estimate) {
	s := &e.s
	sized := s.ByBar && out.CPUS != nil && out.PerStep > 0
	switch {
	case !sized && s.Sized > 0:
		s.LostWhy = out.Why
	case !sized:
		return
	case s.Sized == 0:
		s.Sized = cpu + float64(*out.CPUS)
		return
	case cpu+float64(*out.CPUS) > doubled*s.Sized:
		s.LostWhy = "the estimate has doubled"
		out.CPUS, out.Source, out.Total, out.Why = nil, Unknown, 0, s.LostWhy
		b := &s.Tracks[s.Lead]
		b.Began = b.position() // its evidence counts from here
	default:
		return
	}
	s.Sized = 0
	s.Lost++
}
