// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"fmt"
)

// bars is what step reports need to know of earlier lines. It is stored with a State.
type bars struct {
	From1 int64 `json:"from1,omitempty"` // the lowest rank that reports steps, plus 1
	Off   bool  `json:"off,omitempty"`   // a metric comes with steps and a total
}

const maxBarName = 32 // bytes

// notTraining are the beginnings of words of bars that do not count the training.
var notTraining = []string{"download", "upload", "fetch", "load", "read", "writ", "sav", "map", "filter", "tokeniz",
	"generat", "convert", "extract", "prepar", "preprocess", "process", "creat", "build", "cach", "encod", "render", "eval", "val", "test", "sanity", "predict", "find"}

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

// stepReport reads a line without a metric, after noteContext.
func (p *Parser) stepReport(line []byte) (r Report, ok bool) {
	f, s := &p.found, &p.steps
	if p.bars.Off || f.heldOut || s.Again {
		return r, false
	}
	name := line[:min(f.barAt, len(line))]
	r = Report{Value: unset, Step: f.n, Total: f.of}
	switch {
	case f.shape == shapeBar && isSet(f.of) && !f.foreign:
	case isSet(f.step) && f.total > 0: // also in JSON lines and rows of a table
		return Report{Value: unset, Step: f.step, Total: f.total, Bar: "step"}, f.step <= f.total
	case f.shape == shapeDict && isSet(f.n) && isSet(f.of):
		r.Bar = "step"
		return r, f.n <= f.of
	case f.shape == shapeDict && isSet(f.epoch) && f.epochs > 0:
		return Report{Value: unset, Step: f.epoch, Total: f.epochs, Bar: "epoch"}, f.epoch <= f.epochs
	case f.shape != shapePlain:
		return r, false
	case isSet(f.step) && f.place && isSet(f.stepOf):
		r.Step, r.Total = f.step, f.stepOf
	case isSet(f.step) && f.share > 0:
		if r.Step = f.step; s.OutOf > 0 {
			r.Total = s.OutOf
		}
	case (f.place || isSet(f.percent)) && isSet(f.of):
	case isSet(f.epoch) && !isSet(f.step) && p.scan.isEpochHeader():
		r.Step, r.Total, r.Bar = f.epoch-s.first(), s.Epochs, "epoch" // it begins now
		return r, r.Total > 0 && r.Step >= 0 && r.Step <= r.Total
	default:
		return r, false
	}
	other := hasWord(name, notTraining...) || f.shape == shapePlain && hasWord(name, "warm")
	// The last words before the number.
	name = bytes.TrimRightFunc(name, notLetter)
	name = bytes.TrimLeft(name[bytes.LastIndexFunc(name, func(r rune) bool { return r != ' ' && notLetter(r) })+1:], " ")
	r.Bar = string(name[max(0, len(name)-maxBarName):])
	if isSet(f.percent) && f.n == f.percent { // of anything
		other = other || hasWord(name, "epoch") || len(name) > 0 && !hasWord(name, "train", "step", "iter", "progress")
	}
	switch {
	case f.whole || s.Global || s.Epoch1 == 0 || !isSet(f.epoch) && (s.Epochs > 0 || p.current != nil):
	case s.Epochs == 0:
		r.Bar = fmt.Sprintf("epoch %.0f", s.Epoch1-1) // of one epoch, perhaps
	case r.Total != s.Epochs:
		r.Step, r.Total, r.PerEpoch = (s.Epoch1-1-s.first())*r.Total+r.Step, s.Epochs*r.Total, r.Total
	}
	return r, !other && r.Step >= 0 && !(r.Step > r.Total)
}
