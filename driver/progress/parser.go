// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Report is one value of the metric or, without a metric (a step report), only a step.
type Report struct {
	Time   time.Time // when the line was read; zero from Parse
	Metric string    // name as printed; "" in a step report
	Value  float64   // possibly NaN or ±Inf, if training diverges; NaN in a step report
	Step   float64   // steps done; NaN = unknown
	Total  float64   // total steps; NaN = unknown
	LR     float64   // last printed learning rate; 0 = none
	// PerEpoch is the number of steps per epoch; 0 = unknown, 1 = the step is an epoch.
	PerEpoch float64
	Line     int64 // number of the line, from 1; 0 from Parse
	// Bar tells apart what counts in step reports: the words before the number, such as
	// "Training"; "" for the nameless bar.
	Bar string
}

// StepOnly reports whether the report has a step and no value.
func (r Report) StepOnly() bool { return r.Metric == "" }

// Thresholds for changing the series, in lines with any metric. A change restarts
// growth, so it must be worth it.
const (
	maxSeries     = 24
	young         = 3   // reports before which a better metric wins at once
	upgradeAfter  = 3   // occurrences of a better metric
	changeAfter   = 20  // lines without the current metric, for one at least as good
	changeYoung   = 4   // the same, while the current one has fewer than young reports
	downgrade     = 400 // lines without the current metric, for a worse one
	maxHysteresis = 6   // each change doubles the last two, this many times
)

// series is one metric in one shape of line.
type series struct {
	name   string // as reported
	key    string // without the word for held-out data
	shape  shape
	rank   rank
	first  float64
	count  int64 // lines with it
	recent int64 // since the current one was last seen
}

// Parser turns lines into reports. Its state is the chosen metric and the epochs of
// earlier lines. It is not safe for concurrent use.
type Parser struct {
	preset string
	metric string
	goal   string
	re     *regexp.Regexp
	group  struct{ value, step, total int }
	search bool // the scanner does not read the metric's name as one name

	scan   scan
	found  findings
	labels labels
	table  table
	above  []byte // the lines of a header before this one
	box    box
	bars   bars
	lr     float64
	best   float64       // last best value next to the metric; NaN if none
	course string        // the goal by these
	names  []byte        // of nested dicts, valid for one line
	path   [maxName]byte // of the enclosing dicts

	series  []*series
	current *series
	misses  int // consecutive lines with a metric, but not the current one
	changes int
	steps   steps
	last    string // metric of the last report

	stats   ParserStats
	explain bool
	seen    []NameCount // names with numbers that are no known metric
}

// ParserStats counts lines by result; the others sum to Lines.
type ParserStats struct {
	Lines     int64 // parsed, without blank lines
	Reports   int64 // with a report
	Noise     int64 // without a metric
	Other     int64 // with another metric only, or of a rank that is not followed
	NotNumber int64 // with the metric, but no number after it
	Shape     int64 // with a metric, but not of the preset's kind
	Eval      int64 // a Keras bar of an evaluation
}

// NewParser returns a parser, or the errors of Config.Validate.
func NewParser(c Config) (*Parser, error) {
	re, err := c.compile()
	if err != nil {
		return nil, err
	}
	p := &Parser{preset: c.Preset, metric: c.Metric, goal: c.Goal, re: re,
		names: make([]byte, 0, 2*maxCandidates*maxName)}
	if p.preset == "" {
		p.preset = PresetAuto
	}
	p.best = unset
	if re != nil {
		p.group.value, p.group.step, p.group.total = re.SubexpIndex("value"), re.SubexpIndex("step"), re.SubexpIndex("total")
		p.metric, _ = c.Declared()
		p.last = p.metric
	}
	p.search = p.metric != "" && strings.ContainsFunc(p.metric, func(r rune) bool {
		return r > 127 || !isWord(byte(r)) && r != '/' && r != '.'
	})
	return p, nil
}

