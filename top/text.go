// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package top

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"github.com/ebbtide/ebbtide/driver/status"
)

// maxText bounds a rendered text, in bytes.
const maxText = 2048

// Clean makes a text from a job or task safe for a terminal: control, direction and unprintable
// characters become "?", line breaks spaces. With plain, the result is ASCII.
func Clean(text string, plain bool) string {
	if len(text) > maxText {
		text = text[:maxText]
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r == utf8.RuneError, unicode.IsControl(r), unicode.In(r, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zl, unicode.Zp):
			return '?'
		case plain && r == '…':
			return '~'
		case plain && r == '−':
			return '-'
		case plain && r > unicode.MaxASCII:
			return '?'
		}
		return r
	}, text)
}

// wide returns the number of terminal columns.
func wide(text string) int {
	for i := range len(text) {
		if text[i] >= utf8.RuneSelf {
			return ansi.StringWidth(text)
		}
	}
	return len(text)
}

func (l Layout) cut(text string, width int) string {
	if wide(text) <= width {
		return text
	}
	mark := "…"
	if l.ASCII {
		mark = "~"
	}
	if width < 1 {
		return ""
	}
	return ansi.Truncate(text, width, mark)
}

func (l Layout) pad(text string, width int, right bool) string {
	text = l.cut(text, width)
	space := strings.Repeat(" ", max(0, width-wide(text)))
	if right {
		return space + text
	}
	return text + space
}

func wrap(text string, width int) []string {
	return strings.Split(ansi.Wrap(text, max(width, 1), " "), "\n")
}

func number(n status.Number) string {
	if !n.Known() {
		return "-"
	}
	return strconv.FormatFloat(float64(n), 'g', 4, 64)
}

func percent(n status.Number) string {
	if !n.Known() || math.Abs(float64(n)) > 1e6 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*float64(n))
}

// count renders a number of steps in about five characters.
func count(n status.Number) string {
	f := float64(n)
	if !n.Known() {
		return "-"
	}
	for _, u := range []struct {
		of   float64
		name string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e5, "k"}} {
		if math.Abs(f) >= u.of {
			of := u.of
			if u.name == "k" {
				of = 1e3
			}
			return strconv.FormatFloat(f/of, 'f', 0, 64) + u.name
		}
	}
	return strconv.FormatFloat(f, 'f', -1, 32)
}

func steps(s *status.Status) string {
	switch {
	case !s.Step.Known():
		return "-"
	case !s.Total.Known():
		return count(s.Step)
	}
	return count(s.Step) + "/" + count(s.Total)
}

// span renders a duration with one or two units.
func span(d time.Duration) string {
	sign := ""
	if d = d.Truncate(time.Second); d < 0 {
		sign, d = "-", -d
	}
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%s%ds", sign, int(d.Seconds()))
	case d < 10*time.Minute && d%time.Minute >= time.Second:
		return fmt.Sprintf("%s%dm%ds", sign, int(d.Minutes()), int(d.Seconds())%60)
	case d < time.Hour:
		return fmt.Sprintf("%s%dm", sign, int(d.Minutes()))
	case d < 10*time.Hour && d%time.Hour >= time.Minute:
		return fmt.Sprintf("%s%dh%dm", sign, int(d.Hours()), int(d.Minutes())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%s%dh", sign, int(d.Hours()))
	}
	return fmt.Sprintf("%s%dd", sign, int(d.Hours())/24)
}

func seconds(n status.Number) string {
	if !n.Known() || math.Abs(float64(n)) > 1e9 {
		return "-"
	}
	return span(time.Duration(float64(n) * float64(time.Second)))
}
