// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"math"
)

// shape is a kind of line. One metric in two shapes is two series: a bar's running mean
// differs from the epoch's last line.
type shape uint8

const (
	shapePlain shape = iota
	shapeBar         // tqdm's, and Lightning's rich one
	shapeKeras       // 12/469 …
	shapeDict        // JSON or a Python dict
)

func (s shape) String() string {
	return [...]string{"plain", "bar", "keras", "dict"}[s]
}

const (
	maxCandidates = 16      // metrics per line
	maxStep       = 1 << 53 // largest exact integer
	maxRate       = 64      // bytes behind a bar that hold its speed
	maxUnit       = 8       // tokens between a name and its value, in brackets
)

// candidate is a metric found in a line. Its slices point into the line.
type candidate struct {
	prefix []byte // word before the name for held-out data, or nil
	name   []byte
	value  float64
	rank   rank
}

// unset marks a number missing from the line.
var unset = math.NaN()

func isSet(v float64) bool { return v == v }

type findings struct {
	shape  shape
	cands  [maxCandidates]candidate
	ncands int

	step, stepOf  float64 // step 10; Step [10/600]
	total         float64 // total_steps=600
	plainTotal    float64 // total=600, which counts steps only next to a step
	lr            float64 // learning rate
	epoch, epochs float64 // Epoch [1/5]
	n, of         float64 // position in an epoch or a bar: 12/469
	share, tick   float64 // per cent done next to a step, "(35.0%)", and their last digit's unit
	percent       float64 // per cent done
	episode       float64 // of reinforcement learning
	episodes      float64 // how many there will be
	message       []byte  // text within a dict, as structured logs have it
	record        []byte  // name of a dict with a name and a value, such as {"name": "loss", "value": 3.1}
	recorded      token   // its value, if any
	barAt         int     // where the number of a bar or place stands in the line
	foreign       bool    // a bar that counts bytes or examples
	index         bool    // the line begins with its step: "12: ", "12 | "
	fold          bool    // one of several trainings
	whole         bool    // the step precedes the epoch, so it counts across epochs
	place         bool    // a step or batch had a total
	weak          bool    // n is between brackets: a batch that is named is better
	heldOut       bool    // the line concerns held-out data
	named         bool    // a bar after a word: its count need not be the training's
	units         bool    // a bar that counts iterations, not bytes or examples
	summary       bool    // a trainer's summary at its end
	notNumber     bool    // a metric's name without a number
	best          float64 // of a metric that is not named, "best: 0.5"
}

func (f *findings) reset() {
	f.shape, f.ncands = shapePlain, 0
	f.index, f.whole, f.place, f.heldOut, f.named, f.units, f.summary, f.notNumber = false, false, false, false, false, false, false, false
	f.step, f.stepOf, f.total, f.epoch, f.epochs, f.n, f.of = unset, unset, unset, unset, unset, unset, unset
	f.best, f.plainTotal, f.lr, f.share, f.percent, f.episode, f.episodes = unset, unset, unset, unset, unset, unset, unset
	f.message, f.record, f.recorded = nil, nil, token{}
	f.barAt, f.foreign, f.fold, f.weak = 0, false, false, false
}

// positioned reports whether the line says where the training is.
func (f *findings) positioned() bool { return isSet(f.step) || isSet(f.epoch) || isSet(f.n) }

// substitute makes the per cent done or the episode the step, if the line has no other.
func (f *findings) substitute() {
	switch {
	case f.positioned():
	case isSet(f.percent):
		f.n, f.of, f.whole = f.percent, 100, true
	case isSet(f.episode):
		f.n, f.of, f.whole = f.episode, f.episodes, true
	}
}

func (f *findings) add(c candidate) {
	if f.ncands < maxCandidates {
		f.cands[f.ncands] = c
		f.ncands++
		return
	}
	// Full: replace the worst, so that part losses do not hide a better one.
	worst := 0
	for i := range f.cands {
		if f.cands[i].rank > f.cands[worst].rank {
			worst = i
		}
	}
	if c.rank < f.cands[worst].rank {
		f.cands[worst] = c
	}
}

// counter is what the number after a name counts.
type counter uint8

