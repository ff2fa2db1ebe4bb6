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
	maxBar        = 512     // bytes between a bar's delimiters
	minDrawn      = 10      // the same, of one without a percentage before it
	maxStep       = 1 << 53 // largest exact integer
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
	message       []byte  // text within a dict, as structured logs have it
	record        []byte  // name of a dict with a name and a value, such as {"name": "loss", "value": 3.1}
	recorded      number  // its value, if end > 0
	barAt         int     // where the number of a bar or place stands in the line
	foreign       bool    // a bar that counts bytes or examples
	index         bool    // the line begins with its step: "12: ", "12 | "
	fold          bool    // one of several trainings
	whole         bool    // the step precedes the epoch, so it counts across epochs
	place         bool    // a step or batch had a total
	heldOut       bool    // the line concerns held-out data
	named         bool    // a bar after a word: its count need not be the training's
	units         bool    // a bar that counts iterations, not bytes or examples
	summary       bool    // a trainer's summary at its end
	notNumber     bool    // a metric's name without a number
}

func (f *findings) reset() {
	f.shape, f.ncands = shapePlain, 0
	f.index, f.whole, f.place, f.heldOut, f.named, f.units, f.summary, f.notNumber = false, false, false, false, false, false, false, false
	f.step, f.stepOf, f.total, f.epoch, f.epochs, f.n, f.of = unset, unset, unset, unset, unset, unset, unset
	f.plainTotal, f.lr, f.share, f.percent = unset, unset, unset, unset
	f.message, f.record, f.recorded = nil, nil, number{}
	f.barAt, f.foreign, f.fold = 0, false, false
}

