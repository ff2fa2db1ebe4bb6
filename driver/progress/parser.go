// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Report is one value of the metric, read from a line.
type Report struct {
	Time   time.Time // when the line was read; zero from Parse
	Metric string    // name of the metric, as printed
	Value  float64   // may be NaN or ±Inf: a training that diverges says so
	Step   float64   // steps done; NaN = unknown
	Total  float64   // steps there will be; NaN = unknown
	LR     float64   // learning rate that was printed last; 0 = none was
	// PerEpoch is how many steps an epoch has; 0 = unknown, 1 = the step is an epoch.
	PerEpoch float64
	Line     int64 // number of the line, from 1; 0 from Parse
}

// Thresholds of the choice between series, in lines that hold any metric. Growth
// starts anew with another series, so a change must be worth it.
const (
	maxSeries     = 24
	young         = 3   // reports before which a better metric wins at once
	upgradeAfter  = 3   // sightings of a better metric
	changeAfter   = 20  // lines without ours, for a metric at least as good
	changeYoung   = 4   // the same, while ours has been seen fewer than young times
	downgrade     = 400 // lines without ours, for a worse one
	maxHysteresis = 6   // each change doubles the last two, so often
)

// series is one metric in one shape of line.
type series struct {
	name   string // as reported
	key    string // without the word about held-out data
	shape  shape
	rank   rank
	count  int64 // lines that held it
	recent int64 // of these, since ours was last seen
}

// Parser turns lines into reports. It holds state: which metric it settled on, and
// what earlier lines said of epochs. It is not safe for concurrent use.
type Parser struct {
	preset string
	metric string
	goal   string
	re     *regexp.Regexp
	group  struct{ value, step, total int }
	search bool // the metric's name is not one the scanner reads as a name

	found findings
	table table
	box   box
	lr    float64
	names []byte        // of nested dicts, valid for one line
	path  [maxName]byte // of the dicts around a name

	series  []*series
	ours    *series
	misses  int // lines in a row that held a metric, but not ours
	changes int
	steps   steps
	last    string // metric of the last report

	stats   ParserStats
	explain bool
	seen    []Seen // names with numbers that are no metric we know
}

// ParserStats counts lines by what became of them; the sum of all but Lines is Lines.
type ParserStats struct {
	Lines     int64 // that were looked at, blank ones not
	Reports   int64 // lines that gave one
	Noise     int64 // without a metric
	Other     int64 // with a metric, but not the one in use
	NotNumber int64 // with the metric, but no number after it
	Shape     int64 // with a metric, but not of the preset's kind
	Eval      int64 // a Keras bar of an evaluation
}

// NewParser returns a parser, or the configuration's errors as Validate does.
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

// Metric returns the name of the metric of the last report, or the configured one,
// or nothing when there is neither.
func (p *Parser) Metric() string {
	if p.last != "" {
		return p.last
	}
	return p.metric
}

// Goal returns the configured goal, or the one that follows from Metric: min when
// its name says nothing. Note then tells.
func (p *Parser) Goal() string {
	if p.goal != "" {
		return p.goal
	}
	goal, _ := InferGoal(p.Metric())
	return goal
}

// Note returns a sentence for people when the goal is only assumed, else nothing.
func (p *Parser) Note() string {
	m := p.Metric()
	if p.goal != "" || m == "" {
		return ""
	}
	if _, ok := InferGoal(m); ok {
		return ""
	}
	return "the name \"" + m + "\" does not say whether it is to fall or to rise: min assumed, set goal to \"min\" or \"max\""
}

// Stats returns the counts so far.
func (p *Parser) Stats() ParserStats { return p.stats }

