// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import "bytes"

// Thresholds for a number at the start of lines, "3: …" or "[3] …", which is either the
// rank of a process or the step.
const (
	labelRepeats = 3   // further lines with the same number make it a rank
	indexRises   = 16  // lines with a higher number each make it the step; doubled by each fall
	indexEven    = 3   // the same, if the distance is always the same and above 1
	maxFalls     = 6   // that double the last two
	maxLabels    = 2   // per line: one launcher within another
	maxRank      = 1e8 // of one label
	maxMissed    = 50  // lines of another rank before it is followed instead
	maxWordLabel = 16  // bytes of the word in "[rank3]:"
)

// labels removes what launchers write in front of every line, such as srun --label
// ("3: "), mpirun --tag-output ("[1,3]<stdout>:"), torchrun ("[rank3]:") and Ray
// ("(trainer pid=77, ip=10.0.0.1) "), and follows one of the ranks: the lowest that
// reports. It is stored with a State; zero means "not seen", hence the fields that are
// one too high.
type labels struct {
	Follow1 int64 `json:"follow1,omitempty"` // the rank that is followed, plus 1
	Next1   int64 `json:"next1,omitempty"`   // the lowest rank skipped since its last report, plus 1
	Missed  int64 `json:"missed,omitempty"`  // lines of that rank

	// Of a number that may be the step.
	Label   bool  `json:"label,omitempty"` // it is a rank
	Index   bool  `json:"index,omitempty"` // it is the step, or at least no rank
	Own     bool  `json:"own,omitempty"`   // lines have a step of their own
	Last1   int64 `json:"last1,omitempty"` // the last number, plus 1
	Gap     int64 `json:"gap,omitempty"`   // its distance to the one before
	Repeats int64 `json:"repeats,omitempty"`
	Rises   int64 `json:"rises,omitempty"`
	Even    int64 `json:"even,omitempty"` // rises by Gap
	Falls   int64 `json:"falls,omitempty"`
}

// cut returns the line without its labels, and the rank, or -1. open means that the
// line begins with a number that is not known to be the rank or the step; it is removed,
// since no step is better than a wrong one.
func (l *labels) cut(line []byte) (rest []byte, rank int64, open bool) {
	rank = -1
	watched := false
	for range maxLabels {
		n, end, bare := labelAt(line)
		if end == 0 || bare && watched {
			break
		}
		if bare {
			watched = true
			l.watch(n)
			if l.Index && l.Own {
				line = line[end:]
			}
			if l.Index {
				break
			}
			open = !l.Label
		}
		rank = max(rank, 0)*maxRank + n
		line = line[end:]
	}
	return line, rank, open
}

// watch decides by its course whether a number is a rank or the step.
func (l *labels) watch(n int64) {
	last := l.Last1 - 1
	l.Last1 = n + 1
	switch {
	case last < 0:
	case n == last:
		if l.Repeats++; l.Repeats >= labelRepeats && l.Rises == 0 && !l.Index {
			l.Label = true
		}
	case n > last:
		l.Rises++
		if n-last != l.Gap {
			l.Even = 0
		}
		l.Gap = n - last
		if l.Gap > 1 {
			l.Even++
		}
		if l.Rises >= indexRises<<l.Falls || l.Even >= indexEven<<l.Falls {
			l.Label, l.Index = false, true
		}
	default:
		l.Falls = min(l.Falls+1, maxFalls)
		l.Label, l.Index = true, false
		l.Repeats, l.Rises, l.Even, l.Gap = 0, 0, 0, 0
	}
}

// skip reports whether a line of the rank belongs to a process that is not followed.
func (l *labels) skip(rank int64) bool {
	if l.Follow1 == 0 || rank < l.Follow1 {
		return false
	}
	if l.Missed == 0 || rank+1 < l.Next1 {
		l.Next1, l.Missed = rank+1, 0
	}
	if rank+1 == l.Next1 {
		l.Missed++
	}
	if l.Missed > maxMissed {
		l.Follow1 = 0 // it has ended
		return false
	}
	return true
}

// reported notes a report of the rank, and returns whether it only repeats that of a
// higher rank, which was followed until now.
func (l *labels) reported(rank int64) bool {
	repeats := l.Follow1 > rank+1
	l.Follow1, l.Missed = rank+1, 0
	return repeats
}