// usePercent makes the per cent done the step, if the line has no other.
func (f *findings) usePercent() {
	if isSet(f.percent) && !isSet(f.step) && !isSet(f.epoch) && !isSet(f.n) {
		f.n, f.of, f.whole = f.percent, 100, true
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
		"current_iter", "current_iteration", "cur_iter", "steps_completed":
		return countStep
	case "global_step", "globalstep", "train/global_step", "trainer/global_step", "num_updates", "num_update",
		"nupdates", "total_train_updates", "total_timesteps", "num_timesteps", "env_step", "env_steps":
		return countGlobal
	case "batch", "batch_idx", "minibatch", "batch_id", "batches", "mb":
		return countBatch
	case "total_steps", "max_steps", "num_steps", "total_step", "max_step", "steps_total", "total_iters",
		"max_iters", "max_iter", "num_iters", "total_iterations", "num_iterations", "max_iterations",
		"num_training_steps", "num_train_steps", "max_train_steps", "total_updates", "max_update":
		return countTotal
	case "total":
		return countPlainTotal
	case "epoch", "ep", "pass", "epoch_num", "current_epoch", "train/epoch":
		return countEpoch
	case "epochs", "num_epochs", "max_epochs", "total_epochs", "n_epochs", "num_train_epochs", "max_epoch":
		return countEpochs
	case "progress":
		return countPercent
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

// afterKey returns the start of the value of the name that ends at b[j]. strong means a
// colon or equals sign in between, list a bracket.
func afterKey(b []byte, j int) (at int, strong, list bool) {
	k := j
	if k < len(b) && (b[k] == '"' || b[k] == '\'') {
		k++
	}
	for k < len(b) && isSpace(b[k]) {
		k++
	}
	if k < len(b) && (b[k] == '(' || b[k] == '[') { // a unit: elapsed time (ms): 12.5, loss (avg): 0.5, loss [1-250]: 0.5
		e := bytes.IndexAny(b[k:min(len(b), k+16)], ")]")
		if e > 0 && (b[k] == '(' || bytes.IndexByte(b[k:k+e], '-') > 0) {
			m := k + e + 1
			for m < len(b) && isSpace(b[m]) {
				m++
			}
			if m < len(b) && (b[m] == ':' || b[m] == '=' || b[m] == '[' && b[k] == '(') {
				k = m
			}
		}
	}
	if k < len(b) && (b[k] == ':' || b[k] == '=') {
		strong = true
		k++
		for k < len(b) && (b[k] == '>' || b[k] == ':') { // =>, :::
			k++
		}
		for k < len(b) && isSpace(b[k]) {
			k++
		}
	} else if k == j {
		if k >= len(b) || b[k] != '[' {
			return k, false, false
		}
	}
	switch {
	case k >= len(b):
	case b[k] == '[':
		list = true
		for k++; k < len(b) && isSpace(b[k]); k++ {
		}
	case b[k] == '#': // Epoch #1
		k++
	case !strong && k > j && b[k] == '-' && k+2 < len(b) && b[k+1] == ' ' && isDigit(b[k+2]): // dice_loss - 0.33
		k += 2
	case !strong && hasFold(b[k:], "is "): // the loss is 0.5
		for k += 3; k < len(b) && isSpace(b[k]); k++ {
		}
	}
	return k, strong, list
}

// fraction reads the rest of 10/100 or "10 of 100" after the 10, which ends at b[i].
func fraction(b []byte, i int) (of float64, end int, ok bool) {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	switch {
	case i < len(b) && b[i] == '/':
		i++
	case i < len(b) && b[i] == 'o' && hasFold(b[i:], "of "):
		i += 3
	default:
		return 0, 0, false
	}
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	if i >= len(b) || !isDigit(b[i]) {
		return 0, 0, false
	}
	n, ok := parseNumber(b, i)
	if ok && b[n.end-1] == '.' { // "step 10/600."
		n.end--
		n.decimal = false
	}
	if !ok || n.decimal {
		return 0, 0, false
	}
	n = thousands(b, n)
	if n.end < len(b) && (b[n.end] == '/' || b[n.end] == '.' && n.end+1 < len(b) && isDigit(b[n.end+1])) {
		return 0, 0, false // a date or a path
	}
	return n.value, n.end, true
}

// thousands extends a counter such as 1,500, as printed by Hugging Face.
func thousands(b []byte, n number) number {
	if n.decimal || n.value < 1 || n.value >= 1000 {
		return n
	}
	for n.end+3 < len(b) && b[n.end] == ',' && isDigit(b[n.end+1]) && isDigit(b[n.end+2]) && isDigit(b[n.end+3]) &&
		(n.end+4 >= len(b) || !isWord(b[n.end+4])) {
		v := float64(b[n.end+1]-'0')*100 + float64(b[n.end+2]-'0')*10 + float64(b[n.end+3]-'0')
		n.value, n.end = n.value*1000+v, n.end+4
	}
	return n
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

// scanText reads the pairs, counters and bars of a line in one pass, without
// allocating. With take false it reads counters only.
func (p *Parser) scanText(b []byte, take bool) {
	start := 0
	for start < len(b) && isSpace(b[start]) {
		start++
	}
	var (
		w             words
		prev, prevEnd = -1, -1
		glyph         = -1 // end of the last piece of a drawn bar
	)
	for i := start; i < len(b); {
		c := b[i]
		switch {
		case class[c]&classLetter != 0:
			from := i
			joined := false
			for {
				for i < len(b) && class[b[i]]&(classLetter|classDigit) != 0 {
					i++
				}
				if i+1 < len(b) && class[b[i]]&classJoin != 0 &&
					(isLetter(b[i+1]) || b[i] == '@' && isDigit(b[i+1])) {
					i++
					joined = true
					continue
				}
				break
			}
			name := b[from:i]
			w.before, w.beforeEnd = prev, prevEnd
			if i+2 < len(b) && b[i] == '\'' && b[i+1] == 's' && b[i+2] == ' ' { // LightGBM: valid_0's l2
				i += 2
			}
			prev, prevEnd = from, i
			if !joined {
				if h := heldOut(name); h != 0 {
					w.context = nil
					if h > 0 {
						w.context = name
						p.found.heldOut = true
					}
				} else if isBest(name) {
					w.best = name
				}
			}
			if i >= len(b) {
				break
			}
			// Prose: the next thing is another word. nan, inf and tensor(…) are values
			// that begin with letters.
			next := b[i]
			if class[next]&classSpace != 0 && i+1 < len(b) {
				if n := b[i+1]; class[n]&classLetter != 0 && n|0x20 != 'n' && n|0x20 != 'i' && (n != 't' || !hasFold(b[i+1:], "tensor(")) {
					continue
				}
			} else if class[next]&classSpace == 0 {
				switch next {
				case ':', '=', '"', '\'', '[', '(':
				case '>': // "<loss>=7.2"
					if from == 0 || b[from-1] != '<' {
						continue
					}
				case '.':
					i = p.abbreviated(b, from, i)
					continue
				default:
					continue
				}
			}
			if w.before >= 0 && (w.beforeEnd+1 != from || b[w.beforeEnd] != ' ') {
				w.before = -1
			}
			w.from, w.end = from, i
			i = p.pair(b, &w, take)

		case class[c]&classDigit != 0:
			i = p.bareNumber(b, start, i, glyph, take)
			prev = -1

		case c == 0xE2 && i+2 < len(b) && (b[i+1] == 0x94 || b[i+1] == 0x95): // ━ and similar
			i += 3
			glyph = i
			prev = -1

		default:
			if c == '|' || c == '[' {
				if e := drawn(b, i); e > 0 {
					i, glyph, prev = e, e, -1
					break
				}
			}
			if class[c]&classBreak != 0 {
				w.best = nil
			}
			i++
		}
	}
}

// drawn returns the end of a bar such as "[====>    ]" or "|███   |" at b[i], or 0.
func drawn(b []byte, i int) int {
	closing := b[i]
	if closing == '[' {
		closing = ']'
	}
	from, drawing := i+1, false
	for i = from; i < len(b) && i < from+maxBar && b[i] != closing; i++ {
		switch c := b[i]; {
		case c == '#' || c == '=' || c == '-' || c == 0xE2 || c&0xC0 == 0x80: // or a block, ━ and similar
			drawing = true
		case c != ' ' && c != '>' && c != '.':
			return 0
		}
	}
	if !drawing || i-from < minDrawn || i == len(b) || b[i] != closing {
		return 0
	}
	return i + 1
}

// behindBar reports whether the number at b[i] is the first behind a drawn bar, which
// ends at glyph.
func behindBar(b []byte, i, glyph int) bool {
	if glyph < 0 {
		return false
	}
	for k := i - 1; k >= glyph; k-- {
		if c := b[k]; !isSpace(c) && c != '(' && c != '[' && c < 0x80 {
			return false
		}
	}
	return true
}

// words is the position of a name, b[from:end], the word directly before it (before is
// −1 if none), and the words that qualify its value.
type words struct {
	from, end         int
	before, beforeEnd int
	context, best     []byte // the last one about held-out data, and the one that marks a running optimum
	subject           []byte // a loss without a value, of which parts follow
}

// abbreviated reads a counter whose name b[from:end] ends in a full stop, as in
// Marian's "Ep. 1 : Up. 100 :". It returns where to continue.
func (p *Parser) abbreviated(b []byte, from, end int) int {
	if end+2 >= len(b) || b[end+1] != ' ' || !isDigit(b[end+2]) {
		return end
	}
	kind := counts(b[from:end])
	if equalFold(b[from:end], "up") {
		kind = countStep
	}
	n, ok := parseValue(b, end+2)
	if !ok || n.decimal || kind != countStep && kind != countEpoch && kind != countBatch {
		return end
	}
	return p.count(b, kind, n)
}

func (p *Parser) pair(b []byte, w *words, take bool) int {
	from, end, before, beforeEnd := w.from, w.end, w.before, w.beforeEnd
	key := end
	if b[end] == '>' {
		key++
	}
	at, strong, list := afterKey(b, key)
	if at >= len(b) {
		return end
	}
	f := &p.found
	name := b[from:end]
	n, ok := parseValue(b, at)
	if !ok && n.end > 0 && b[n.end] == 'K' { // LeRobot: step:12K
		if kind := counts(name); kind == countStep || kind == countGlobal {
			n = scaled(b, n)
			ok = ends(b, n.end)
		}
	}
	if !ok {
		if take && strong && p.wantsName(name) {
			f.notNumber = true
		}
		if take && b[at] == '(' && classify(name, false, false) == rankLoss {
			w.subject = name
		}
		return end
	}

	if b[n.end-1] == '%' && n.end < len(b) && b[n.end] == '|' {
		return end // "Steps:  10%|█": the name is the bar's
	}
	kind := p.counter(name)
	if w.subject != nil && strong && n.decimal && isQualifier(name) { // "Loss (name: value) total: 7.2"
		if c, wanted := p.candidate(w.subject, w.subject, w, true); wanted {
			c.value = n.value
			f.add(c)
		}
		return n.end
	}
	if before >= 0 && (kind == countStep || len(name) == 4) {
		switch w := b[before:beforeEnd]; {
		case kind == countNothing && equalFold(name, "rate") && equalFold(w, "learning"):
			kind = countLR
		case kind == countStep && equalFold(w, "optimization"):
			kind = countTotal // Total optimization steps = 1,500
		case kind == countStep && equalFold(w, "episode"):
			kind = countNothing // the length of the episode
		}
	}
	switch {
	case kind == countNothing:
	case kind == countLR:
		p.found.lr = n.value
	case kind == countEpoch && b[n.end-1] == '%': // StarSpace: "Epoch: 10.0%"
		return p.count(b, countPercent, n)
	case kind == countPlainTotal && (before >= 0 || !strong): // memory total: 16384
	case (strong || list || !n.decimal) && n.value >= 0 && n.value < maxStep && w.best == nil:
		if take && before >= 0 && !strong && (equalFold(b[before:beforeEnd], "at") || equalFold(b[before:beforeEnd], "after")) {
			p.nameFirst(b, before, n.end, w)
		}
		if !f.place {
			f.barAt = end
		}
		n.end = p.count(b, kind, n)
		if kind == countEpoch && before >= 0 && equalFold(b[before:beforeEnd], "of") {
			f.whole = false // "it 90/120 of epoch 1"
		}
		return n.end
	}
	if equalFold(name, "train") && strong && !n.decimal && f.shape == shapePlain {
		// timm: "Train: 0 [ 50/1251 ( 4%)]", OpenPCDet: "Train: 1/3 ( 33%) [ 50/1251",
		// Swin: "Train: [0/300][50/1251]"
		of, k, _ := fraction(b, n.end)
		k = max(k, n.end)
		if percent := bytes.TrimLeft(b[k:], " "); len(percent) > 0 && percent[0] == '(' {
			k += bytes.IndexByte(b[k:], ')') + 1
		}
		if rest := bytes.TrimLeft(b[k:], " ]"); len(rest) > 0 && rest[0] == '[' {
			f.epoch = n.value
			if of > 0 {
				f.epochs = of
			}
			return k
		}
	}
	if take && !strong && !n.decimal && n.end+1 < len(b) && b[n.end] == ' ' && isDigit(b[n.end+1]) && p.wantsName(name) {
		if v, ok := parseValue(b, n.end+1); ok && v.decimal && !isSet(f.step) { // Tacotron 2: "Train loss 12 0.5"
			f.step, n = n.value, v
		}
	}
	if !n.decimal && n.end+1 < len(b) && b[n.end] == ',' && isDigit(b[n.end+1]) { // 0,5 or 1,234
		f.notNumber = f.notNumber || take && p.wantsName(name)
		return n.end
	}
	if !take || !(strong || n.decimal) || list && n.end < len(b) && b[n.end] == ',' { // not of a list of several
		return end
	}
	if before >= 0 {
		if w := b[before:beforeEnd]; equalFold(w, "packet") || equalFold(w, "stop") || equalFold(w, "time") {
			return n.end
		}
	}
	value := n.value
	if of, e, isFraction := fraction(b, n.end); isFraction && of > 0 && !n.decimal {
		value, n.end = value/of, e // Accuracy: 9913/10000
	}

	// Names of two words: "train loss", "val loss", "loss train", LightGBM's "valid_0's
	// l2", "policy loss".
	qualified := name
	if before >= 0 {
		if w := b[before:beforeEnd]; isQualifier(w) || bytes.HasSuffix(w, []byte("'s")) ||
			strong && isQualifier(name) && classify(w, false, false) != rankNone ||
			equalFold(name, "loss") && (strong && !isFiller(w) || classify(b[before:end], false, true) == rankPoor) {
			qualified = b[before:end]
		}
	}
	if f.index && strong && n.decimal && f.ncands == 0 && p.metric == "" && (equalFold(name, "learn") || equalFold(name, "train")) {
		// CatBoost names only the data: "12: learn: 0.5 test: 0.6"
		f.add(candidate{name: name, value: value, rank: rankFalling})
		return n.end
	}
	if before >= 0 && p.metric == "" && (equalFold(b[before:beforeEnd], "init") || equalFold(b[before:beforeEnd], "initial")) ||
		from > 1 && string(b[from-2:from]) == "::" {
		return n.end // before the training; a function
	}
	if c, wanted := p.candidate(name, qualified, w, n.decimal); wanted {
		c.value = value
		f.add(c)
	} else if p.explain && c.rank == rankNone {
		p.noteName(qualified)
	}
	return n.end
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

func (p *Parser) count(b []byte, kind counter, n number) int {
	f := &p.found
	if kind != countEpoch && kind != countPercent {
		n = thousands(b, n)
	}
	of, end := unset, n.end
	if v, e, ok := fraction(b, n.end); ok && v > 0 && !n.decimal && n.value <= v+1 {
		of, end = v, e
	}
	whole := n.value == math.Trunc(n.value) // "time per iteration (ms): 86.5" is no step
	switch kind {
	case countStep:
		if (!isSet(f.step) || f.index) && whole { // not the number in front of "0 | step 5"
			f.step, f.stepOf, f.index = n.value, of, false
			f.place = isSet(of)
			f.share, f.tick = share(b, end)
		}
	case countGlobal:
		if f.step != n.value && whole {
			f.step, f.stepOf = n.value, of
			f.place = f.place || isSet(of)
			f.whole = true
		}
	case countBatch:
		if !isSet(f.n) && whole {
			f.n, f.of = n.value, of
			f.place = isSet(of)
		}
	case countPercent:
		if b[n.end-1] == '%' && n.value <= 100 {
			f.percent = n.value
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
		// fairseq: "epoch 001: 100 / 1000 loss=…"
		k := end
		if k < len(b) && b[k] == ':' {
			for k++; k < len(b) && isSpace(b[k]); k++ {
			}
			if k < len(b) && isDigit(b[k]) {
				if m, ok := parseNumber(b, k); ok && !m.decimal {
					if v, e, ok := fraction(b, m.end); ok && v > 0 && m.value <= v && e < len(b) && isSpace(b[e]) && !isSet(f.n) {
						f.n, f.of, end = m.value, v, e
					}
				}
			}
		}
	}
	return end
}

// share reads "(35.0%)" after a step; tick is the unit of its last digit.
func share(b []byte, i int) (percent, tick float64) {
	for i < len(b) && b[i] == ' ' {
		i++
	}
	if i+1 >= len(b) || b[i] != '(' {
		return unset, 0
	}
	for i++; i < len(b) && b[i] == ' '; i++ {
	}
	n, ok := parseNumber(b, i)
	if !ok || n.end+1 >= len(b) || string(b[n.end:n.end+2]) != "%)" {
		return unset, 0
	}
	tick = 1
	if point := bytes.IndexByte(b[i:n.end], '.'); point >= 0 {
		tick = math.Pow10(point + 1 - (n.end - i))
	}
	return n.value, tick
}

// bareNumber reads a number without a name: the position in a bar, a fraction in
// brackets, or nothing of interest. It returns where to continue.
func (p *Parser) bareNumber(b []byte, start, i, glyph int, take bool) int {
	f := &p.found
	if f.index && take {
		if e := p.valueFirst(b, i); e > 0 {
			return e
		}
	}
	j := i
	for j < len(b) && isDigit(b[j]) {
		j++
	}
	if j < len(b) && j-i <= 15 {
		switch b[j] {
		case '%', '.':
			if behindBar(b, i, glyph) && !isSet(f.n) && !isSet(f.step) {
				if n, ok := parseNumber(b, i); ok && n.value <= 100 && n.end < len(b) && b[n.end] == '%' {
					f.shape, f.percent, f.barAt, f.named = shapeBar, n.value, i, true
					f.foreign = bytes.Contains(b[n.end:], []byte("B/s"))
					k := n.end + 1
					for k < len(b) && (isSpace(b[k]) || b[k] == '[' || b[k] == '(') {
						k++
					}
					m, ok := parseNumber(b, k)
					of, e, isFraction := fraction(b, m.end)
					if ok && isFraction && !m.decimal && m.value <= of && of > 0 {
						f.n, f.of, f.units = m.value, of, true
						return e
					}
					return n.end + 1
				}
			}
			if b[j] == '.' {
				break
			}
			if e, ok := p.percentBar(b, start, i, j); ok {
				return e
			}
		case '/', ' ':
			if i == start && j+2 < len(b) && b[j+1] == '|' && b[j+2] == ' ' { // "12 | loss 0.5 |"
				n, _ := parseNumber(b[:j], i)
				f.step, f.index = n.value, true
				return j + 2
			}
			if i == start+1 && b[start] == '[' && j+1 < len(b) && b[j+1] == '|' { // "[12 | 25.5] loss=0.5"
				n, _ := parseNumber(b[:j], i)
				f.step = n.value
				return j + 2
			}
			if e, ok := p.position(b, start, i, j, glyph); ok {
				return e
			}
			if i == start && !isSet(f.step) { // "140 (0.47%)  21.9 ms"
				if percent, tick := share(b, j); isSet(percent) {
					n, _ := parseNumber(b[:j], i)
					f.step, f.share, f.tick = n.value, percent, tick
				}
			}
		case 'i':
			// tqdm without a total: "10it [00:01, 9.51it/s, loss=0.5]"
			if j+4 < len(b) && string(b[j:j+4]) == "it [" && isDigit(b[j+4]) {
				n, _ := parseNumber(b[:j], i)
				f.shape, f.n, f.units = shapeBar, n.value, true
				f.named = i > start
				return j + 4
			}
		case ':':
			if i == start && j+1 < len(b) && isSpace(b[j+1]) { // CatBoost, Darknet: "12:  learn: 0.5"
				n, _ := parseNumber(b[:j], i)
				f.step, f.index = n.value, true
				return j + 1
			}
		case ']', ',':
			if i == start+1 && b[start] == '[' || b[j] == ']' && behindSource(b[start:i]) {
				n, _ := parseNumber(b[:j], i)
				if b[j] == ']' { // XGBoost and LightGBM: "[10]\ttrain-rmse:0.5"
					if j+1 < len(b) && isSpace(b[j+1]) && !isSet(f.step) {
						f.step = n.value
					}
					return j + 1
				}
				k := j + 1 // PyTorch's tutorial: "[1,  2000] loss: 2.173"
				for k < len(b) && isSpace(b[k]) {
					k++
				}
				if k < len(b) && isDigit(b[k]) {
					if m, ok := parseNumber(b, k); ok && !m.decimal && m.end < len(b) && b[m.end] == ']' {
						f.epoch, f.n = n.value, m.value
						return m.end + 1
					}
				}
			}
		}
	}
	// Skip the rest of 10:30:00.5, 2ms, 9.51it, 2025-01-01, but not of ESPnet's
	// "5epoch:train:376-750batch:".
	for j < len(b) {
		if c := b[j] | 0x20; (c == 'e' || c == 'b') && isDigit(b[j-1]) {
			k := j
			for k < len(b) && k < j+8 && isWord(b[k]) {
				k++
			}
			kind := counts(b[j:k])
			if (kind == countEpoch || kind == countBatch) && k < len(b) && b[k] == ':' {
				from := j - 1
				for from > i && isDigit(b[from-1]) {
					from--
				}
				if n, ok := parseNumber(b[:j], from); ok {
					p.count(b[:j], kind, n)
				}
				return k
			}
		}
		switch {
		case isWord(b[j]):
			j++
			continue
		case j+1 < len(b) && isDigit(b[j+1]):
			switch b[j] {
			case '.', ':', '-', '/', '%', '<':
				j += 2
				continue
			}
		}
		break
	}
	return j
}

// behindSource reports whether b ends in "file.py:48] [", as JAX libraries log before a
// step in brackets.
func behindSource(b []byte) bool {
	n := len(b)
	return n > 4 && string(b[n-3:]) == "] [" && isDigit(b[n-4])
}

// nameFirst reads a value with the step between it and its name, as in "Training loss
// (for one batch) at step 200: 0.5". "at" is at b[at], the step ends at b[end].
func (p *Parser) nameFirst(b []byte, at, end int, w *words) {
	k, strong, _ := afterKey(b, end)
	n, ok := parseValue(b, k)
	if !ok || !strong || !n.decimal {
		return
	}
	text := bytes.TrimRight(b[:at], " ")
	if open := bytes.LastIndexByte(text, '('); open > 0 && text[len(text)-1] == ')' {
		text = bytes.TrimRight(text[:open], " ")
	}
	name := text[bytes.LastIndexFunc(text, notLetter)+1:]
	qualified := name
	if rest := text[:len(text)-len(name)]; len(rest) > 1 && isLetter(rest[len(rest)-2]) {
		rest = rest[:len(rest)-1]
		if word := rest[bytes.LastIndexFunc(rest, notLetter)+1:]; isQualifier(word) {
			qualified = text[len(rest)-len(word):]
		}
	}
	if c, wanted := p.candidate(name, qualified, w, true); wanted && len(name) > 0 {
		c.value = n.value
		p.found.add(c)
	}
}

// valueFirst reads a value before its name, as in Darknet's "680.25 avg loss, 0.001
// rate,". It returns where to continue, or 0.
func (p *Parser) valueFirst(b []byte, i int) int {
	n, ok := parseNumber(b, i)
	if !ok || !n.decimal || n.end+1 >= len(b) || b[n.end] != ' ' || !isLetter(b[n.end+1]) {
		return 0
	}
	end := n.end + 1
	for end < len(b) && (isWord(b[end]) || b[end] == ' ') {
		end++
	}
	name := bytes.TrimRight(b[n.end+1:end], " ")
	if end < len(b) && b[end] != ',' || len(name) > maxName {
		return 0
	}
	last := name[bytes.LastIndexByte(name, ' ')+1:]
	c, wanted := p.candidate(last, name, &words{}, true)
	if !wanted {
		return 0
	}
	c.value = n.value
	p.found.add(c)
	return end
}

func wordAt(b []byte, i int) []byte {
	end := i
	for end < len(b) && end < i+12 && isLetter(b[end]) {
		end++
	}
	return b[i:end]
}

// percentBar reads a tqdm bar from its percentage on: " 10%|█ | 10/100 [00:01<…".
// Collectors that drop the drawing leave "50% 1/2 [".
func (p *Parser) percentBar(b []byte, start, i, j int) (end int, ok bool) {
	k := j + 1
	for k < len(b) && isSpace(b[k]) {
		k++
	}
	if k < len(b) && b[k] == '|' {
		e := bytes.IndexByte(b[k+1:min(len(b), k+1+maxBar)], '|')
		if e < 0 {
			return 0, false
		}
		k += e + 2
		for k < len(b) && isSpace(b[k]) {
			k++
		}
	}
	if k < len(b) && b[k] == '(' { // " 30% (240 of 800) |######   |"
		n, _ := parseNumber(b, k+1)
		of, e, ok := fraction(b, n.end)
		if !ok || of <= 0 || n.value > of || e+2 >= len(b) || string(b[e:e+3]) != ") |" || drawn(b, e+2) == 0 {
			return 0, false
		}
		f := &p.found
		f.shape, f.n, f.of, f.named, f.units, f.barAt = shapeBar, n.value, of, i > start, true, i
		return drawn(b, e+2), true
	}
	if k >= len(b) || !isDigit(b[k]) {
		return 0, false
	}
	n, ok := parseNumber(b, k)
	if !ok {
		return 0, false
	}
	n = scaled(b, n)
	m := n.end
	if m >= len(b) || b[m] != '/' {
		return 0, false
	}
	of, ok := parseNumber(b, m+1)
	if !ok {
		return 0, false
	}
	of = scaled(b, of)
	k = of.end
	for k < len(b) && isSpace(b[k]) {
		k++
	}
	if k >= len(b) || b[k] != '[' || !(of.value > 0) || !(n.value >= 0) {
		return 0, false
	}
	f := &p.found
	f.shape, f.n, f.of = shapeBar, n.value, of.value
	f.named = i > start
	f.whole = hasFold(b[start:], "step") // Steps: 10%|█ | 10/100
	tail := b[k:min(len(b), k+64)]
	f.units = bytes.Contains(tail, []byte("it/s")) || bytes.Contains(tail, []byte("s/it"))
	f.foreign = !f.units && (bytes.Contains(tail, []byte("B/s")) || bytes.Contains(tail, []byte("examples/s")))
	f.barAt = i
	return k + 1, true
}

// scaled applies the suffix of tqdm's unit_scale.
func scaled(b []byte, n number) number {
	if n.end >= len(b) {
		return n
	}
	switch b[n.end] {
	case 'k', 'K':
		n.value *= 1e3
	case 'M':
		n.value *= 1e6
	case 'G':
		n.value *= 1e9
	default:
		return n
	}
	n.value = math.Round(n.value)
	n.end++
	return n
}

// position reads the fraction b[i:j]/… if it is a position: Keras' at the start of the
// line, in brackets, or after a drawn bar.
func (p *Parser) position(b []byte, start, i, j, glyph int) (end int, ok bool) {
	f := &p.found
	n, ok := parseNumber(b[:j], i)
	if !ok || isSet(f.n) {
		return 0, false
	}
	if i == start && b[j] == '/' && hasFold(b[j+1:], "unknown") { // Keras without a length
		f.shape, f.n = shapeKeras, n.value
		return j + 8, true
	}
	of, e, ok := fraction(b, j)
	if !ok || of <= 0 || n.value > of+1 {
		return 0, false
	}
	if e+1 < len(b) && b[e] == ' ' && isLetter(b[e+1]) {
		if unit := counts(wordAt(b, e+1)); unit == countBatch || unit == countStep { // 200/2983 batches
			f.n, f.of = n.value, of
			return e, true
		}
	}
	if behindBar(b, i, glyph) {
		f.shape, f.n, f.of = shapeBar, n.value, of
		f.named, f.units, f.barAt = true, true, i
		f.foreign = bytes.Contains(b[e:], []byte("B/s"))
		return e, true
	}
	k := i - 1
	for k >= start && isSpace(b[k]) {
		k--
	}
	if k >= start && k >= i-8 && (b[k] == '[' || b[k] == '(' && k > start && b[k-1] == ']') { // not of "45 % (450/1000)"
		// Not the date of detectron2's lines: "[05/20 18:13:49 d2.utils]".
		m := e
		for m < len(b) && isSpace(b[m]) {
			m++
		}
		if m >= len(b) || b[m] != ']' && b[m] != '(' && (b[k] != '(' || b[m] != ')') {
			return 0, false
		}
		f.n, f.of = n.value, of
		if m+1 < len(b) && b[m] == ']' && b[m+1] == '[' && !isSet(f.epoch) { // [1/300][50/1251]
			if second, ok := parseNumber(b, m+2+len(b[m+2:])-len(bytes.TrimLeft(b[m+2:], " "))); ok && !second.decimal {
				if v, end, ok := fraction(b, second.end); ok && v > 0 && second.value <= v+1 {
					f.epoch, f.epochs, f.n, f.of = n.value, of, second.value, v
					return end, true
				}
			}
		}
		return e, true
	}
	if i != start {
		return 0, false
	}
	m := e
	for m < len(b) && isSpace(b[m]) {
		m++
	}
	if m+1 >= len(b) {
		return 0, false
	}
	switch c, d := b[m], b[m+1]; {
	case c == '(' || c == '=' || c == ',' || c == ':' && isSpace(d): // char-rnn: "12/600 (epoch 0), loss = 0.5"
		f.n, f.of = n.value, of
		return e, true
	case m == e:
		return 0, false
	case c == '[' && (d == '=' || d == '>' || d == '.'):
	case c == 0xE2 && (d == 0x94 || d == 0x95):
	case c == '-' && d == ' ' && m+2 < len(b) && (isDigit(b[m+2]) || b[m+2] == 'E'):
	default:
		return 0, false
	}
	f.shape, f.n, f.of = shapeKeras, n.value, of
	return e, true
}
