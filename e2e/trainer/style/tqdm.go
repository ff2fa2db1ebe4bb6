// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package style

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// bar is tqdm's (4.66) progress bar, without the carriage return. A total of 0 is unknown;
// elapsed is for done − first steps.
func bar(name string, done, total, first int, elapsed time.Duration, postfix string) string {
	if name != "" {
		name += ": "
	}
	if postfix != "" {
		postfix = ", " + postfix
	}
	rate := perSecond(done-first, elapsed)
	speed := "?it/s"
	switch {
	case rate > 0 && rate < 1:
		speed = fmt.Sprintf("%5.2fs/it", 1/rate)
	case rate > 0:
		speed = fmt.Sprintf("%5.2fit/s", rate)
	}
	if total <= 0 {
		return fmt.Sprintf("%s%dit [%s, %s%s]", name, done, clock(elapsed), speed, postfix)
	}
	left := "?"
	if rate > 0 {
		left = clock(time.Duration(float64(total-done) / rate * float64(time.Second)))
	}
	fraction := float64(done) / float64(total)
	return fmt.Sprintf("%s%3.0f%%|%s| %d/%d [%s<%s, %s%s]",
		name, 100*fraction, blocks(fraction, 10), done, total, clock(elapsed), left, speed, postfix)
}

// blocks draws a bar in eighths of a cell.
func blocks(fraction float64, width int) string {
	eighths := int(fraction * float64(8*width))
	full, part := eighths/8, eighths%8
	text := strings.Repeat("█", full)
	if part > 0 && full < width {
		text += string([]rune(" ▏▎▍▌▋▊▉")[part])
	}
	return text + strings.Repeat(" ", width-utf8.RuneCountInString(text))
}

// clock renders 01:23 or 1:02:03.
func clock(d time.Duration) string {
	s := int(d.Seconds())
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%02d:%02d", s/60, s%60)
}

// tqdmNumber returns the shorter of three significant digits and repr.
func tqdmNumber(v float64) string {
	text := printf("%.3g", v)
	text = strings.Replace(strings.Replace(text, "e+0", "e+", 1), "e-0", "e-", 1)
	if full := python(v); len(full) <= len(text) {
		return full
	}
	return text
}
