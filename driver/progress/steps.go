// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import "math"

// steps derives a monotonic step from a series' lines; the rules are in the package
// comment. It is stored with an Offset. Zero means "not seen", hence the fields that
// are one too high.
type steps struct {
	Epoch1  float64 `json:"epoch1,omitempty"`   // last epoch seen, plus 1
	Epochs  float64 `json:"epochs,omitempty"`   // total epochs
	Base0   bool    `json:"base0,omitempty"`    // epochs count from 0
	Of      float64 `json:"of,omitempty"`       // batches per epoch
	Total   float64 `json:"total,omitempty"`    // total steps, from the trainer
	Last1   float64 `json:"last1,omitempty"`    // last position or step as printed, plus 1
	Gap     float64 `json:"gap,omitempty"`      // distance of the last two
	LastE1  float64 `json:"last_e1,omitempty"`  // epoch of that line, plus 1
	Base    float64 `json:"base,omitempty"`     // steps of the rounds before
	Global  bool    `json:"global,omitempty"`   // positions continue over epochs
	Out1    float64 `json:"out1,omitempty"`     // last returned step, plus 1
	OutOf   float64 `json:"out_of,omitempty"`   // its total
	BarN    float64 `json:"bar_n,omitempty"`    // Hugging Face: the training's bar
	BarOf   float64 `json:"bar_of,omitempty"`   //
	BarBase float64 `json:"bar_base,omitempty"` // its length in the rounds before
	BarAge  int     `json:"bar_age,omitempty"`  // reports since it was last seen
	OtherOf float64 `json:"other_of,omitempty"` // another bar seen since
	OtherN  float64 `json:"other_n,omitempty"`  //
	DoneOf  float64 `json:"done_of,omitempty"`  // Keras: this epoch's bar is full
	Per     float64 `json:"per,omitempty"`      // steps per epoch
	InE1    float64 `json:"in_e1,omitempty"`    // epoch of the last line with a step, plus 1
	From1   float64 `json:"from1,omitempty"`    // first step reported in it, plus 1, if seen
	Same    int     `json:"same,omitempty"`     // epochs in a row with the same step
	Pairs   int     `json:"pairs,omitempty"`    // pairs like "Batch 0/200" in a row whose total alone rose
	Again   bool    `json:"again,omitempty"`    // trainings follow one another: totals are of one of them
	Lost    bool    `json:"lost,omitempty"`     // and so are steps, after the first
	Near1   float64 `json:"near1,omitempty"`    // step in a line of its own since the last report, plus 1
	NearE   bool    `json:"near_e,omitempty"`   // it is an epoch
	NearOf  float64 `json:"near_of,omitempty"`  // its total
	Lent1   float64 `json:"lent1,omitempty"`    // the one before the last report, plus 1
	Fresh   int     `json:"fresh,omitempty"`    // reports in a row with a higher one before each
	SideN   float64 `json:"side_n,omitempty"`   // position of the last bar without a metric
	SideOf  float64 `json:"side_of,omitempty"`  // its length
	Passed  bool    `json:"passed,omitempty"`   // another bar came since the last position
	Agreed  int     `json:"agreed,omitempty"`   // printed steps that were its position
	AgreedN float64 `json:"agreed_n,omitempty"` // the last one
}

const (
	nearlyFull = 0.95 // of a bar that begins again: the next round
	nextRound  = 0.1  // of a bar, at most where it begins again
	epochPairs = 2    // Pairs that make them an epoch and a batch
	minShare   = 50   // per cent done, in units of their last digit, that give a total
	minFresh   = 2    // Fresh that make the steps before reports theirs
	minAgreed  = 2    // Agreed that make the bar's length the total
)

func (s *steps) learn(f *findings, step, of float64, position bool) {
	if !isSet(step) || s.Epoch1 == 0 {
		return
	}
	switch {
	case position && isSet(of) && !s.Global && step != of:
		s.Per = of
	case f.shape == shapeDict && isSet(f.epoch) && f.epoch != math.Floor(f.epoch):
		s.Per = step / f.epoch // the epoch is a fraction
	case s.Epoch1 == s.InE1:
	case s.Epoch1 > s.InE1 && s.InE1 > 0 && s.From1 > 0 && step+1 > s.From1:
		s.Per = (step + 1 - s.From1) / (s.Epoch1 - s.InE1)
		fallthrough
	case s.Epoch1 > s.InE1 && s.InE1 > 0:
		s.InE1, s.From1 = s.Epoch1, step+1
	default:
		s.InE1, s.From1 = s.Epoch1, 0
	}
}

