// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package style prints a training run as well-known frameworks do, byte for byte as far as it can be done,
// carriage returns, backspaces and colours included. One thing differs: the value under the name of the loss is
// the loss of the held-out part in every style, so that a run tells the same story whatever its style.
package style

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Metric is what a run reports.
type Metric string

const (
	Loss     Metric = "loss"     // lower is better
	Accuracy Metric = "accuracy" // in [0, 1], higher is better
	Both     Metric = "both"
)

func (m Metric) loss() bool     { return m != Accuracy }
func (m Metric) accuracy() bool { return m != Loss }

// Run is what is known before the first step.
type Run struct {
	Model    string
	Params   int // parameters of the model
	Steps    int // total; 0 = no end
	PerEpoch int // steps of an epoch
	Batch    int // rows of a step
	HeldOut  int // rows of the held-out part
	First    int // steps already done: a resumed run
	Metric   Metric
	Epochs   bool // only the ends of epochs are reported
}

// epochs is the number of epochs begun in the whole run; 0 = no end.
func (r Run) epochs() int { return (r.Steps + r.PerEpoch - 1) / r.PerEpoch }

// Report is one evaluation, made after Step.
type Report struct {
	Step         int // steps done, from 1
	Loss         float64
	Accuracy     float64
	TrainLoss    float64
	GradientNorm float64
	Rate         float64       // learning rate of the next step
	Elapsed      time.Duration // since this process began to train
	Evaluation   time.Duration // what this evaluation took
}

// epoch is the epoch that the step just done belongs to, from 0, and its place in it, from 1. The last epoch of a
// run may be cut short; its bars still count to the whole epoch, as the frameworks' do.
func (r Run) epoch(step int) (epoch, at int) {
	epoch = (step - 1) / r.PerEpoch
	return epoch, step - epoch*r.PerEpoch
}

// fraction is the number of epochs done, with its fraction.
func (r Run) fraction(step int) float64 { return float64(step) / float64(r.PerEpoch) }

// EpochEnd says whether step is the last one of an epoch, or of the run.
func (r Run) EpochEnd(step int) bool {
	return step%r.PerEpoch == 0 || step == r.Steps
}

// Printer prints a run. The methods are called in the order Begin, any number of Report, End.
type Printer interface {
	Begin()
	Report(Report)
	// End is called after the last step, not when a run is stopped.
	End(last Report)
	// Message prints a line of text between reports.
	Message(text string)
	// EveryEpoch says whether the style needs a report at each epoch's end as well.
	EveryEpoch() bool
}

var printers = map[string]func(sink) Printer{
	"huggingface":     func(s sink) Printer { return &huggingface{sink: s, quoted: true} },
	"huggingface-old": func(s sink) Printer { return &huggingface{sink: s} },
	"keras":           func(s sink) Printer { return &keras{sink: s} },
	"lightning":       func(s sink) Printer { return &lightning{sink: s} },
	"plain":           func(s sink) Printer { return &plain{sink: s} },
	"json":            func(s sink) Printer { return &jsonLines{sink: s} },
	"silent":          func(sink) Printer { return silent{} },
}

var short = map[string]string{"hf": "huggingface", "hf-old": "huggingface-old", "none": "silent"}

// Names lists the styles, separated by commas.
func Names() string {
	return strings.Join(slices.Sorted(maps.Keys(printers)), ", ")
}

// Valid returns an error that lists what is allowed when there is no such style.
func Valid(name string) error {
	if _, ok := printers[long(name)]; !ok {
		return fmt.Errorf("must be one of %s (hf and hf-old for short, none for silent)", Names())
	}
	return nil
}

func long(name string) string {
	if l, ok := short[name]; ok {
		return l
	}
	return name
}

// New returns the printer of a valid style. Each line or redrawn bar is one Write. The Hugging Face styles draw
// their bar on stderr, as tqdm does; all else goes to stdout.
func New(name string, run Run, stdout, stderr io.Writer) Printer {
	return printers[long(name)](sink{run: run, out: stdout, err: stderr})
}

type sink struct {
	run      Run
	out, err io.Writer
}

// print leaves write errors alone: a trainer whose output nobody takes trains on.
func (s sink) print(text string) { _, _ = io.WriteString(s.out, text) }

// Message is how most styles print a remark: a line on stderr.
func (s sink) Message(text string) { _, _ = io.WriteString(s.err, text+"\n") }

type silent struct{}

func (silent) Begin()           {}
func (silent) Report(Report)    {}
func (silent) End(Report)       {}
func (silent) Message(string)   {}
func (silent) EveryEpoch() bool { return false }

// perSecond is n per second of d, and 0 for no time.
func perSecond(n int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// python writes a number as Python's repr does.
func python(v float64) string {
	switch {
	case math.IsNaN(v):
		return "nan"
	case math.IsInf(v, 1):
		return "inf"
	case math.IsInf(v, -1):
		return "-inf"
	}
	if a := math.Abs(v); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(v, 'e', -1, 64)
	}
	text := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// decimals rounds v to n places after the point.
func decimals(v float64, n int) float64 {
	scale := math.Pow(10, float64(n))
	if math.Abs(v) > 1e12 { // nothing to round, and no overflow
		return v
	}
	return math.Round(v*scale) / scale
}

// printf writes what C and Python write for a format; Go spells the special numbers otherwise.
func printf(format string, v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return python(v)
	}
	return fmt.Sprintf(format, v)
}