const (
	countNothing counter = iota
	countStep
	countGlobal // a step that counts over everything, despite other counters in the line
	countBatch
	countTotal
	countPlainTotal
	countEpoch
	countEpochs
	countPercent
	countEpisode
	countFold
	countLR // not a counter, but recognised likewise
)

func counts(name []byte) counter {
	var buf [24]byte
	if len(name) > len(buf) {
		return countNothing
	}
	for i, c := range name {
		buf[i] = lower(c)
		if c == '-' {
			buf[i] = '_'
		}
	}
	switch string(buf[:len(name)]) {
	case "step", "steps", "iter", "iters", "iteration", "iterations", "it", "update", "updates",
		"train_step", "training_step", "train_steps", "train/step", "n_iter", "num_iter", "timestep",
		"timesteps", "current_step", "current_steps", "cur_step", "step_num", "iter_num", "itr", "itrs",
		"current_iter", "current_iteration", "cur_iter", "steps_completed", "kimg":
		return countStep
	case "global_step", "globalstep", "train/global_step", "trainer/global_step", "num_updates", "num_update",
		"nupdates", "total_train_updates", "total_timesteps", "num_timesteps", "env_step", "env_steps", "t_env":
		return countGlobal
	case "batch", "batch_idx", "minibatch", "batch_id", "batches", "mb":
		return countBatch
	case "total_steps", "max_steps", "num_steps", "total_step", "max_step", "steps_total", "total_iters",
		"max_iters", "max_iter", "num_iters", "total_iterations", "num_iterations", "max_iterations",
		"num_training_steps", "num_train_steps", "max_train_steps", "total_updates", "max_update":
		return countTotal
	case "total":
		return countPlainTotal
	case "epoch", "ep", "pass", "epoch_num", "current_epoch", "train/epoch", "round", "generation":
		return countEpoch
	case "epochs", "num_epochs", "max_epochs", "total_epochs", "n_epochs", "num_train_epochs", "max_epoch", "num_rounds":
		return countEpochs
	case "progress":
		return countPercent
	case "episode", "episodes":
		return countEpisode
	case "fold", "current_fold", "current_round":
		return countFold
	case "lr", "lr_0", "learning_rate", "train/lr", "train/learning_rate":
		return countLR
	}
	return countNothing
}

func (p *Parser) counter(name []byte) counter {
	kind := counts(name)
	if kind != countNothing && kind != countLR && equalFoldName(name, p.metric) {
		return countNothing
	}
	return kind
}

// heldOut reports whether a word refers to held-out data (+1), training data (−1) or
// neither (0).
func heldOut(w []byte) int {
	if len(w) < 2 || len(w) > 10 {
		return 0
	}
	switch w[0] | 0x20 {
	case 'v', 'e', 't', 'd', 's':
	default:
		return 0
	}
	var buf [10]byte
	for i, c := range w {
		buf[i] = lower(c)
	}
	switch string(buf[:len(w)]) {
	case "val", "valid", "validation", "validating", "eval", "evaluation", "evaluating", "test",
		"testing", "dev", "sanity":
		return 1
	case "train", "training":
		return -1
	}
	return 0
}

func isQualifier(w []byte) bool {
	var buf [12]byte
	if len(w) > len(buf) {
		return false
	}
	for i, c := range w {
		buf[i] = lower(c)
	}
	return qualifies(buf[:len(w)]) != 0
}

// isFiller reports whether a word before "loss" is no part of its name.
func isFiller(w []byte) bool {
	for _, word := range [...]string{"the", "and", "of", "with", "for", "at", "in", "is", "info", "debug", "warning"} {
		if equalFold(w, word) {
			return true
		}
	}
	return len(w) == 1
}

func isBest(w []byte) bool {
	switch len(w) {
	case 4:
		return hasFold(w, "best")
	case 6:
		return hasFold(w, "lowest")
	case 7:
		return hasFold(w, "highest")
	}
	return false
}

// words qualify the values behind them.
type words struct {
	context, best []byte // the last word about held-out data, and the one that marks a running optimum
	subject       []byte // a loss without a value, of which parts follow
}

