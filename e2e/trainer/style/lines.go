// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package style

import (
	"fmt"
	"strconv"
	"strings"
)

// huggingface prints like transformers' Trainer: dictionaries on stdout through tqdm.write, and
// a bar on stderr. Since version 5 numbers are strings of four significant digits, before they
// were rounded to four decimals.
type huggingface struct {
	sink
	quoted  bool
	drawn   int // width of the bar on stderr
	last    Report
	lossSum float64 // for the last line's mean training loss
	reports int
}

func (h *huggingface) EveryEpoch() bool { return false }

func (h *huggingface) Begin() {
	h.last.Step = h.run.First
	h.draw(h.last)
}

func (h *huggingface) Message(text string) {
	h.wipe()
	h.sink.Message(text)
	h.draw(h.last)
}

// wipe clears the bar, as tqdm.write does.
func (h *huggingface) wipe() { _, _ = fmt.Fprint(h.err, "\r", strings.Repeat(" ", h.drawn), "\r") }

func (h *huggingface) draw(r Report) {
	h.last = r
	text := bar("", r.Step, h.run.Steps, h.run.First, r.Elapsed, "")
	h.drawn = len([]rune(text))
	_, _ = fmt.Fprint(h.err, "\r", text)
}

func (h *huggingface) Report(r Report) {
	h.lossSum += r.TrainLoss
	h.reports++
	h.wipe()
	epoch := decimals(h.run.fraction(r.Step), 2)
	var d dict
	if h.run.Epochs || h.run.Metric == Accuracy {
		if h.run.Metric.loss() {
			d.add("eval_loss", h.number(r.Loss))
		}
		if h.run.Metric.accuracy() {
			d.add("eval_accuracy", h.number(r.Accuracy))
		}
		d.add("eval_runtime", h.number(r.Evaluation.Seconds()))
		d.add("eval_samples_per_second", h.number(perSecond(h.run.HeldOut, r.Evaluation)))
		d.add("eval_steps_per_second", h.number(perSecond(1, r.Evaluation)))
	} else {
		d.add("loss", h.number(r.Loss))
		d.add("grad_norm", h.exact(r.GradientNorm))
		d.add("learning_rate", h.exact(r.Rate))
		if h.run.Metric.accuracy() {
			d.add("eval_accuracy", h.number(r.Accuracy))
		}
	}
	d.add("epoch", h.number(epoch))
	h.print(d.text())
	h.draw(r)
}

func (h *huggingface) End(r Report) {
	h.wipe()
	steps := r.Step - h.run.First
	var d dict
	d.add("train_runtime", h.number(r.Elapsed.Seconds()))
	d.add("train_samples_per_second", h.number(perSecond(steps*h.run.Batch, r.Elapsed)))
	d.add("train_steps_per_second", h.number(perSecond(steps, r.Elapsed)))
	d.add("train_loss", h.number(h.lossSum/float64(h.reports)))
	d.add("epoch", h.number(decimals(h.run.fraction(r.Step), 2)))
	h.print(d.text())
	h.draw(r)
	_, _ = fmt.Fprintln(h.err)
}

func (h *huggingface) number(v float64) string {
	if h.quoted {
		return "'" + printf("%.4g", v) + "'"
	}
	return python(decimals(v, 4))
}

// exact formats numbers that older versions did not round.
func (h *huggingface) exact(v float64) string {
	if h.quoted {
		return h.number(v)
	}
	return python(v)
}

type dict []string

func (d *dict) add(key, value string) { *d = append(*d, "'"+key+"': "+value) }
func (d *dict) text() string          { return "{" + strings.Join(*d, ", ") + "}\n" }

// plain prints key=value lines.
type plain struct{ sink }

func (p *plain) EveryEpoch() bool { return false }
func (p *plain) Begin()           {}
func (p *plain) End(Report)       {}

func (p *plain) Report(r Report) {
	text := fmt.Sprintf("step=%d", r.Step)
	if p.run.Steps > 0 {
		text += fmt.Sprintf(" total_steps=%d", p.run.Steps)
	}
	text += " epoch=" + strconv.FormatFloat(decimals(p.run.fraction(r.Step), 2), 'f', 2, 64)
	if p.run.Metric.loss() {
		text += " loss=" + printf("%.6g", r.Loss)
	}
	if p.run.Metric.accuracy() {
		text += " accuracy=" + printf("%.4f", r.Accuracy)
	}
	p.print(text + " lr=" + printf("%.4g", r.Rate) + "\n")
}

// jsonLines prints objects like Python's json module, with NaN.
type jsonLines struct{ sink }

func (j *jsonLines) EveryEpoch() bool { return false }
func (j *jsonLines) Begin()           {}
func (j *jsonLines) End(Report)       {}

func (j *jsonLines) Report(r Report) {
	text := fmt.Sprintf(`{"step": %d`, r.Step)
	if j.run.Steps > 0 {
		text += fmt.Sprintf(`, "total_steps": %d`, j.run.Steps)
	}
	text += `, "epoch": ` + python(decimals(j.run.fraction(r.Step), 4))
	if j.run.Metric.loss() {
		text += `, "loss": ` + jsonNumber(decimals(r.Loss, 6))
	}
	if j.run.Metric.accuracy() {
		text += `, "accuracy": ` + jsonNumber(decimals(r.Accuracy, 6))
	}
	text += `, "learning_rate": ` + jsonNumber(r.Rate) + `, "elapsed_s": ` + python(decimals(r.Elapsed.Seconds(), 3))
	j.print(text + "}\n")
}

func jsonNumber(v float64) string {
	switch text := python(v); text {
	case "nan":
		return "NaN"
	case "inf":
		return "Infinity"
	case "-inf":
		return "-Infinity"
	default:
		return text
	}
}
