// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package view

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Screen redraws a table in a terminal, or logs it periodically. It is safe for concurrent use.
type Screen struct {
	mu     sync.Mutex
	out    io.Writer
	live   bool       // a terminal with ANSI support
	colour bool       // with colours
	size   func() int // columns of the terminal
	table  []string   // as drawn
	logged time.Duration
	done   map[string]bool // jobs logged as done
}

// plainEvery is the interval of the table in a log.
const plainEvery = 15 * time.Second

// NewScreen returns a Screen. size returns the terminal's width.
func NewScreen(out io.Writer, live, colour bool, size func() int) *Screen {
	return &Screen{out: out, live: live, colour: colour, size: size}
}

func (s *Screen) Look() Look { return Look{Width: s.size(), Colour: s.colour} }

// Logf prints a line above the table.
func (s *Screen) Logf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.TrimRight(fmt.Sprintf(format, args...), "\n") + "\n"
	if s.live {
		text = s.erase() + text + s.draw()
	}
	_, _ = io.WriteString(s.out, text)
}

func (s *Screen) Show(f Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live {
		erase := s.erase()
		// One column less, as some terminals wrap full lines.
		s.table = Table(f, Look{Width: max(1, s.size()-1), Colour: s.colour})
		_, _ = io.WriteString(s.out, erase+s.draw())
		return
	}
	if s.done != nil && f.Elapsed < s.logged+plainEvery {
		return
	}
	s.logged = f.Elapsed
	for _, l := range Plain(f, s.done) {
		_, _ = io.WriteString(s.out, l+"\n")
	}
	s.done = make(map[string]bool)
	for _, l := range f.Jobs {
		s.done[l.Name] = l.State == Done
	}
}

// Settle keeps the last frame and continues below.
func (s *Screen) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table, s.done = nil, nil
}

// erase clears from the table's first line.
func (s *Screen) erase() string {
	if len(s.table) == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\r\x1b[J", len(s.table))
}

func (s *Screen) draw() string {
	if len(s.table) == 0 {
		return ""
	}
	return strings.Join(s.table, "\n") + "\n"
}
