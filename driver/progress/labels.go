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
func (l *labels) cut(s *scan, line []byte) (rest []byte, rank int64, open bool) {
	rank = -1
	watched, k := false, 0
	s.start(line, 0)
	for range maxLabels {
		n, next, bare := s.label(k)
		if next == 0 || bare && watched {
			break
		}
		if bare {
			watched = true
			l.watch(n)
			if l.Index && l.Own {
				k = next
			}
			if l.Index {
				break
			}
			open = !l.Label
		}
		rank = max(rank, 0)*maxRank + n
		k = next
	}
	if k > 0 {
		line = line[s.after(k):]
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

// label reads a label from the token at k on. It returns the next token, or 0 if there is
// none. bare means that the label is a number only, which may be the step.
func (s *scan) label(k int) (rank int64, next int, bare bool) {
	number := func(i int) bool {
		rank = int64(s.at(i).value)
		return s.integer(i) && s.at(i).value < maxRank
	}
	switch c := s.sign(k); {
	case number(k):
		// But "12: 680.25, 680.25 avg loss" and "12: learn: 0.5" begin with the step.
		v := s.at(k + 2)
		value := v.clean && v.decimal && !v.percent || equalFold(s.word(k+2), "learn") && s.sign(k+3) == ':'
		if s.sign(k+1) == ':' && !s.at(k+1).gap && v.gap && !value {
			return rank, k + 2, true
		}
	case c == '[' && number(k+1) && s.sign(k+2) == ']': // "[3] ", "[3]:"
		if s.at(k+3).gap && s.line[s.after(k+3)] == ' ' { // XGBoost has a tabulator behind the step
			return rank, k + 3, true
		}
		if s.sign(k+3) == ':' {
			return rank, k + 4, true
		}
	case c == '[' && s.sign(k+2) == ',' && number(k+3) && s.sign(k+4) == ']' && s.sign(k+5) == '<' && s.sign(k+8) == ':': // "[1,3]<stdout>:"
		return rank, k + 9, false
	case c == '[' && s.word(k+1) != nil: // "[rank3]:", "[rank 3]:"
		word := s.word(k + 1)
		name := bytes.TrimRight(word, "0123456789")
		if k += 2; len(name) < len(word) {
			n, _ := parseNumber(word, len(name))
			rank = int64(min(n.value, maxRank))
		} else if number(k) {
			k++
		} else {
			break
		}
		if rank < maxRank && isProcess(name) && s.sign(k) == ']' && s.sign(k+1) == ':' {
			return rank, k + 2, false
		}
	case s.sign(k+1) == '-' && !s.at(k+1).gap && s.word(k) != nil && s.at(k+3).gap: // a pod's name, "mnist-worker-3 "
		if word := s.word(k); isProcess(word[bytes.LastIndexByte(word, '-')+1:]) && number(k+2) {
			return rank, k + 3, false
		}
	case c == '(': // "(trainer pid=77, ip=10.0.0.1) "
		found := int64(-1)
		for i := k + 1; i < k+maxUnit*2 && !s.ends(i); i++ {
			name := s.word(i)
			switch {
			case s.sign(i) == ')':
				if found < 0 {
					return 0, 0, false
				}
				return found, i + 1, false
			case s.sign(i+1) == '=' && number(i+2) && (equalFold(name, "rank") || equalFold(name, "pid") && found < 0):
				found = rank
			}
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