// scanText reads the pairs, counters and bars of a line in one pass, without
// allocating. With take false it reads counters only.
func (p *Parser) scanText(b []byte, take bool) {
	var w words
	p.scan.start(b, 0)
	for i := 0; ; {
		switch t := p.scan.at(i); t.kind {
		case tokenNone:
			return
		case tokenWord:
			i = p.scanWord(i, &w, take)
		case tokenNumber:
			i = p.scanNumber(i, take)
		default:
			if class[t.sign]&classBreak != 0 {
				w.best = nil
			}
			i++
		}
	}
}

// scanWord reads the word at token i and its value, if it has one. It returns the next token.
func (p *Parser) scanWord(i int, w *words, take bool) int {
	s := &p.scan
	name := s.word(i)
	if h := heldOut(name); h != 0 {
		w.context = nil
		if h > 0 {
			w.context = name
			p.found.heldOut = true
		}
	} else if isBest(name) {
		w.best = name
	}
	switch next := s.at(i + 1); {
	case next.kind == tokenWord: // prose; but "is", nan, inf and tensor(…) may be values or stand before them
		if c := s.line[next.from] | 0x20; !next.gap || c != 'n' && c != 'i' && c != 't' {
			return i + 1
		}
	case next.kind == tokenNumber || next.gap:
	case next.sign == '.': // Marian's "Ep. 1 : Up. 100 :"
		kind := counts(name)
		if equalFold(name, "up") {
			kind = countStep
		}
		if s.at(i+2).gap && s.integer(i+2) && (kind == countStep || kind == countEpoch || kind == countBatch) {
			return p.count(kind, s.tokens[i+2], i+3)
		}
		return i + 1
	case next.sign == '>': // "<loss>=7.2"
		if s.sign(i-1) != '<' || s.tokens[i].gap {
			return i + 1
		}
	}
	return p.pair(i, w, take)
}

// valueOf returns the token of the value of the name at token i, or 0. strong means a
// colon or equals sign in between, list a bracket.
func (s *scan) valueOf(i int) (at int, strong, list bool) {
	k := i + 1
	switch next := s.at(k); { // most are "12 " or "=12"
	case next.kind == tokenNumber:
		return k, false, false
	case (next.sign == '=' || next.sign == ':') && s.at(k+1).kind == tokenNumber:
		return k + 1, true, false
	}
	if q := s.sign(k); (q == '"' || q == '\'' || q == '>' || q == '#') && !s.tokens[k].gap {
		k++
	}
	if open := s.sign(k); open == '(' || open == '[' { // a unit: elapsed time (ms): 12.5, loss (avg): 0.5, loss [1-250]: 0.5
		e := k + 1
		for !s.ends(e) && s.sign(e) != ')' && s.sign(e) != ']' && e < k+maxUnit {
			e++
		}
		if !s.ends(e) && (open == '(' || bytes.IndexByte(s.text(k, e), '-') > 0) {
			if c := s.sign(e + 1); c == ':' || c == '=' || c == '[' && open == '(' {
				k = e + 1
			}
		}
	}
	if c := s.sign(k); c == ':' || c == '=' {
		strong = true
		if k++; c == '=' && s.sign(k) == c {
			k++
		}
		for ; !s.at(k).gap && (s.sign(k) == '>' || s.sign(k) == ':'); k++ { // =>, :::
		}
	} else if k == i+1 && !s.at(k).gap && c != '[' && c != '(' && s.at(k).kind != tokenNumber {
		return 0, false, false
	}
	switch c := s.sign(k); {
	case c == '[':
		if k++; s.sign(k) == '(' && s.integer(k+1) && s.sign(k+2) == ',' { // Sample Factory, by policy: [(0, '0.744')]
			k += 3
		}
		return k, strong, true
	case c == '#': // Epoch #1
		k++
	case c == '(' && !s.tokens[k].gap && s.integer(k+1) && s.sign(k+2) == '/' && counts(s.word(i)) != countNothing: // Batch(1/100)
		k++
	case !strong && c == '-' && s.tokens[k].gap && s.at(k+1).gap: // dice_loss - 0.33
		k++
	case !strong && equalFold(s.word(k), "is"): // the loss is 0.5
		k++
	case !strong && c == '|' && s.ends(k+2) && s.sign(i-2) == ':': // Trax: "Step 100: train loss | 5.25"
		k++
	}
	return k, strong, list
}

