// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import "bytes"

const maxDepth = 6 // of nested dicts whose names are kept

// dictStart returns the start of a JSON object or Python dict in a line, or −1. Text
// before it may be a time stamp or progress bar.
func dictStart(b []byte) int {
	for i := 0; ; {
		at := bytes.IndexByte(b[i:], '{')
		if at < 0 {
			return -1
		}
		i += at
		k := i + 1
		for k < len(b) && isSpace(b[k]) {
			k++
		}
		if k >= len(b) {
			return -1
		}
		if b[k] == '"' || b[k] == '\'' {
			return i
		}
		i = k
	}
}

// scanDict reads the names and numbers of a JSON object or Python dict: nested, in
// either quotes, possibly truncated. Values are numbers, possibly quoted, or what
// scan.value unwraps; NaN and None are Python's. Names of nested dicts become paths
// (val.loss). It does not allocate, and is lenient: it only has to find a loss.
func (p *Parser) scanDict(b []byte) {
	f := &p.found
	path := &p.path // of the enclosing dicts, each name followed by a point
	var ends [maxDepth]int
	depth, used, deeper := 0, 0, 0 // deeper: levels whose names did not fit

	for i := 0; i < len(b); {
		switch c := b[i]; c {
		case '{':
			i++
			if depth == 0 && used == 0 && deeper == 0 && i == 1 {
				continue // the outermost
			}
			// Within a list, or below a name that did not fit.
			deeper++
		case '}':
			i++
			switch {
			case deeper > 0:
				deeper--
			case depth > 0:
				depth--
				used = 0
				if depth > 0 {
					used = ends[depth-1]
				}
			}
		case '"', '\'':
			end := stringEnd(b, i)
			if end < 0 {
				return // truncated within a string
			}
			name := b[i+1 : end]
			i = end + 1
			k := i
			for k < len(b) && isSpace(b[k]) {
				k++
			}
			if k >= len(b) || b[k] != ':' {
				continue // a value
			}
			for k++; k < len(b) && isSpace(b[k]); k++ {
			}
			i = k
			if k >= len(b) {
				return
			}
			if b[k] == '{' {
				if deeper == 0 && depth < maxDepth && used+len(name)+1 <= len(path) {
					copy(path[used:], name)
					path[used+len(name)] = '.'
					used += len(name) + 1
					ends[depth] = used
					depth++
					i++
				}
				continue
			}
			p.scan.start(b, k)
			n, next, ok := p.scan.value(0)
			if !ok || n.counter {
				if b[k] == '[' {
					p.stepList(name, b[k:])
				} else if p.wantsName(name) && deeper == 0 {
					f.notNumber = true
				}
				if depth == 0 && deeper == 0 && (b[k] == '"' || b[k] == '\'') && namesRecord(name) {
					if end := stringEnd(b, k); end > 0 {
						f.record = b[k+1 : end]
						i = end + 1
					}
				}
				if b[k] == '"' || b[k] == '\'' {
					if end := stringEnd(b, k); end > 0 && isDigit(b[k+1]) {
						p.quotedCounter(name, b[k+1:end])
					}
					if n := string(name); (n == "message" || n == "msg" || n == "log") && depth == 0 && deeper == 0 {
						if end := stringEnd(b, k); end > 0 {
							f.message = bytes.TrimSuffix(b[k+1:end], []byte(`\n`))
							i = end + 1
						}
					}
				}
				continue
			}
			i = p.scan.after(next)
			full := name
			if used > 0 {
				if used+len(name) > len(path) {
					continue
				}
				copy(path[used:], name)
				full = path[:used+len(name)]
			}
			p.entry(name, full, n, used > 0)
		default:
			i++
		}
	}
}

// quotedCounter reads a counter with its total, such as "epoch": "10/50" or
// 'global_step/max_steps': '15/94'.
func (p *Parser) quotedCounter(name, value []byte) {
	p.scan.start(value, 0)
	of, next, ok := p.scan.fraction(1)
	n := p.scan.at(0)
	if !ok || !p.scan.integer(0) || n.value > of || !p.scan.ends(next) {
		return
	}
	f := &p.found
	kind := p.counter(name)
	if at := bytes.LastIndexByte(name, '/'); at > 0 && kind == countNothing {
		kind = p.counter(name[:at])
	}
	switch kind {
	case countGlobal:
		f.step, f.total = n.value, of
	case countStep, countBatch:
		f.n, f.of = n.value, of
	case countEpoch:
		f.epoch, f.epochs = n.value, of
	}
}

// stepList reads DLLogger's "step": [1, 400], an epoch and a step.
func (p *Parser) stepList(name, list []byte) {
	s := &p.scan
	if s.start(list, 0); p.counter(name) == countStep && s.integer(1) && s.sign(2) == ',' && s.integer(3) && s.sign(4) == ']' {
		p.found.epoch, p.found.step = s.at(1).value, s.at(3).value
	}
}

// namesRecord reports whether an entry is the name of what the dict's "value" is.
func namesRecord(name []byte) bool {
	switch string(name) {
	case "name", "key", "metric", "metric_name", "tag":
		return true
	}
	return false
}

// stringEnd returns the offset of the closing quote of the string at b[i], or −1.
func stringEnd(b []byte, i int) int {
	q := b[i]
	for i++; i < len(b); i++ {
		j := bytes.IndexByte(b[i:], q)
		if j < 0 {
			return -1
		}
		j += i
		back := 0
		for k := j - 1; k >= i && b[k] == '\\'; k-- {
			back++
		}
		if back%2 == 0 {
			return j
		}
		i = j
	}
	return -1
}

func (p *Parser) entry(name, full []byte, n token, nested bool) {
	f := &p.found
	if !nested && p.metric == "" && string(name) == "train_runtime" {
		f.summary = true // Hugging Face's last line: means over the whole training
	}
	if string(name) == "value" {
		f.recorded = n
	}
	switch kind := p.counter(name); {
	case kind == countLR:
		f.lr = n.value
	case kind == countPercent:
		if n.value > 1 && n.value <= 100 { // a fraction otherwise, or no telling
			f.percent = n.value
		}
	case kind != countNothing && n.value >= 0 && n.value < maxStep:
		switch kind {
		case countStep, countGlobal:
			if !isSet(f.step) || !nested {
				f.step = n.value
			}
		case countBatch:
			f.n = n.value
		case countTotal:
			f.total = n.value
		case countEpisode:
			f.episode = n.value
		case countPlainTotal:
			f.plainTotal = n.value
		case countEpoch:
			f.epoch = n.value
		case countEpochs:
			f.epochs = n.value
		}
		return
	}
	c := candidate{name: full, value: n.value, rank: rankNone}
	switch {
	case p.metric == "":
		c.rank = classify(full, false, n.decimal)
	case equalFoldName(full, p.metric):
		c.rank = 0
	case equalFoldName(name, p.metric) && !best(full):
		c.rank = 1
	}
	if c.rank == rankNone {
		if p.explain {
			p.noteName(full)
		}
		return
	}
	if nested {
		if c.name = p.keep(full); c.name == nil {
			return
		}
	}
	f.add(c)
}

// best reports whether a path contains a running optimum, such as best.loss.
func best(path []byte) bool {
	for name := range bytes.SplitSeq(path, []byte(".")) {
		if isBest(name) {
			return true
		}
	}
	return false
}

// keep copies a name from a scanner's buffer, for the duration of the line.
func (p *Parser) keep(name []byte) []byte {
	from := len(p.names)
	if from+len(name) > cap(p.names) {
		return nil
	}
	p.names = append(p.names, name...)
	return p.names[from:len(p.names):len(p.names)]
}