// Parse looks at one line, cleaned as by Clean and without its end. ok says that it
// holds a report. It keeps nothing of line, and allocates nothing for a line without
// a metric; its work is linear in the line's length.
func (p *Parser) Parse(line []byte) (r Report, ok bool) {
	if len(line) == 0 {
		return Report{}, false
	}
	p.stats.Lines++
	if p.re != nil {
		return p.parsePattern(line)
	}

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
		if f.summary {
			f.ncands = 0
		} else if f.ncands == 0 && at > 0 { // the text tells more than the dict behind it
			f.reset()
			p.scanText(line[:at], true)
		}
	} else {
		p.scanText(line, true)
		if f.ncands == 0 && !f.notNumber {
			p.scanTable(line)
		}
	}
	if p.search && f.ncands == 0 {
		p.searchMetric(line)
	}
	if f.beside >= f.step && f.beside > 0 && !isSet(f.total) {
		f.total = f.beside
	}
	if isSet(f.lr) {
		p.lr = f.lr
	}

	if f.ncands == 0 {
		p.context(line)
		if f.notNumber {
			p.stats.NotNumber++
		} else {
			p.stats.Noise++
		}
		return Report{}, false
	}
	if !p.accepts(f) {
		p.context(line)
		p.stats.Shape++
		return Report{}, false
	}
	if p.steps.evaluation(f) {
		p.stats.Eval++
		return Report{}, false
	}
	c := p.choose()
	if c == nil {
		p.context(line)
		p.stats.Other++
		return Report{}, false
	}
	r = Report{Metric: p.ours.name, Value: c.value, LR: p.lr}
	r.Step, r.Total = p.steps.next(f)
	r.PerEpoch = p.steps.Per
	p.last = r.Metric
	p.stats.Reports++
	return r, true
}

// accepts says whether the preset takes lines of this shape.
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

// context takes note of a line without a report: a header that names the epoch, or a
// bar.
func (p *Parser) context(line []byte) {
	f := &p.found
	switch {
	case f.shape == shapeBar:
		if f.ncands == 0 {
			p.steps.bar(f)
		}
	case f.ncands > 0:
	case f.place && f.shape == shapePlain && !f.heldOut:
		p.steps.next(f) // of what the lines behind it tell: "[step=10/600]"
	case isSet(f.epoch) && len(line) <= 80 && !isSet(f.step) && headed(line):
		p.steps.header(f)
	case (isSet(f.epochs) || isSet(f.total)) && !isSet(f.epoch) && f.shape == shapePlain:
		if isSet(f.epochs) {
			p.steps.Epochs = f.epochs
		}
		if isSet(f.total) {
			p.steps.Total = f.total
		}
	}
}

// headed says whether a line begins with the word Epoch, perhaps behind a rule or a
// time stamp that has no letters, or ends in "Epoch 1/10".
func headed(line []byte) bool {
	if at := bytes.LastIndexByte(line, ' '); at >= 5 && hasFold(line[at-5:], "epoch") && bytes.IndexByte(line[at:], '/') > 0 {
		return true
	}
	for i := 0; i < len(line); i++ {
		if isLetter(line[i]) {
			return hasFold(line[i:], "epoch")
		}
	}
	return false
}

// choose finds the candidate of the series in use among those of the line, or changes
// the series. It returns nil when the line has nothing to report.
func (p *Parser) choose() *candidate {
	f := &p.found
	var mine *candidate // of ours
	var best *candidate // of the best other series that has earned it
	var bestSeries *series
	var held *series // the best in the line, whatever it has earned
	var heldBy *candidate
	for i := range f.cands[:f.ncands] {
		if p.ours != nil && p.ours.is(&f.cands[i], f.shape) {
			mine = &f.cands[i]
			p.ours.count++
			break
		}
	}
	for i := range f.cands[:f.ncands] {
		c := &f.cands[i]
		if mine != nil && c.rank >= p.ours.rank && !p.explain {
			continue // cannot win
		}
		s := p.intern(c, f.shape)
		if s == nil || s == p.ours {
			continue
		}
		s.count++
		s.recent++
		if held == nil || s.rank < held.rank {
			held, heldBy = s, c
		}
		if p.ours != nil && s.rank < p.ours.rank && (p.ours.count < young || s.count >= upgradeAfter<<min(p.changes, maxHysteresis)) &&
			(bestSeries == nil || s.rank < bestSeries.rank) {
			best, bestSeries = c, s
		}
	}

	switch {
	case p.ours == nil:
		if held == nil {
			return nil
		}
		p.use(held)
		return heldBy
	case best != nil:
		p.use(bestSeries)
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
	case held.rank > p.ours.rank:
		limit = downgrade
	case p.ours.count < young:
		limit = changeYoung
	}
	if p.misses >= limit<<min(p.changes, maxHysteresis) && held.recent >= int64(p.misses)/4 {
		p.use(held)
		return heldBy
	}
	return nil
}

