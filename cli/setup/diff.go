// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package setup

import (
	"fmt"
	"strings"
)

func (p *Proposal) Diff() string {
	from := p.Path
	if p.Old == nil {
		from = "/dev/null"
	}
	if p.UpToDate() {
		return ""
	}
	return fmt.Sprintf("--- %s\n+++ %s\n%s", from, p.Path, hunks(split(p.Old), split(p.New)))
}

func split(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// edit is a line that is kept (' '), removed ('-') or added ('+').
type edit struct {
	kind byte
	text string
}

// compare returns a shortest edit script. Files have tens of lines.
func compare(a, b []string) []edit {
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out []edit
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, edit{' ', a[i]})
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || common[i+1][j] >= common[i][j+1]):
			out = append(out, edit{'-', a[i]})
			i++
		default:
			out = append(out, edit{'+', b[j]})
			j++
		}
	}
	return out
}

// hunks renders changes with three lines of context.
func hunks(a, b []string) string {
	const around = 3
	edits := compare(a, b)
	shown := make([]bool, len(edits))
	for k, e := range edits {
		if e.kind != ' ' {
			for near := max(0, k-around); near <= min(len(edits)-1, k+around); near++ {
				shown[near] = true
			}
		}
	}
	var out strings.Builder
	at := map[byte]int{'-': 0, '+': 0} // lines before this one
	for k := 0; k < len(edits); {
		end := k
		for end < len(edits) && shown[end] == shown[k] {
			end++
		}
		var text strings.Builder
		count := map[byte]int{}
		for _, e := range edits[k:end] {
			for _, side := range []byte("-+") {
				if e.kind == ' ' || e.kind == side {
					count[side]++
				}
			}
			fmt.Fprintf(&text, "%c%s\n", e.kind, e.text)
		}
		if shown[k] {
			fmt.Fprintf(&out, "@@ -%s +%s @@\n%s", span(at['-'], count['-']), span(at['+'], count['+']), text.String())
		}
		at['-'] += count['-']
		at['+'] += count['+']
		k = end
	}
	return out.String()
}

// span renders a hunk's range; an empty one names the line before it.
func span(before, count int) string {
	if count == 0 {
		return fmt.Sprintf("%d,0", before)
	}
	if count == 1 {
		return fmt.Sprint(before + 1)
	}
	return fmt.Sprintf("%d,%d", before+1, count)
}