// Metric returns the metric of the last report, else the configured one, else "".
func (p *Parser) Metric() string {
	if p.last != "" {
		return p.last
	}
	return p.metric
}

// Goal returns the configured or inferred goal; min (with a Note) if neither the name nor
// the best values next to it tell.
func (p *Parser) Goal() string {
	goal, _ := p.infer()
	return goal
}

func (p *Parser) infer() (goal string, known bool) {
	if p.goal != "" {
		return p.goal, true
	}
	goal, known = InferGoal(p.Metric())
	if !known && p.course != "" {
		return p.course, true
	}
	return goal, known
}

// Note reports that the goal is only assumed, or is "".
func (p *Parser) Note() string {
	m := p.Metric()
	if _, known := p.infer(); known || m == "" {
		return ""
	}
	return "the name \"" + m + "\" does not say whether it is to fall or to rise: min assumed, set goal to \"min\" or \"max\""
}

func (p *Parser) Stats() ParserStats { return p.stats }

// Parse parses a line, cleaned and without its end; ok means that it has a report. It
// keeps nothing of line, does not allocate for lines without a metric, and is linear in
// the line's length.
func (p *Parser) Parse(line []byte) (r Report, ok bool) {
	if len(line) == 0 {
		return Report{}, false
	}
	p.stats.Lines++
	p.scan.line = nil // tokens of another line may have stood in the same buffer
	if p.re != nil {
		return p.parsePattern(line)
	}
	index := p.labels.Index
	line, rank, open := p.labels.cut(&p.scan, line)
	if index && !p.labels.Index { // the steps were ranks
		p.steps.forgetSteps()
	}
	if rank < 0 {
		return p.parseText(line)
	}
	if !open && p.labels.skip(rank) {
		p.stats.Other++
		return Report{}, false
	}
	r, ok = p.parseText(line)
	if f := &p.found; ok && open && f.positioned() {
		p.labels.Label, p.labels.Own, open = true, true, false
	}
	again := false
	switch {
	case !ok || open:
	case !r.StepOnly():
		again = p.labels.reported(rank)
	case p.bars.From1 > 0 && rank >= p.bars.From1:
		again = true
	default:
		p.bars.From1 = rank + 1 // the metric may be another rank's
	}
	if again {
		p.stats.Reports--
		p.stats.Other++
		return Report{}, false
	}
	return r, ok
}

func (p *Parser) parseText(line []byte) (r Report, ok bool) {
	f := &p.found
	f.reset()
	p.names = p.names[:0]
	at := -1
	switch p.preset {
	case PresetAuto, PresetHuggingFace, PresetJSONL:
		at = dictStart(line)
	}
	if at >= 0 {
		if at > 0 {
			p.scanText(line[:at], false)
			if f.shape == shapeBar { // a bar that ran into the line
				if f.ncands == 0 {
					p.steps.bar(f)
				}
				f.n, f.of = unset, unset
			}
		}
		f.shape = shapeDict
		p.scanDict(line[at:])
		if f.ncands == 0 && len(f.message) > 0 {
			line, at = f.message, 0
			f.shape = shapePlain
			p.scanText(line, true)
			if !f.positioned() {
				f.ncands = 0 // a remark
			}
		}
		if f.ncands == 0 && len(f.record) > 0 && f.recorded.kind != tokenNone {
			p.entry(f.record, f.record, f.recorded, false)
		}
		f.substitute()
		settings := (isSet(f.epochs) || isSet(f.total)) && !f.positioned()
		if f.summary || settings {
			f.ncands = 0
		} else if f.ncands == 0 && at > 0 { // the text holds more than the dict after it
			f.reset()
			p.scanText(line[:at], true)
		}
	} else {
		p.scanText(line, true)
		f.substitute()
		if f.ncands == 0 && !f.notNumber {
			p.scanTable(line)
		}
	}
	if p.search && f.ncands == 0 {
		p.searchMetric(line)
	}
	if f.plainTotal >= f.step && f.plainTotal > 0 && !isSet(f.total) {
		f.total = f.plainTotal
	}
	p.steps.Again = p.steps.Again || f.fold
	if isSet(f.lr) {
		p.lr = f.lr
	}

	if f.ncands == 0 {
		p.noteContext(line)
		if r, ok := p.stepReport(line); ok {
			p.stats.Reports++
			return r, true
		}
		if f.notNumber {
			p.stats.NotNumber++
		} else {
			p.stats.Noise++
		}
		return Report{}, false
	}
	if !p.accepts(f) {
		p.noteContext(line)
		p.stats.Shape++
		return Report{}, false
	}
	if p.steps.evaluation(f) {
		p.stats.Eval++
		return Report{}, false
	}
	c := p.choose()
	if c == nil {
		p.noteContext(line)
		p.stats.Other++
		return Report{}, false
	}
	r = Report{Metric: p.current.name, Value: c.value, LR: p.lr}
	p.steps.lend(f)
	r.Step, r.Total = p.steps.next(f)
	r.PerEpoch = p.steps.Per
	switch {
	case p.best < f.best:
		p.course = GoalMax
	case p.best > f.best:
		p.course = GoalMin
	}
	p.best = f.best
	p.bars.Off = p.bars.Off || isSet(r.Step) && isSet(r.Total) && p.current.count >= young
	p.last = r.Metric
	p.stats.Reports++
	return r, true
}