func (p *Parser) use(s *series) {
	if p.ours != nil {
		p.changes++
		// What is known of epochs and of the last step stays, positions of another
		// series do not.
		p.steps.Last1, p.steps.LastE1, p.steps.Gap, p.steps.Base, p.steps.Global = 0, 0, 0, 0, false
		p.steps.Of, p.steps.DoneOf, p.steps.Per, p.steps.InE1 = 0, 0, 0, 0
	}
	p.ours = s
	p.misses = 0
	for _, s := range p.series {
		s.recent = 0
	}
}

// intern returns the series of a candidate, a new one if need be. A table that is
// full loses its rarest, never the one in use.
func (p *Parser) intern(c *candidate, shape shape) *series {
	for _, s := range p.series {
		if s.is(c, shape) {
			return s
		}
	}
	s := &series{key: string(c.name), shape: shape, rank: c.rank}
	s.name = s.key
	if len(c.prefix) > 0 {
		s.name = string(c.prefix) + " " + s.key
	}
	if len(p.series) < maxSeries {
		p.series = append(p.series, s)
		return s
	}
	rarest := -1
	for i, t := range p.series {
		if t != p.ours && (rarest < 0 || t.count < p.series[rarest].count) {
			rarest = i
		}
	}
	if p.series[rarest].count > 1 && p.series[rarest].recent > 0 && s.rank >= p.series[rarest].rank {
		p.series[rarest].recent-- // ages, so that the table is not blocked for ever
		return nil
	}
	p.series[rarest] = s
	return s
}

// is says whether a candidate in a line of that shape belongs to the series.
func (s *series) is(c *candidate, shape shape) bool {
	prefix := len(c.prefix)
	if prefix > 0 {
		prefix++ // and a space
	}
	return s.shape == shape && s.key == string(c.name) && len(s.name)-len(s.key) == prefix && s.name[:len(c.prefix)] == string(c.prefix)
}

// searchMetric looks for a configured name that the scanner does not read as one
// name: with spaces, per cent signs, letters beyond ASCII.
func (p *Parser) searchMetric(line []byte) {
	for i := 0; i < len(line); {
		at := indexFold(line[i:], p.metric)
		if at < 0 {
			return
		}
		from := i + at
		end := from + len(p.metric)
		i = from + 1
		if from > 0 && boundary(line[from-1], line[from]) || end < len(line) && boundary(line[end], line[end-1]) {
			continue
		}
		if before := bytes.TrimRight(line[:from], " "); isBest(before[bytes.LastIndexFunc(before, notLetter)+1:]) {
			continue // a running optimum is no report of it
		}
		at, strong, _ := afterKey(line, end)
		n, ok := parseValue(line, at)
		if !ok {
			p.found.notNumber = true
			continue
		}
		if strong || n.decimal {
			p.found.add(candidate{name: line[from:end], value: n.value})
			return
		}
	}
}

func notLetter(r rune) bool { return r > 127 || !isLetter(byte(r)) }

// boundary says whether the byte beside a name makes it a part of a longer one.
func boundary(beside, edge byte) bool {
	if isWord(beside) {
		return isWord(edge) || edge < 0x80
	}
	return beside == '/' || beside == '-' && isWord(edge)
}

