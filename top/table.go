// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package top

import (
	"slices"
	"strings"
)

// Layout is what lines are made for.
type Layout struct {
	Width int  // columns of the terminal
	ASCII bool // only ASCII can be shown
}

// Line is a line of a table. Task is the one that it is about, if any; Alert says that it
// needs a look.
type Line struct {
	Text  string
	Task  Key
	Alert bool
	Faint bool
}

// Table is a table of a width.
type Table struct {
	Head  string
	Lines []Line
}

// column is one of a table. Where there is too little room, those of the lowest rank are
// left out first, and no column is narrower than least or wider than most.
type column[T any] struct {
	title       string
	right       bool
	rank        int
	least, most int
	cell        func(T) string
	// draw makes the cell when its width is known, in place of cell, which tells only how
	// wide it would be.
	draw func(T, int) string
}

// tabulate makes a table that is no wider than the layout. Texts are cleaned here.
func tabulate[T any](l Layout, columns []column[T], rows []T, line func(T) Line) Table {
	cells := make([][]string, len(columns))
	natural := make([]int, len(columns))
	for i, c := range columns {
		cells[i] = make([]string, len(rows))
		natural[i] = len(c.title)
		for r, row := range rows {
			cells[i][r] = Clean(c.cell(row), l.ASCII)
			natural[i] = max(natural[i], wide(cells[i][r]))
		}
		natural[i] = max(min(natural[i], c.most), len(c.title))
	}
	widths := widths(l.Width-2, columns, natural)
	row := func(cell func(i int) string) string {
		var b strings.Builder
		for i := range columns {
			if widths[i] == 0 {
				continue
			}
			if b.Len() > 0 {
				b.WriteString(" ")
			}
			b.WriteString(cell(i))
		}
		return l.cut("  "+strings.TrimRight(b.String(), " "), l.Width)
	}
	t := Table{Head: row(func(i int) string { return l.pad(columns[i].title, widths[i], columns[i].right) })}
	for r := range rows {
		out := line(rows[r])
		out.Text = row(func(i int) string {
			text := cells[i][r]
			if columns[i].draw != nil {
				text = columns[i].draw(rows[r], widths[i])
			}
			return l.pad(text, widths[i], columns[i].right)
		})
		t.Lines = append(t.Lines, out)
	}
	return t
}

// widths shares the room among the columns: 0 is one that is left out.
func widths[T any](room int, columns []column[T], natural []int) []int {
	byRank := make([]int, len(columns))
	for i := range byRank {
		byRank[i] = i
	}
	slices.SortStableFunc(byRank, func(a, b int) int { return columns[b].rank - columns[a].rank })
	out := make([]int, len(columns))
	left := room + 1 // the first needs no space before it
	var shown []int
	for taken := 0; len(shown) < len(byRank); {
		i := byRank[len(shown)]
		if taken += columns[i].least + 1; taken > room+1 {
			break // nor one of a lower rank: which are shown must not depend on the texts
		}
		shown = append(shown, i)
		out[i] = min(columns[i].least, natural[i])
		left -= out[i] + 1
	}
	for more := true; more && left > 0; {
		more = false
		for _, i := range shown {
			if out[i] < natural[i] && left > 0 {
				out[i]++
				left--
				more = true
			}
		}
	}
	return out
}

// Cut shortens a clean text to the width of the layout.
func (l Layout) Cut(text string) string { return l.cut(text, l.Width) }

// Fill cuts or fills a clean text to the width of the layout.
func (l Layout) Fill(text string) string { return l.pad(text, l.Width, false) }

// Wrap cleans a text and breaks it into lines.
func (l Layout) Wrap(text string) []string {
	lines := wrap(Clean(text, l.ASCII), l.Width)
	for i := range lines {
		lines[i] = l.Cut(lines[i])
	}
	return lines
}