func (l *labels) valid() bool {
	for _, v := range []int64{l.Follow1, l.Next1, l.Missed, l.Last1, l.Gap, l.Repeats, l.Rises, l.Even, l.Falls} {
		if v < 0 {
			return false
		}
	}
	return l.Falls <= maxFalls
}

// labelAt reads a label at the start of b, which ends at end; 0 if there is none. bare
// means that the label is a number only, which may be the step.
func labelAt(b []byte) (n int64, end int, bare bool) {
	i := 0
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	if i == len(b) {
		return 0, 0, false
	}
	switch c := b[i]; {
	case isDigit(c):
		n, j := digits(b, i)
		if j+1 < len(b) && b[j] == ':' && b[j+1] == ' ' && !beginsWithValue(b[j+2:]) {
			return n, j + 2, true
		}
	case c == '[':
		return bracketed(b, i+1)
	case isLetter(c): // a pod's name, "mnist-worker-3 "
		stop := bytes.IndexByte(b[i:min(len(b), i+64)], ' ')
		if stop < 0 || !isDigit(b[i+stop-1]) {
			break
		}
		words := b[i : i+stop]
		at := bytes.LastIndexByte(words, '-')
		if at < 0 || !isProcess(words[bytes.LastIndexByte(words[:at], '-')+1:at]) {
			break
		}
		if n, j := digits(b, i+at+1); j == i+stop {
			return n, j, false
		}
	case c == '(':
		at := bytes.Index(b[i:min(len(b), i+64)], []byte(" pid="))
		if at < 0 {
			break
		}
		n, j := digits(b, i+at+5)
		if r := bytes.Index(b[i:i+at], []byte(" rank=")); r >= 0 {
			n, _ = digits(b, i+r+6)
		}
		if stop := bytes.IndexByte(b[j:min(len(b), j+64)], ')'); j > i+at+5 && stop >= 0 {
			return n, j + stop + 1, false
		}
	}
	return 0, 0, false
}

// bracketed reads the rest of "[3] ", "[rank3]:" or "[1,3]<stdout>:".
func bracketed(b []byte, i int) (n int64, end int, bare bool) {
	from := i
	for i < len(b) && i < from+maxWordLabel && isLetter(b[i]) {
		i++
	}
	word := b[from:i]
	if len(word) > 0 && i < len(b) && b[i] == ' ' {
		i++
	}
	n, j := digits(b, i)
	if j == i || j+1 >= len(b) {
		return 0, 0, false
	}
	switch {
	case len(word) > 0:
		if string(b[j:j+2]) == "]:" && isProcess(word) {
			return n, j + 2, false
		}
	case string(b[j:j+2]) == "] ":
		return n, j + 2, true
	case string(b[j:j+2]) == "]:":
		return n, j + 2, true
	case b[j] == ',':
		n, k := digits(b, j+1)
		if stop := bytes.Index(b[k:min(len(b), k+12)], []byte(">:")); k > j+1 && stop > 0 && string(b[k:k+2]) == "]<" {
			return n, k + stop + 2, false
		}
	}
	return 0, 0, false
}

// isProcess reports whether a word before a number names a process. Folds and tasks, for
// instance, come one after the other instead.
func isProcess(w []byte) bool {
	for _, word := range [...]string{"rank", "local_rank", "global_rank", "default", "trainer", "worker", "proc",
		"process", "node", "host", "gpu", "device", "replica"} {
		if equalFold(w, word) {
			return true
		}
	}
	return false
}

// beginsWithValue reports whether a value stands directly behind a number, which is the
// step then: Darknet's "12: 680.25, 680.25 avg loss", CatBoost's "12: learn: 0.5".
func beginsWithValue(b []byte) bool {
	b = bytes.TrimLeft(b, " ")
	if hasFold(b, "learn:") {
		return true
	}
	if len(b) == 0 || !isDigit(b[0]) {
		return false
	}
	n, ok := parseNumber(b, 0)
	return ok && n.decimal && ends(b, n.end) && (n.end == len(b) || b[n.end] != '%')
}

// digits reads a whole number below maxRank.
func digits(b []byte, i int) (n int64, end int) {
	from := i
	for i < len(b) && i < from+9 && isDigit(b[i]) {
		n = n*10 + int64(b[i]-'0')
		i++
	}
	if n >= maxRank {
		return 0, from
	}
	return n, i
}
