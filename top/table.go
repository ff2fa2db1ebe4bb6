// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package top

import (
	"slices"
	"strings"
)

type Layout struct {
	Width int  // columns
	ASCII bool // no Unicode characters
}

// Line is a line of a table. Task is the task it shows, if any.
type Line struct {
	Text  string
	Task  Key
	Alert bool
	Faint bool
}

type Table struct {
	Head  string
	Lines []Line
}

// column describes a column. If there is no room for all, those of the lowest rank are dropped;
// widths stay between least and most.
type column[T any] struct {
	title       string
	right       bool
	rank        int
	least, most int
	cell        func(T) string
	// draw renders the cell at its final width; cell is then only used for its natural width.
	draw func(T, int) string
}

// tabulate renders a table that fits the layout, and cleans its texts.
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

// widths distributes the room among columns; 0 drops a column.
func widths[T any](room int, columns []column[T], natural []int) []int {
	byRank := make([]int, len(columns))
	for i := range byRank {
		byRank[i] = i
	}
	slices.SortStableFunc(byRank, func(a, b int) int { return columns[b].rank - columns[a].rank })
	out := make([]int, len(columns))
	left := room + 1 // the first has no space before it
	var shown []int
	for taken := 0; len(shown) < len(byRank); {
		i := byRank[len(shown)]
		if taken += columns[i].least + 1; taken > room+1 {
			break // nor lower ranks: the selection of columns must not depend on texts
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

// Cut truncates a clean text to the layout's width.
func (l Layout) Cut(text string) string { return l.cut(text, l.Width) }

// Fill cuts or pads a clean text to the layout's width.
func (l Layout) Fill(text string) string { return l.pad(text, l.Width, false) }

// Wrap cleans a text and breaks it into lines.
func (l Layout) Wrap(text string) []string {
	lines := wrap(Clean(text, l.ASCII), l.Width)
	for i := range lines {
		lines[i] = l.Cut(lines[i])
	}
	return lines
}