func (s *steps) header(f *findings) {
	s.sawEpochs(f)
	if isSet(f.epoch) {
		s.sawEpoch(math.Floor(f.epoch), f.shape)
	}
	s.DoneOf = 0
	if s.Last1 == 0 {
		s.Out1, s.OutOf = 0, 0
	}
}

// near notes a step or epoch in a line without a metric.
func (s *steps) near(f *findings) {
	n, of, epoch := f.step, f.stepOf, !isSet(f.step)
	if epoch {
		n, of = f.epoch, f.epochs
	}
	if n+1 == s.Out1 {
		return // said again
	}
	s.Near1, s.NearE, s.NearOf = n+1, epoch, 0
	if isSet(of) {
		s.NearOf = of
	}
}

// lend gives a report without a position the step of the line before, if each report has
// had a new one before it.
func (s *steps) lend(f *findings) {
	if s.Near1 <= s.Lent1 || f.positioned() || s.BarOf > 0 {
		s.Fresh, s.Near1 = 0, 0
		return
	}
	if s.Fresh++; s.Fresh >= minFresh {
		n, of := &f.step, &f.stepOf
		if s.NearE {
			n, of = &f.epoch, &f.epochs
		}
		if *n = s.Near1 - 1; s.NearOf > 0 {
			*of = s.NearOf
		}
	}
	s.Lent1, s.Near1 = s.Near1, 0
}

func (s *steps) sawEpochs(f *findings) {
	if isSet(f.epochs) && !(s.Base0 && s.Epochs == f.epochs+1) {
		s.Epochs = f.epochs
	}
}

func (s *steps) sawEpoch(e float64, in shape) {
	if e < s.Epoch1-1 && e <= s.first() && s.Epochs > 0 && s.Epoch1-s.first() >= s.Epochs && (s.Of == 0 || s.Last1-1 >= s.Of) {
		s.Again = true // after the last epoch, such as the next fold
	}
	if in != shapeDict { // in dicts, epochs are fractions
		if e == 0 {
			s.Base0 = true
		}
		if s.Base0 && s.Epochs > 0 && e == s.Epochs {
			s.Epochs++ // "Epoch 9/9" that began at 0: ten of them
		}
	}
	s.Epoch1 = e + 1
}

// bar handles a progress bar without a metric. Only a nameless bar that counts
// iterations can be the training's: the first one, until it is missing for two reports
// while another moves (an evaluation's bar).
func (s *steps) bar(f *findings) {
	if isSet(f.of) && !f.foreign {
		if f.of != s.SideOf {
			s.Agreed, s.AgreedN = 0, 0
		}
		s.SideN, s.SideOf = f.n, f.of
		s.Passed = s.Passed || f.of != s.Of
	}
	if f.named || !f.units && f.n > 0 || !isSet(f.of) {
		return
	}
	switch {
	case s.BarOf == 0 || f.of == s.BarOf:
		if f.n < s.BarN {
			if s.BarN >= nearlyFull*s.BarOf {
				s.BarBase += s.BarOf // the next epoch's
			} else {
				s.BarBase = 0 // a restart
			}
		}
		s.BarN, s.BarOf, s.BarAge, s.OtherOf = f.n, f.of, 0, 0
	default:
		s.OtherN, s.OtherOf = f.n, f.of
	}
}

func (s *steps) valid() bool {
	for _, v := range []float64{s.Epoch1, s.Epochs, s.Of, s.Total, s.Last1, s.Gap, s.LastE1, s.Base, s.Out1, s.OutOf,
		s.BarN, s.BarOf, s.BarBase, s.OtherOf, s.OtherN, s.DoneOf, s.Per, s.InE1, s.From1, s.Near1, s.NearOf, s.Lent1, s.SideN, s.SideOf, s.AgreedN} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return false
		}
	}
	return true
}

// forgetPosition forgets the positions of another series; epochs and the last step stay
// known.
func (s *steps) forgetPosition() {
	s.Last1, s.LastE1, s.Gap, s.Base, s.Global = 0, 0, 0, 0, false
	s.Of, s.DoneOf, s.Per, s.InE1, s.Same = 0, 0, 0, 0, 0
}

