// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"fmt"
)

// bars gives step reports: the steps of a bar or counter without a metric. One is
// followed. It is stored with a State.
type bars struct {
	Name   string  `json:"name,omitempty"` // Report.Bar
	Of     float64 `json:"of,omitempty"`   // its length; 0 = unknown
	N      float64 `json:"n,omitempty"`    // last position
	Rank   barRank `json:"rank,omitempty"`
	Missed int     `json:"missed,omitempty"` // lines of others since
	From1  int64   `json:"from1,omitempty"`  // the lowest rank that reports steps, plus 1
	On     bool    `json:"on,omitempty"`     // one is followed
	Off    bool    `json:"off,omitempty"`    // a metric comes with steps
	Steps  steps   `json:"steps,omitzero"`
}

// barRank orders what may count the steps of the training; lower is better.
type barRank int8

const (
	barTraining barRank = iota // named so
	barNameless
	barNamed
	barEpochs // an epoch's header
	barOther  // named as something else
)

const maxBarName = 32 // bytes

// notTraining are the beginnings of words of bars that do not count the training.
var notTraining = []string{"download", "upload", "fetch", "load", "read", "writ", "sav", "map", "filter", "tokeniz",
	"generat", "convert", "extract", "prepar", "preprocess", "process", "creat", "build", "cach", "encod", "render", "eval", "val", "test", "sanity", "sampl", "predict"}

// hasWord reports whether a word of text begins with one of the prefixes.
func hasWord(text []byte, prefixes ...string) bool {
	for i := range text {
		if i > 0 && isLetter(text[i-1]) || !isLetter(text[i]) {
			continue
		}
		for _, p := range prefixes {
			if hasFold(text[i:], p) {
				return true
			}
		}
	}
	return false
}

// stepReport reads a line without a metric.
func (p *Parser) stepReport(line []byte) (r Report, ok bool) {
	f, b := &p.found, &p.bars
	if b.Off || f.heldOut || p.steps.Again {
		return r, false
	}
	name, n, of := line[:min(f.barAt, len(line))], f.n, f.of
	switch {
	case f.shape == shapeBar && isSet(of) && !f.foreign:
	case f.shape != shapePlain:
		return r, false
	case isSet(f.step) && (f.place && isSet(f.stepOf) || f.share > 0):
		n, of = f.step, f.stepOf
	case (f.place || isSet(f.percent)) && isSet(of):
	case isSet(f.epoch) && !isSet(f.step) && p.scan.isEpochHeader():
		b.Steps.header(f)
		n, of = f.epoch-b.Steps.first(), b.Steps.Epochs // it begins now
		if of == 0 || n < 0 || n > of || b.Steps.Again || !b.follow([]byte("epoch"), n, of, barEpochs) {
			return r, false
		}
		return b.report(n, of), true
	case isSet(f.epochs) && !isSet(f.epoch):
		b.Steps.Epochs = f.epochs
		return r, false
	default:
		return r, false
	}
	other := hasWord(name, notTraining...)
	// The last words before the number.
	name = bytes.TrimRightFunc(name, notLetter)
	name = bytes.TrimLeft(name[bytes.LastIndexFunc(name, func(r rune) bool { return r != ' ' && notLetter(r) })+1:], " ")
	name = name[max(0, len(name)-maxBarName):]
	moved := b.On && string(name) == b.Name && of == b.Of && n > b.N
	alone := isSet(f.percent) && f.n == f.percent // of anything
	prose := f.shape == shapePlain && bytes.ContainsFunc(line[:max(0, f.barAt-len(name))], func(r rune) bool { return !notLetter(r) })
	rank := barNamed
	switch {
	case other:
		rank = barOther
	case len(name) == 0:
		rank = barNameless
	case hasWord(name, "train", "step", "iter", "epoch", "progress"):
		rank = barTraining
	}
	if alone && (rank > barNameless || hasWord(name, "epoch")) || !b.follow(name, n, of, rank) || (alone || prose) && !moved { // "warmup 500 steps, step 10/90 decay 0.1"
		return r, false
	}
	step, total := b.Steps.next(f)
	inEpoch := b.Steps.Epoch1 > 0
	if isSet(of) && !(inEpoch && b.Steps.Epochs > 0) {
		step, total = n, of // as printed: package remaining counts how often it begins anew
	}
	if !isSet(step) || !isSet(total) || step > total {
		return r, false
	}
	r = b.report(step, total)
	if inEpoch && b.Steps.Epochs == 0 && !f.whole {
		r.Bar = fmt.Sprintf("epoch %.0f", b.Steps.Epoch1-1) // of one epoch, perhaps
	}
	return r, true
}

func (b *bars) report(step, total float64) Report {
	return Report{Value: unset, Step: step, Total: total, PerEpoch: b.Steps.Per, Bar: b.Name}
}

// follow reports whether a bar is the one that is followed. Another one is, from now on,
// if it has a better name, if it is a longer one after a full one (validation is shorter
// than training), or if that one is missing for long.
func (b *bars) follow(name []byte, n, of float64, rank barRank) bool {
	if !isSet(of) {
		of = 0
	}
	// A bar may change its words while it goes on: "warmup", then "sample".
	same := of == b.Of && (string(name) == b.Name || n > b.N && b.N > 0 && b.Rank >= barNamed && rank >= b.Rank)
	if rank == barOther && !(same && b.On) {
		return false
	}
	b.Missed++
	switch {
	case same && b.On:
	case !b.On, rank < b.Rank, rank == b.Rank && b.N >= b.Of && of > b.Of, b.Missed > downgrade:
		b.Steps.forgetSteps()
		b.Name, b.Of, b.Rank, b.On = string(name), of, rank, true
	default:
		return false
	}
	b.N, b.Missed = n, 0
	return true
}