func (p *Parser) accepts(f *findings) bool {
	switch p.preset {
	case PresetHuggingFace, PresetJSONL:
		return f.shape == shapeDict
	case PresetKeras:
		return f.shape == shapeKeras
	case PresetLightning:
		return f.shape == shapeBar && isSet(f.epoch)
	case PresetTQDM:
		return f.shape == shapeBar
	}
	return true
}

// noteContext handles a line without a report: a header with the epoch or step, a bar, or
// a step that may be that of the lines below.
func (p *Parser) noteContext(line []byte) {
	f := &p.found
	if isSet(f.step) || isSet(f.epoch) {
		p.scan.start(line, 0)
	}
	switch {
	case f.shape == shapeBar:
		if f.ncands == 0 {
			p.steps.bar(f)
		}
		if isSet(f.epoch) && f.ncands == 0 {
			p.steps.header(f)
		}
	case f.ncands > 0 || f.shape != shapePlain || f.heldOut:
	case f.place || f.share > 0, isSet(f.step) && p.scan.framed():
		p.steps.next(f) // the step of the lines below: "[step=10/600]"
		p.steps.Near1 = 0
	case isSet(f.epoch) && !isSet(f.step) && (len(line) <= 80 && p.scan.isEpochHeader() || p.scan.framed()):
		p.steps.header(f)
	case isSet(f.step) || isSet(f.epoch):
		p.steps.near(f)
	case isSet(f.epochs) || isSet(f.total):
		if isSet(f.epochs) {
			p.steps.Epochs = f.epochs
		}
		if isSet(f.total) {
			p.steps.Total = f.total
		}
	}
}

// isEpochHeader reports whether a line begins with the word Epoch or "Starting epoch",
// possibly after a rule or a time stamp without letters, or ends in "Epoch 1/10" or
// "training epoch: 1".
func (s *scan) isEpochHeader() bool {
	i := s.last()
	if s.sign(i-1) == '/' && equalFold(s.word(i-3), "epoch") {
		return true
	}
	if i--; s.sign(i) == ':' {
		i--
	}
	if equalFold(s.word(i), "epoch") && hasWord(s.word(i-1), "train", "start", "begin", "into") {
		return true
	}
	for i = 0; !s.ends(i); i++ {
		if w := s.word(i); w != nil {
			return hasFold(w, "epoch") || equalFold(w, "starting") && equalFold(s.word(i+1), "epoch")
		}
	}
	return false
}

// last returns the index of the last token.
func (s *scan) last() int {
	for s.lex() {
	}
	return len(s.tokens) - 1
}