// forgetSteps forgets positions and the last step; epochs stay known.
func (s *steps) forgetSteps() {
	s.forgetPosition()
	s.Out1, s.OutOf = 0, 0
}

func (s *steps) first() float64 {
	if s.Base0 {
		return 0
	}
	return 1
}

// evaluation reports whether a Keras bar is an evaluation's: of another length, after
// the epoch's own was full, without a new epoch's header.
func (s *steps) evaluation(f *findings) bool {
	return f.shape == shapeKeras && s.DoneOf > 0 && isSet(f.of) && f.of != s.DoneOf
}

// next returns the step and total, unset if unknown, of a line with a report.
func (s *steps) next(f *findings) (step, total float64) {
	s.sawEpochs(f)
	if isSet(f.total) {
		s.Total = f.total
	}
	if isSet(f.epoch) {
		s.sawEpoch(math.Floor(f.epoch), f.shape)
	}

	s.sawPair(f)
	n, of := f.step, f.stepOf
	position := false // n counts within an epoch
	inSteps := true   // n counts what a printed total does
	if !isSet(n) {
		n, of = f.n, f.of
		position = isSet(n) && !f.whole
		inSteps = !isSet(f.percent) && !isSet(f.episode)
	} else if isSet(of) && s.Epoch1 > 0 && !f.whole {
		position = true // Epoch [1/5], Step [100/600]
	}

	if isSet(f.step) && !isSet(of) && s.Epoch1 == 0 && !isSet(f.total) {
		of = s.agreed(f.step)
	}
	if isSet(n) && !isSet(of) && s.Epoch1 == 0 && f.share > 0 { // with epochs, perhaps of one
		of = s.fromShare(n, f.share, f.tick)
	}

	switch {
	case isSet(n):
		step, total = s.compose(n, of, position, f.shape)
		s.learn(f, step, of, position)
		if f.shape == shapeKeras && isSet(of) && n >= of {
			s.DoneOf = of
		}
	case s.BarOf > 0 && (f.shape == shapeDict || s.Last1 == 0 && s.Epoch1 == 0 && s.Out1 > 0):
		step, total = s.fromBar(f)
		s.learn(f, step, unset, false)
	case isSet(f.epoch) && s.Of > 0 && !s.Global:
		// The line at an epoch's end.
		step, total = (math.Floor(f.epoch)-s.first()+1)*s.Of, unset
		s.Per = s.Of
		if s.Epochs > 0 {
			total = s.Epochs * s.Of
		}
	case s.Last1 == 0 && (isSet(f.epoch) || s.Epoch1 > 0 && s.Out1 == 0):
		step, total = s.Epoch1-1, unset // of this line, or of a header above
		if isSet(f.epoch) {
			step = f.epoch
		}
		s.Per = 1
		inSteps = false
		if s.Epochs > 0 {
			total = s.Epochs
		}
	case s.Out1 > 0:
		step, total = s.Out1-1, unset // between two lines with a step
		if s.OutOf > 0 && !s.Again {
			total = s.OutOf
		}
		return step, total
	default:
		step, total = unset, unset
		if s.Total > 0 && !s.Again {
			total = s.Total
		}
		return step, total
	}
	if s.Total > 0 && !position && inSteps {
		total = s.Total
	}
	if total < step || s.Again {
		total = unset // it counts something else
	}
	if s.Lost = s.Lost || s.Again && s.Out1 > 0 && step <= s.Out1-1; s.Lost {
		s.Out1, s.OutOf = 0, 0
		return unset, unset
	}
	s.Out1, s.OutOf = step+1, 0
	if isSet(total) {
		s.OutOf = total
	}
	return step, total
}

// agreed returns the length of the bar between reports if its position has been the step of
// several, else unset.
func (s *steps) agreed(step float64) float64 {
	switch {
	case step == s.SideN && step > s.AgreedN:
		s.Agreed, s.AgreedN = s.Agreed+1, step
	case step > s.AgreedN:
		s.Agreed = 0
	}
	if s.Agreed < minAgreed {
		return unset
	}
	return s.SideOf
}