// pair reads the value of the name at token i.
func (p *Parser) pair(i int, w *words, take bool) int {
	s, f := &p.scan, &p.found
	name, before := s.word(i), s.beside(i)
	at, strong, list := s.valueOf(i)
	if at == 0 {
		return i + 1
	}
	n, next, ok := s.value(at)
	kind := countNothing
	if ok {
		kind = p.counter(name)
		ok = !n.counter || kind != countNothing
	}
	if !ok {
		if take && (strong || n.counter) && p.wantsName(name) {
			f.notNumber = true
		}
		if take && s.sign(at) == '(' && classify(name, false, false) == rankLoss {
			w.subject = name
		}
		return i + 1
	}
	if n.percent && s.at(next).kind == tokenBar {
		return i + 1 // "Steps:  10%|█": the name is the bar's
	}
	if w.subject != nil && strong && n.decimal && isQualifier(name) { // "Loss (name: value) total: 7.2"
		if c, wanted := p.candidate(w.subject, w.subject, w, true); wanted {
			c.value = n.value
			f.add(c)
		}
		return next
	}
	switch {
	case kind == countNothing && equalFold(name, "rate") && equalFold(before, "learning"):
		kind = countLR
	case kind == countNothing && equalFold(name, "frames") && equalFold(before, "num"):
		kind = countGlobal
	case kind == countStep && equalFold(before, "optimization"):
		kind = countTotal // Total optimization steps = 1,500
	case kind == countStep && (equalFold(before, "episode") || equalFold(before, "fps")):
		kind = countNothing // the length of the episode; a rate
	}
	switch {
	case kind == countNothing:
	case kind == countLR:
		f.lr = n.value
	case kind == countEpoch && n.percent: // StarSpace: "Epoch: 10.0%"
		return p.count(countPercent, n, next)
	case kind == countPlainTotal && (before != nil || !strong): // memory total: 16384
	case (strong || list || !n.decimal || n.value == math.Trunc(n.value) && (kind == countEpoch || equalFold(name, "kimg"))) && n.value >= 0 && n.value < maxStep && w.best == nil:
		if take && !strong {
			p.nameFirst(i, next, w)
		}
		if !f.place {
			f.barAt = int(s.tokens[i].to)
		}
		next = p.count(kind, n, next)
		if kind == countEpoch && equalFold(before, "of") {
			f.whole = false // "it 90/120 of epoch 1"
		}
		return next
	}
	if equalFold(name, "train") && strong && s.integer(at) && f.shape == shapePlain {
		// timm: "Train: 0 [ 50/1251 ( 4%)]", OpenPCDet: "Train: 1/3 ( 33%) [ 50/1251",
		// Swin: "Train: [0/300][50/1251]"
		of, k, _ := s.fraction(next)
		if percent, _ := s.share(k); isSet(percent) {
			k += 3
		}
		if list && s.sign(k) == ']' {
			k++
		}
		if s.sign(k) == '[' {
			f.epoch = n.value
			if of > 0 {
				f.epochs = of
			}
			return k
		}
	}
	if v := s.at(next); take && !strong && s.integer(at) && v.kind == tokenNumber && v.clean && v.decimal && p.wantsName(name) && !isSet(f.step) {
		f.step, n, next = n.value, *v, next+1 // Tacotron 2: "Train loss 12 0.5"
	}
	if !n.decimal && s.sign(next) == ',' && !s.tokens[next].gap && s.at(next+1).kind == tokenNumber && !s.at(next+1).gap { // 0,5
		f.notNumber = f.notNumber || take && p.wantsName(name)
		return next
	}
	if !take || !strong && (!n.decimal || len(name) == 1) || list && s.sign(next) == ',' { // not of a list of several
		return i + 1
	}
	if equalFold(before, "packet") || equalFold(before, "stop") || equalFold(before, "time") {
		return next
	}
	value := n.value
	if of, k, ok := s.fraction(next); ok && of > 0 && !n.decimal {
		value, next = value/of, k // Accuracy: 9913/10000
	}

	// Names of two words: "train loss", "val loss", "loss train", LightGBM's "valid_0's
	// l2", "policy loss".
	qualified := name
	if before != nil {
		both := s.text(i-1, i)
		if isQualifier(before) || bytes.HasSuffix(before, []byte("'s")) ||
			strong && isQualifier(name) && classify(before, false, false) != rankNone ||
			equalFold(name, "loss") && (strong && !isFiller(before) || classify(both, false, true) == rankPoor) ||
			strong && n.decimal && classify(before, false, true) != rankNone && classify(name, false, true) == rankNone { // acc class
			qualified = both
		}
	}
	if f.index && strong && n.decimal && f.ncands == 0 && p.metric == "" && (equalFold(name, "learn") || equalFold(name, "train")) {
		// CatBoost names only the data: "12: learn: 0.5 test: 0.6"
		f.add(candidate{name: name, value: value, rank: rankFalling})
		return next
	}
	if p.metric == "" && (equalFold(before, "init") || equalFold(before, "initial")) ||
		s.sign(i-1) == ':' && s.sign(i-2) == ':' && !s.tokens[i].gap {
		return next // before the training; a function
	}
	if c, wanted := p.candidate(name, qualified, w, n.decimal); wanted {
		c.value = value
		f.add(c)
	} else {
		if isBest(name) {
			f.best = value
		}
		if p.explain && c.rank == rankNone {
			p.noteName(qualified)
		}
		if !strong { // "train 0.53 loss": the number may be another name's
			return i + 1
		}
	}
	return next
}