// framed reports whether the line ends in a step or epoch within a rule or brackets, such
// as "──── Step 15104 ────", "[ROUND 3]" or "****** Running generation 3 ******".
func (s *scan) framed() bool {
	frame := func(i int) bool {
		t := s.at(i)
		return t.kind == tokenBar || t.kind == tokenSign && bytes.IndexByte([]byte("-=*#~[]\x80"), t.sign) >= 0
	}
	i := s.last()
	for ; frame(i); i-- {
	}
	if i == len(s.tokens)-1 || !s.integer(i) || counts(s.word(i-1)) == countNothing {
		return false
	}
	for i--; s.word(i) != nil; i-- {
	}
	return frame(i)
}

// choose returns the line's candidate of the current series, or changes the series; nil
// if there is nothing to report.
func (p *Parser) choose() *candidate {
	f := &p.found
	var mine *candidate // of the current series
	var best *candidate // of the best other series that qualifies
	var bestSeries *series
	var held *series // the best in the line, qualified or not
	var heldBy *candidate
	p.demote()
	for i := range f.cands[:f.ncands] {
		if p.current != nil && p.current.matches(&f.cands[i], f.shape) {
			mine = &f.cands[i]
			p.current.count++
			break
		}
	}
	for i := range f.cands[:f.ncands] {
		c := &f.cands[i]
		if mine != nil && c.rank >= p.current.rank && !p.explain {
			continue // cannot win
		}
		s := p.intern(c, f.shape)
		if s == nil || s == p.current {
			continue
		}
		s.count++
		s.recent++
		if s.rank == rankPoor && s.first < 0 && !hasWord([]byte(s.name), "best", "lowest") {
			continue // of a policy: it tells nothing
		}
		if held == nil || s.rank < held.rank {
			held, heldBy = s, c
		}
		if p.current != nil && s.rank < p.current.rank && (p.current.count < young || s.count >= upgradeAfter<<min(p.changes, maxHysteresis)) &&
			(bestSeries == nil || s.rank < bestSeries.rank) {
			best, bestSeries = c, s
		}
	}

	switch {
	case p.current == nil:
		if held == nil {
			return nil
		}
		p.switchTo(held)
		return heldBy
	case best != nil:
		p.switchTo(bestSeries)
		return best
	case mine != nil:
		if p.misses > 0 {
			p.misses = 0
			for _, s := range p.series {
				s.recent = 0
			}
		}
		return mine
	case held == nil:
		return nil
	}

	p.misses++
	limit := changeAfter
	switch {
	case held.rank > p.current.rank:
		limit = downgrade
	case p.current.count < young:
		limit = changeYoung
	}
	if p.misses >= limit<<min(p.changes, maxHysteresis) && held.recent >= int64(p.misses)/4 {
		p.switchTo(held)
		return heldBy
	}
	return nil
}

// demote ranks losses last if the training is for a reward: in reinforcement learning a
// loss need not fall.
func (p *Parser) demote() {
	f := &p.found
	rewarded := func(c candidate) bool { return c.rank == rankRising && isReward(c.name) }
	if slices.ContainsFunc(f.cands[:f.ncands], func(c candidate) bool { return hasWord(c.name, "acc") && !isReward(c.name) }) {
		return // a reward model is trained
	}
	if p.metric != "" || !slices.ContainsFunc(f.cands[:f.ncands], rewarded) && (p.current == nil || !isReward([]byte(p.current.key))) {
		return
	}
	for i := range f.cands[:f.ncands] {
		if c := &f.cands[i]; c.rank <= rankFalling {
			if s := p.intern(c, f.shape); s != nil {
				s.rank = rankPoor
			}
		}
	}
}

func (p *Parser) switchTo(s *series) {
	if p.current != nil {
		p.changes++
		p.steps.forgetPosition()
	}
	p.current = s
	p.misses = 0
	for _, s := range p.series {
		s.recent = 0
	}
}

