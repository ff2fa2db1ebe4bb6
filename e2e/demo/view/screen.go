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

// Screen writes to a terminal, where the table is redrawn in place, or to a log,
// where it is written as plain lines from time to time. Its methods may be called
// from several goroutines.
type Screen struct {
	mu     sync.Mutex
	out    io.Writer
	live   bool       // a terminal that understands ANSI
	colour bool       // and may be coloured
	size   func() int // columns of the terminal
	table  []string   // as drawn
	logged time.Duration
	done   map[string]bool // jobs that the log has been told are done
}

// plainEvery is how often a log gets the table.
const plainEvery = 5 * time.Second

// NewScreen returns a Screen. size tells the terminal's width at any time.
func NewScreen(out io.Writer, live, colour bool, size func() int) *Screen {
	return &Screen{out: out, live: live, colour: colour, size: size}
}

// Look is how things are drawn on this screen.
func (s *Screen) Look() Look { return Look{Width: s.size(), Colour: s.colour} }

// Logf writes a line above the table.
func (s *Screen) Logf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := strings.TrimRight(fmt.Sprintf(format, args...), "\n") + "\n"
	if s.live {
		text = s.erase() + text + s.draw()
	}
	_, _ = io.WriteString(s.out, text)
}

// Show shows a frame instead of the one before.
func (s *Screen) Show(f Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live {
		erase := s.erase()
		// One column less: a full line would wrap on some terminals.
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

// Settle leaves the last frame where it is and goes on below it.
func (s *Screen) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table, s.done = nil, nil
}

// erase moves to the table's first line and clears to the end of the screen.
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