func (p *Parser) candidate(name, qualified []byte, w *words, decimal bool) (candidate, bool) {
	context := w.context
	joined := len(qualified) != len(name)
	if joined {
		context = nil // the word directly before the name suffices
	}
	c := candidate{name: qualified, prefix: context, rank: rankNone}
	if p.metric != "" {
		switch {
		case w.best != nil:
			return c, false // searchMetric finds "best loss" if that is configured
		case equalFoldName(qualified, p.metric):
			c.rank = 0
			if context != nil {
				c.rank = 2
			}
		case joined && equalFoldName(name, p.metric) && heldOut(qualified[:len(qualified)-len(name)-1]) <= 0:
			c.rank = 1
		case context != nil && len(p.metric) == len(context)+1+len(name) && p.metric[len(context)] == ' ' &&
			equalFoldName(context, p.metric[:len(context)]) && equalFoldName(name, p.metric[len(context)+1:]):
			c.rank = 0
		default:
			return c, false
		}
		return c, true
	}
	c.rank = classify(qualified, context != nil, decimal)
	if c.rank == rankNone {
		return c, false
	}
	if w.best != nil {
		c.rank, c.prefix = rankPoor, w.best
		if joined && equalFoldName(qualified[:min(len(w.best), len(qualified))], string(w.best)) {
			c.prefix = nil
		}
		return c, true
	}
	if c.rank != rankValLoss && c.rank != rankValRising && c.rank != rankFalling || joined {
		c.prefix = nil
	}
	return c, true
}

func equalFoldName(b []byte, name string) bool {
	if len(b) != len(name) {
		return false
	}
	for i, c := range b {
		if lower(c) != lower(name[i]) {
			return false
		}
	}
	return true
}

func (p *Parser) wantsName(name []byte) bool {
	if p.metric != "" {
		return equalFoldName(name, p.metric)
	}
	return classify(name, false, false) != rankNone
}