// intern returns the series of a candidate, possibly a new one. A full table drops its
// rarest other series.
func (p *Parser) intern(c *candidate, shape shape) *series {
	for _, s := range p.series {
		if s.matches(c, shape) {
			return s
		}
	}
	s := &series{key: string(c.name), shape: shape, rank: c.rank, first: c.value}
	s.name = s.key
	if s.rank == rankPartLoss && s.first == 0 {
		s.rank = rankPoor // it cannot fall
	}
	if len(c.prefix) > 0 {
		s.name = string(c.prefix) + " " + s.key
	}
	if len(p.series) < maxSeries {
		p.series = append(p.series, s)
		return s
	}
	rarest := -1
	for i, t := range p.series {
		if t != p.current && (rarest < 0 || t.count < p.series[rarest].count) {
			rarest = i
		}
	}
	if p.series[rarest].count > 1 && p.series[rarest].recent > 0 && s.rank >= p.series[rarest].rank {
		p.series[rarest].recent-- // ages, so that the table is not blocked forever
		return nil
	}
	p.series[rarest] = s
	return s
}

func (s *series) matches(c *candidate, shape shape) bool {
	prefix := len(c.prefix)
	if prefix > 0 {
		prefix++ // and a space
	}
	return s.shape == shape && s.key == string(c.name) && len(s.name)-len(s.key) == prefix && s.name[:len(c.prefix)] == string(c.prefix)
}

// searchMetric finds a configured name with spaces, per cent signs or letters beyond
// ASCII.
func (p *Parser) searchMetric(line []byte) {
	s := &p.scan
	s.start(line, 0)
	for i := 0; !s.ends(i); i++ {
		from := int(s.at(i).from)
		end := from + len(p.metric)
		if end > len(line) || !equalFoldName(line[from:end], p.metric) || isBest(s.word(i-1)) { // a running optimum is no report
			continue
		}
		k := i + 1
		for s.after(k) < end {
			k++
		}
		if s.after(k) != end || s.extends(i-1, i) || s.extends(k, k) {
			continue // part of another name
		}
		at, strong, _ := s.valueOf(k - 1)
		n, _, ok := s.value(at)
		if !ok || n.counter {
			p.found.notNumber = true
		} else if strong || n.decimal {
			p.found.add(candidate{name: line[from:end], value: n.value})
			return
		}
	}
}

// extends reports whether the token at i belongs to the same word as its neighbour, at
// being the second of the two.
func (s *scan) extends(i, at int) bool {
	t := s.at(i)
	return !s.at(at).gap && (t.kind == tokenWord || t.sign == '/' || t.sign == '-')
}

func notLetter(r rune) bool { return r > 127 || !isLetter(byte(r)) }

func (p *Parser) parsePattern(line []byte) (Report, bool) {
	m := p.re.FindSubmatchIndex(line)
	if m == nil {
		p.stats.Noise++
		return Report{}, false
	}
	group := func(i int) (float64, bool) {
		if i < 0 || m[2*i] < 0 {
			return unset, false
		}
		text := bytes.TrimSpace(line[m[2*i]:m[2*i+1]])
		text = bytes.TrimSuffix(text, []byte("%"))
		if bytes.IndexByte(text, ',') >= 0 {
			text = bytes.ReplaceAll(text, []byte(","), nil)
		}
		n, ok := parseNumber(text, 0)
		if !ok || n.end != len(text) {
			return unset, false
		}
		return n.value, true
	}
	r := Report{Metric: p.metric, Step: unset, Total: unset}
	var ok bool
	if r.Value, ok = group(p.group.value); !ok {
		p.stats.NotNumber++
		return Report{}, false
	}
	p.found.reset()
	p.found.step, _ = group(p.group.step)
	p.found.total, _ = group(p.group.total)
	for _, v := range []*float64{&p.found.step, &p.found.total} {
		if !(*v >= 0 && *v < maxStep) {
			*v = unset
		}
	}
	// As printed: the expression defines the step.
	r.Step, r.Total = p.found.step, p.found.total
	if isSet(r.Total) {
		p.steps.Total = r.Total
	} else if p.steps.Total > 0 {
		r.Total = p.steps.Total
	}
	p.stats.Reports++
	return r, true
}