// indexFold finds name in b without regard to the case of ASCII letters.
func indexFold(b []byte, name string) int {
	first := lower(name[0])
	for i := 0; i+len(name) <= len(b); i++ {
		if lower(b[i]) == first && equalFoldName(b[i:i+len(name)], name) {
			return i
		}
	}
	return -1
}

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
	// As printed: whoever writes an expression says what the step is.
	r.Step, r.Total = p.found.step, p.found.total
	if isSet(r.Total) {
		p.steps.Total = r.Total
	} else if p.steps.Total > 0 {
		r.Total = p.steps.Total
	}
	p.stats.Reports++
	return r, true
}

// State is what a parser must remember to go on where another one stopped. It is
// small and can be stored as JSON.
type State struct {
	Metric string `json:"metric,omitempty"`
	Key    string `json:"key,omitempty"`
	Shape  uint8  `json:"shape,omitempty"`
	Rank   int8   `json:"rank,omitempty"`
	Count  int64  `json:"count,omitempty"`
	Header string `json:"header,omitempty"` // of a table whose rows may follow
	Box    string `json:"box,omitempty"`    // what a box that is not closed holds so far
	Steps  steps  `json:"steps"`
}

// State returns what SetState restores.
func (p *Parser) State() State {
	st := State{Metric: p.last, Steps: p.steps, Header: string(p.table.header), Box: string(p.box)}
	if p.ours != nil {
		st.Metric, st.Key, st.Shape, st.Rank, st.Count = p.ours.name, p.ours.key, uint8(p.ours.shape), int8(p.ours.rank), p.ours.count
	}
	return st
}

// SetState makes a new parser go on with the metric and the steps of an earlier one.
// A state that makes no sense, or belongs to another metric than the one that is
// configured now, is left aside.
func (p *Parser) SetState(st State) {
	for _, v := range []float64{st.Steps.Epoch1, st.Steps.Epochs, st.Steps.Of, st.Steps.Total, st.Steps.Last1, st.Steps.Gap,
		st.Steps.LastE1, st.Steps.Base, st.Steps.Out1, st.Steps.OutOf, st.Steps.BarN, st.Steps.BarOf, st.Steps.OtherOf, st.Steps.OtherN, st.Steps.DoneOf,
		st.Steps.Per, st.Steps.InE1, st.Steps.From1} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return
		}
	}
	if p.re != nil || st.Key == "" && st.Metric == "" {
		p.steps = st.Steps
		p.setTables(st)
		return
	}
	if st.Key == "" || len(st.Metric) > 2*maxMetric || !strings.HasSuffix(st.Metric, st.Key) || st.Shape > uint8(shapeDict) ||
		st.Rank < 0 || st.Count < 0 || !strings.HasSuffix(strings.ToLower(st.Metric), strings.ToLower(p.metric)) {
		return
	}
	p.steps = st.Steps
	p.setTables(st)
	s := &series{name: st.Metric, key: st.Key, shape: shape(st.Shape), rank: rank(st.Rank), count: st.Count}
	p.series = []*series{s}
	p.ours, p.last = s, s.name
}

// Seen is a name that stood before a number, and how often.
type Seen struct {
	Name  string
	Count int64
}

// Explain makes the parser keep the names that it saw before numbers and did not
// take, for Others. It costs some speed.
func (p *Parser) Explain() { p.explain = true }

// noteName counts a name that was not taken.
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
		p.seen = append(p.seen, Seen{string(name), 1})
	}
}

// Others returns the metrics that were seen and not reported, and then, if Explain
// was called, other names before numbers; each by how often.
func (p *Parser) Others() (metrics, names []Seen) {
	for _, s := range p.series {
		if s != p.ours && s.count > 0 {
			at := slices.IndexFunc(metrics, func(x Seen) bool { return x.Name == s.name })
			if at >= 0 {
				metrics[at].Count += s.count
			} else {
				metrics = append(metrics, Seen{s.name, s.count})
			}
		}
	}
	byCount := func(a, b Seen) int { return int(b.Count - a.Count) }
	slices.SortStableFunc(metrics, byCount)
	// Names that look like metrics, which another one was wanted instead of, first.
	var rest []Seen
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