// count notes the counter n and what stands behind it, from token k on. It returns the next token.
func (p *Parser) count(kind counter, n token, k int) int {
	s, f := &p.scan, &p.found
	of := unset
	if v, next, ok := s.fraction(k); ok && v > 0 && (!n.decimal || s.line[n.to-1] == '.') && n.value <= v+1 {
		of, k = v, next
	}
	whole := n.value == math.Trunc(n.value) // "time per iteration (ms): 86.5" is no step
	switch kind {
	case countStep:
		if (!isSet(f.step) || f.index) && whole { // not the number in front of "0 | step 5"
			f.step, f.stepOf, f.index = n.value, of, false
			f.place = isSet(of)
			f.share, f.tick = s.share(k)
		}
	case countGlobal:
		if f.step != n.value && whole {
			f.step, f.stepOf = n.value, of
			f.place = f.place || isSet(of)
			f.whole = true
		}
	case countBatch:
		if (!isSet(f.n) || f.weak) && whole {
			f.n, f.of, f.weak = n.value, of, false
			f.place = isSet(of)
		}
	case countPercent:
		if n.percent && n.value <= 100 {
			f.percent = n.value
		} else if isSet(of) && !isSet(f.n) {
			f.n, f.of, f.place = n.value, of, true
		}
	case countEpisode:
		if whole {
			f.episode, f.episodes = n.value, of
		}
	case countPlainTotal:
		f.plainTotal = n.value
	case countFold:
		f.fold = true
	case countTotal:
		f.total = n.value
	case countEpochs:
		f.epochs = n.value
	case countEpoch:
		if isSet(f.epoch) {
			break
		}
		f.epoch, f.whole = n.value, f.whole || isSet(f.step) || isSet(f.n) && f.shape == shapePlain
		if isSet(of) {
			f.epochs = of
		}
		at := k // "epoch 001: 100 / 1000 loss=…", "Epoch 1, 100/1000; ", "epoch 001  100 / 1000 "
		if c := s.sign(at); c == ':' || c == ',' {
			at++
		}
		if v, next, ok := s.fraction(at + 1); s.integer(at) && !isSet(f.n) && ok && v > 0 && s.at(at).value <= v && (s.at(next).gap || s.sign(next) == ';') {
			f.n, f.of, k = s.at(at).value, v, next
		}
	}
	return k
}

// nameFirst reads a value with counters between it and its name, as in "Training loss
// (for one batch) at step 200: 0.5" and "loss in epoch 1 iteration 45: 1.38". The last
// counter is token i, what stands behind it begins at token k.
func (p *Parser) nameFirst(i, k int, w *words) {
	s := &p.scan
	is := equalFold(s.word(k), "is")
	n, _, ok := s.value(k + 1)
	if s.sign(k) != ':' && !is || !ok || !n.decimal {
		return
	}
	for s.integer(i-1) && counts(s.word(i-2)) != countNothing { // of another counter
		i -= 2
	}
	switch i--; string(s.word(i)) {
	case "at", "after", "in", "for", "on":
	default:
		return
	}
	if i--; s.sign(i) == ')' {
		for end := i; i > end-maxUnit && s.sign(i) != '('; i-- {
		}
		i--
	}
	name := s.word(i)
	if name == nil {
		return
	}
	qualified := name
	if isQualifier(s.beside(i)) {
		qualified = s.text(i-1, i)
	}
	if c, wanted := p.candidate(name, qualified, w, true); wanted {
		c.value = n.value
		p.found.add(c)
	}
}

// scanNumber reads a number without a name: a percentage, the position in a bar, a
// fraction in brackets, or nothing of interest. It returns the next token.
func (p *Parser) scanNumber(i int, take bool) int {
	s, f := &p.scan, &p.found
	t := &s.tokens[i]
	if take && t.decimal {
		if k := p.valueFirst(i); k > 0 {
			return k
		}
	}
	first := i == 0
	follows := s.sign(i + 1)
	switch {
	case t.percent:
		return p.percentage(i)
	case s.word(i+1) != nil && !s.tokens[i+1].gap && !t.clean: // ESPnet's "5epoch:"
		return p.count(counts(s.word(i+1)), *t, i+2)
	case !t.clean:
		if hasFold(s.line[t.to:], "it [") && s.at(i+2).kind == tokenNumber && !s.at(i+2).gap {
			// tqdm without a total: "10it [00:01, 9.51it/s, loss=0.5]"
			f.shape, f.n, f.units, f.named = shapeBar, t.value, true, !first
		}
	case !s.integer(i):
	case follows == '/' || equalFold(s.word(i+1), "of"):
		return p.position(i)
	case first && follows == '|' && s.tokens[i+1].gap && s.at(i+2).gap: // "12 | loss 0.5 |"
		f.step, f.index = t.value, true
	case first && follows == ':' && !s.tokens[i+1].gap && s.at(i+2).gap: // CatBoost, Darknet: "12:  learn: 0.5"
		f.step, f.index = t.value, true
	case first && !isSet(f.step): // "140 (0.47%)  21.9 ms"
		if percent, tick := s.share(i + 1); isSet(percent) {
			f.step, f.share, f.tick = t.value, percent, tick
		}
	case follows == ',' && s.sign(i-1) == ']' && s.word(i+2) != nil && s.sign(i+3) == '=' && !isSet(f.step), // "[INFO] 20, loss=0.5"
		follows == ':' && s.sign(i-1) == '-' && s.sign(i-2) == ']' && s.word(i+2) != nil && !isSet(f.step): // "[INFO] - 20: loss 0.5"
		f.step = t.value
	case i == 1 && s.sign(0) == '<' && follows == '>': // "<10> LL/token: -9.5"
		f.step = t.value
	case s.sign(i-1) != '[' || t.gap:
	case follows == '|' && i == 1: // "[12 | 25.5] loss=0.5"
		f.step = t.value
	case follows == ']' && (i == 1 || p.behindSource(i-1)): // XGBoost and LightGBM: "[10]\ttrain-rmse:0.5"
		if s.at(i+2).gap && !isSet(f.step) {
			f.step = t.value
		}
	case follows == ',' && s.at(i+2).kind == tokenNumber && s.tokens[i+2].decimal && s.ends(i+4): // VITS: "[4200, 9.97e-05]"
		f.step = t.value
	case follows == ',' && i == 1 && s.integer(i+2) && s.sign(i+3) == ']': // PyTorch's tutorial: "[1,  2000] loss: 2.173"
		f.epoch, f.n = t.value, s.tokens[i+2].value
		return i + 4
	}
	return i + 1
}