// sawPair watches "Batch 0/100", "Batch 0/200": an epoch and a batch, if only the second
// number rises.
func (s *steps) sawPair(f *findings) {
	if f.shape != shapePlain || isSet(f.step) || isSet(f.epoch) || !isSet(f.of) {
		return
	}
	if s.Pairs < epochPairs {
		if s.Of == 0 || f.n != s.Last1-1 || f.of < s.Of {
			s.Pairs = 0
			return
		}
		if f.of == s.Of {
			return
		}
		if s.Pairs++; s.Pairs < epochPairs {
			return
		}
		s.forgetPosition()
	}
	f.epoch, f.n, f.of = f.n, f.of, unset
	s.sawEpoch(f.epoch, f.shape)
}

// fromShare returns the total of which n steps are the given percentage, or unset. tick
// is the unit of its last digit. A total that was known and fits is kept.
func (s *steps) fromShare(n, percent, tick float64) float64 {
	if percent < minShare*tick {
		return unset
	}
	low, high := 100*n/(percent+tick), 100*n/max(percent-tick, tick)
	if s.OutOf >= low && s.OutOf <= high {
		return s.OutOf
	}
	return math.Round(100 * n / percent)
}

func (s *steps) compose(n, of float64, position bool, f shape) (step, total float64) {
	defer func() {
		if s.Last1 > 0 && n > s.Last1-1 {
			s.Gap = n - (s.Last1 - 1)
		}
		s.Last1, s.LastE1, s.Passed = n+1, s.Epoch1, false
		if isSet(of) {
			s.Of = of
		}
	}()
	last := s.Last1 - 1
	nextEpoch := s.Epoch1 > 0 && s.LastE1 > 0 && s.Epoch1 > s.LastE1
	sameOf := isSet(of) && of == s.Of

	if position && isSet(of) && s.Epoch1 > 0 {
		epoch := math.Floor(s.Epoch1 - 1)
		switch {
		case s.Epochs > 0 && of == s.Epochs && math.Abs(n-epoch) <= 1:
			return n, of // a bar over epochs
		case nextEpoch && s.Last1 > 0 && n > last && sameOf && last < of && last+s.Gap < of:
			s.Global = true // it continued where the last epoch ended
		case s.Global && n < last:
			s.Global = false
		case s.Epochs > 0 && s.Epoch1 == s.LastE1 && s.Epoch1-s.first() >= s.Epochs && sameOf && n < last && last >= of:
			s.Again = true
		}
		total = unset
		if s.Global {
			return n, of
		}
		if s.Epochs > 0 {
			total = s.Epochs * of
		}
		return (epoch-s.first())*of + n, total
	}

	switch {
	case s.Epoch1 > 0 && s.Epoch1 < s.LastE1:
		s.Base = 0 // a restart, some epochs earlier
	case nextEpoch && n == last && s.Gap == 0 && f == shapePlain:
		if s.Same++; s.Same > 1 {
			s.Per, s.Base = n, float64(s.Same)*n // every epoch's last step
		}
	case sameOf && n == of && last == of && s.Passed:
		s.Per = of
		s.Base += of // the next round is reported once it is full
	case s.Last1 == 0 || n >= last:
	case nextEpoch:
		s.Per = last
		s.Base += last // a step that restarts with every epoch
	case sameOf && last+s.Gap >= of && (last >= of || n <= max(2*s.Gap, nextRound*of)):
		s.Per = of
		s.Base += of // a bar that was full
	default:
		s.Base = 0 // a restart
	}
	total = of
	if s.Base > 0 {
		total = unset
		if isSet(of) && s.Epochs > 0 {
			total = s.Epochs * of
		}
	}
	return s.Base + n, total
}

// fromBar gives a Hugging Face line, which has only an epoch, the step of the bar.
func (s *steps) fromBar(f *findings) (step, total float64) {
	s.BarAge++
	if s.BarAge > 2 && s.OtherOf > 0 {
		s.BarBase = 0
		s.BarN, s.BarOf, s.BarAge, s.OtherOf = s.OtherN, s.OtherOf, 1, 0
	}
	if s.BarBase > 0 {
		total = unset
		if s.Epochs > 0 {
			total = s.Epochs * s.BarOf
		}
		return s.BarBase + s.BarN, total
	}
	if isSet(f.epoch) && s.Epochs > 0 {
		// More exact: bar and line come in different streams.
		return math.Round(f.epoch / s.Epochs * s.BarOf), s.BarOf
	}
	return s.BarN, s.BarOf
}