// State lets another parser continue. It is small and encodes as JSON.
type State struct {
	Metric string `json:"metric,omitempty"`
	Key    string `json:"key,omitempty"`
	Shape  uint8  `json:"shape,omitempty"`
	Rank   int8   `json:"rank,omitempty"`
	Count  int64  `json:"count,omitempty"`
	Header string `json:"header,omitempty"` // of a table whose rows may follow
	Box    string `json:"box,omitempty"`    // content of an open box
	Course string `json:"course,omitempty"` // the goal by the best values
	Steps  steps  `json:"steps"`
	Bars   bars   `json:"bars,omitzero"`
	Labels labels `json:"labels,omitzero"`
}

func (p *Parser) State() State {
	st := State{Metric: p.last, Course: p.course, Steps: p.steps, Labels: p.labels, Bars: p.bars, Header: string(p.table.header), Box: string(p.box)}
	if p.current != nil {
		st.Metric, st.Key, st.Shape, st.Rank, st.Count = p.current.name, p.current.key, uint8(p.current.shape), int8(p.current.rank), p.current.count
	}
	return st
}

// SetState continues an earlier parser's metric and steps. An invalid state, or one of
// another metric than the configured one, is ignored.
func (p *Parser) SetState(st State) {
	if !st.Labels.valid() || !st.Steps.valid() {
		return
	}
	hasMetric := p.re == nil && (st.Key != "" || st.Metric != "")
	if hasMetric && (st.Key == "" || len(st.Metric) > 2*maxMetric || !strings.HasSuffix(st.Metric, st.Key) || st.Shape > uint8(shapeDict) ||
		st.Rank < 0 || st.Count < 0 || !strings.HasSuffix(strings.ToLower(st.Metric), strings.ToLower(p.metric))) {
		return
	}
	p.steps, p.labels, p.bars = st.Steps, st.Labels, st.Bars
	p.setTables(st)
	if st.Course == GoalMin || st.Course == GoalMax {
		p.course = st.Course
	}
	if !hasMetric {
		return
	}
	s := &series{name: st.Metric, key: st.Key, shape: shape(st.Shape), rank: rank(st.Rank), count: st.Count}
	p.series = []*series{s}
	p.current, p.last = s, s.name
}

// NameCount is a name before numbers and its count.
type NameCount struct {
	Name  string
	Count int64
}

// Explain makes the parser collect the names before numbers that it did not use, for
// Others, at some cost in speed.
func (p *Parser) Explain() { p.explain = true }

func (p *Parser) noteName(name []byte) {
	if len(name) == 0 || len(name) > maxName {
		return
	}
	for i := range p.seen {
		if p.seen[i].Name == string(name) {
			p.seen[i].Count++
			return
		}
	}
	if len(p.seen) < 64 {
		p.seen = append(p.seen, NameCount{string(name), 1})
	}
}

// Others returns the unused metrics and, after Explain, other names before numbers;
// each by count.
func (p *Parser) Others() (metrics, names []NameCount) {
	for _, s := range p.series {
		if s != p.current && s.count > 0 {
			at := slices.IndexFunc(metrics, func(x NameCount) bool { return x.Name == s.name })
			if at >= 0 {
				metrics[at].Count += s.count
			} else {
				metrics = append(metrics, NameCount{s.name, s.count})
			}
		}
	}
	byCount := func(a, b NameCount) int { return int(b.Count - a.Count) }
	slices.SortStableFunc(metrics, byCount)
	// Names like metrics first.
	var rest []NameCount
	for _, n := range p.seen {
		if classify([]byte(n.Name), false, true) != rankNone {
			names = append(names, n)
		} else {
			rest = append(rest, n)
		}
	}
	slices.SortStableFunc(names, byCount)
	slices.SortStableFunc(rest, byCount)
	return metrics, append(names, rest...)
}