// behindSource reports whether the token at i stands behind "file.py:48] ", as JAX
// libraries log before a step in brackets.
func (p *Parser) behindSource(i int) bool {
	s := &p.scan
	return s.sign(i-1) == ']' && s.tokens[i].from == s.tokens[i-1].to+1 && s.at(i-2).kind == tokenNumber
}

// behindBar reports whether the number at token i is the first behind a drawn bar.
func (s *scan) behindBar(i int) bool {
	for i--; s.sign(i) == '(' || s.sign(i) == '[' || s.sign(i) == 0x80; i-- {
	}
	return s.at(i).kind == tokenBar
}

// valueFirst reads a value before its name, as in Darknet's "680.25 avg loss, 0.001
// rate,". It returns the next token, or 0.
func (p *Parser) valueFirst(i int) int {
	s := &p.scan
	t, k := s.tokens[i], i+1
	if before := s.sign(i - 1); !t.clean || !p.found.index && before != ',' && before != '|' && heldOut(s.word(i-1)) == 0 {
		return 0
	}
	for s.word(k) != nil && s.tokens[k].gap {
		k++
	}
	if k == i+1 || !s.ends(k) && s.sign(k) != ',' && s.sign(k) != '|' {
		return 0
	}
	name := s.text(i+1, k-1)
	c, wanted := p.candidate(s.word(k-1), name, &words{}, true)
	if !wanted || len(name) > maxName {
		return 0
	}
	c.value = t.value
	p.found.add(c)
	if s.integer(0) && s.at(1).kind == tokenNumber { // tinygrad: "12 87.27 s run, 11.09 loss,"
		p.found.step = s.tokens[0].value
	}
	return k
}

// percentage reads a bar from its percentage on: tqdm's " 10%|█ | 10/100 [00:01<…",
// without the drawing "50% 1/2 [", or a percentage behind the drawing.
func (p *Parser) percentage(i int) int {
	s, f := &p.scan, &p.found
	t, k := &s.tokens[i], i+1
	if isSet(f.n) || isSet(f.step) {
		return k
	}
	behind := s.behindBar(i)
	if s.at(k).kind == tokenBar {
		k++
	}
	open := s.sign(k)
	if open == '(' || open == '[' && behind {
		k++
	}
	n, slash, of := s.at(k), s.sign(k+1) == '/', s.at(k+2)
	total, next, ok := of.value, k+3, slash && of.kind == tokenNumber
	if !slash {
		total, next, ok = s.fraction(k + 1)
	}
	ok = ok && n.kind == tokenNumber && total > 0 && n.value >= 0
	switch {
	case ok && s.sign(next) == '[' && open != '(' && s.tokens[next].from > 0:
		f.whole = hasFold(bytes.TrimLeft(s.line, " "), "step") // Steps: 10%|█ | 10/100
		f.shape, f.n, f.of, f.named, f.barAt = shapeBar, n.value, total, i > 0, int(t.from)
		f.units = f.rate(s.line[s.at(next).from:])
		return next + 1
	case ok && open == '(' && n.value <= total && s.sign(next) == ')' && s.at(next+1).kind == tokenBar: // " 30% (240 of 800) |######   |"
		f.shape, f.n, f.of, f.named, f.units, f.barAt = shapeBar, n.value, total, i > 0, true, int(t.from)
		return next + 2
	case (behind || s.at(i+1).kind == tokenBar) && t.value <= 100:
		f.shape, f.percent, f.barAt, f.named = shapeBar, t.value, int(t.from), true
		f.rate(s.line[t.to:])
		if ok && n.value <= total && !n.decimal {
			f.n, f.of, f.units = n.value, total, true
			return next
		}
	}
	return i + 1
}

