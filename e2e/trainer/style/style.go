// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package style prints a training run like well-known frameworks, as far as possible byte for byte.
// Only the value named loss is always the held-out part's, so runs are comparable across styles.
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

type Metric string

const (
	Loss     Metric = "loss"     // lower is better
	Accuracy Metric = "accuracy" // in [0, 1], higher is better
	Both     Metric = "both"
)

func (m Metric) loss() bool     { return m != Accuracy }
func (m Metric) accuracy() bool { return m != Loss }

// Run holds the properties known before the first step.
type Run struct {
	Model    string
	Params   int // of the model
	Steps    int // total; 0 for no end
	PerEpoch int // steps per epoch
	Batch    int // rows per step
	HeldOut  int // rows of the held-out part
	First    int // steps done before resuming
	Metric   Metric
	Epochs   bool // report ends of epochs only
}

// epochs started in the whole run; 0 for no end
func (r Run) epochs() int { return (r.Steps + r.PerEpoch - 1) / r.PerEpoch }

// Report is an evaluation after Step.
type Report struct {
	Step         int // done, from 1
	Loss         float64
	Accuracy     float64
	TrainLoss    float64
	GradientNorm float64
	Rate         float64       // next step's learning rate
	Elapsed      time.Duration // since this process started training
	Evaluation   time.Duration // this evaluation's duration
}

// epoch returns the last step's epoch, from 0, and its position there, from 1. A shorter last epoch
// keeps the full total, as in the frameworks.
func (r Run) epoch(step int) (epoch, at int) {
	epoch = (step - 1) / r.PerEpoch
	return epoch, step - epoch*r.PerEpoch
}

// fraction returns the number of epochs done.
func (r Run) fraction(step int) float64 { return float64(step) / float64(r.PerEpoch) }

// EpochEnd reports whether step ends an epoch or the run.
func (r Run) EpochEnd(step int) bool {
	return step%r.PerEpoch == 0 || step == r.Steps
}

// Printer prints a run by calls of Begin, Report and End.
type Printer interface {
	Begin()
	Report(Report)
	// End follows the last step, not a stop.
	End(last Report)
	// Message prints a line between reports.
	Message(text string)
	// EveryEpoch requests additional reports at the ends of epochs.
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

func Names() string {
	return strings.Join(slices.Sorted(maps.Keys(printers)), ", ")
}

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

// New returns a valid style's printer. Lines and bars are single writes. Hugging Face's bar
// goes to stderr, as with tqdm, everything else to stdout.
func New(name string, run Run, stdout, stderr io.Writer) Printer {
	return printers[long(name)](sink{run: run, out: stdout, err: stderr})
}

type sink struct {
	run      Run
	out, err io.Writer
}

// print ignores errors: training continues without a reader.
func (s sink) print(text string) { _, _ = io.WriteString(s.out, text) }

// Message prints to stderr in most styles.
func (s sink) Message(text string) { _, _ = io.WriteString(s.err, text+"\n") }

type silent struct{}

func (silent) Begin()           {}
func (silent) Report(Report)    {}
func (silent) End(Report)       {}
func (silent) Message(string)   {}
func (silent) EveryEpoch() bool { return false }

// perSecond returns steps per second; 0 without elapsed time.
func perSecond(n int, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}

// python formats like Python's repr.
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

// decimals rounds v to n places.
func decimals(v float64, n int) float64 {
	scale := math.Pow(10, float64(n))
	if math.Abs(v) > 1e12 { // nothing to round, and no overflow
		return v
	}
	return math.Round(v*scale) / scale
}

// printf formats special numbers like C and Python.
func printf(format string, v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return python(v)
	}
	return fmt.Sprintf(format, v)
}