// rate reads the speed behind a bar, and reports whether it is one of iterations.
func (f *findings) rate(tail []byte) bool {
	tail = tail[:min(len(tail), maxRate)]
	units := bytes.Contains(tail, []byte("it/s")) || bytes.Contains(tail, []byte("s/it"))
	f.foreign = !units && (bytes.Contains(tail, []byte("B/s")) || bytes.Contains(tail, []byte("examples/s")))
	return units
}

// position reads the fraction at token i if it is a position: Keras' at the start of the
// line, in brackets, or after a drawn bar.
func (p *Parser) position(i int) int {
	s, f := &p.scan, &p.found
	t, first := &s.tokens[i], i == 0
	if isSet(f.n) {
		return i + 1
	}
	if first && equalFold(s.word(i+2), "unknown") { // Keras without a length
		f.shape, f.n = shapeKeras, t.value
		return i + 3
	}
	of, k, ok := s.fraction(i + 1)
	if !ok || of <= 0 || t.value > of+1 {
		return i + 1
	}
	if unit := counts(s.word(k)); unit == countBatch || unit == countStep { // 200/2983 batches
		f.n, f.of = t.value, of
		return k
	}
	if first && equalFold(s.word(k), "of") && counts(s.word(k+1)) == countEpoch { // 30/42 of epoch 2/30
		f.n, f.of = t.value, of
		return k
	}
	if s.behindBar(i) || s.line[t.to-1] == 't' || s.at(0).kind == tokenBar && s.ends(k) {
		f.shape, f.n, f.of = shapeBar, t.value, of
		f.named, f.units, f.barAt = true, true, int(t.from)
		f.rate(s.line[s.after(k):])
		return k
	}
	c := s.sign(k)
	if open := s.sign(i - 1); open == '[' || open == '(' && s.sign(i-2) == ']' { // not of "45 % (450/1000)"
		// Not the date of detectron2's lines: "[05/20 18:13:49 d2.utils]".
		if c != ']' && c != '(' && (open != '(' || c != ')') {
			return i + 1
		}
		f.n, f.of, f.weak = t.value, of, true
		if c == ']' && s.sign(k+1) == '[' && !s.tokens[k+1].gap && !isSet(f.epoch) && s.integer(k+2) { // [1/300][50/1251]
			if v, next, ok := s.fraction(k + 3); ok && v > 0 && s.tokens[k+2].value <= v+1 {
				f.epoch, f.epochs, f.n, f.of = t.value, of, s.tokens[k+2].value, v
				return next
			}
		}
		return k
	}
	if !first || s.ends(k+1) && s.at(k).kind != tokenBar {
		return i + 1
	}
	switch gap := s.tokens[k].gap; {
	case c == '(' || c == '=' || c == ',' || c == ':' && s.at(k+1).gap: // char-rnn: "12/600 (epoch 0), loss = 0.5"
		f.n, f.of = t.value, of
		return k
	case !gap:
		return i + 1
	case s.tokens[k].kind == tokenBar, c == '[' && (s.sign(k+1) == '=' || s.sign(k+1) == '>' || s.sign(k+1) == '.'):
	case c == '-' && s.at(k+1).gap && (s.at(k+1).kind == tokenNumber || hasFold(s.word(k+1), "e")):
	default:
		return i + 1
	}
	f.shape, f.n, f.of = shapeKeras, t.value, of
	return k
}
