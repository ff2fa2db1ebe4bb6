// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package app

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/e2e/trainer/model"
)

// usageError is an invalid command line.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// flags adds common kinds of values.
type flags struct{ *flag.FlagSet }

func newFlags(name string) flags {
	fs := flags{flag.NewFlagSet(name, flag.ContinueOnError)}
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	return fs
}

// parse returns a *usageError, or flag.ErrHelp with the text.
func (fs flags) parse(args []string) (string, error) {
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			var help strings.Builder
			fs.SetOutput(&help)
			fs.PrintDefaults()
			return help.String(), err
		}
		return "", &usageError{err.Error()}
	}
	if fs.NArg() > 0 {
		return "", &usageError{fmt.Sprintf("unexpected argument %q: options begin with -", fs.Arg(0))}
	}
	return "", nil
}

func (fs flags) whole(name, usage string, low, high int, set func(int)) {
	fs.Func(name, usage, func(text string) error {
		v, err := strconv.Atoi(text)
		if err != nil || v < low || v > high {
			if high == math.MaxInt {
				return fmt.Errorf("must be a whole number ≥ %d", low)
			}
			return fmt.Errorf("must be a whole number from %d to %d", low, high)
		}
		set(v)
		return nil
	})
}

func (fs flags) number(name, usage string, low, high float64, to *float64) {
	fs.Func(name, usage, func(text string) error {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || !(v >= low && v <= high) {
			return fmt.Errorf("must be a number from %g to %g", low, high)
		}
		*to = v
		return nil
	})
}

func (fs flags) duration(name, usage string, low time.Duration, to *time.Duration) {
	fs.Func(name, usage, func(text string) error {
		v, err := time.ParseDuration(text)
		if err != nil || v < low {
			example := "5ms"
			if low > 5*time.Millisecond {
				example = "5s"
			}
			if low == 0 {
				return fmt.Errorf("must be a duration ≥ 0 such as %s", example)
			}
			return fmt.Errorf("must be a duration ≥ %v such as %s", low, example)
		}
		*to = v
		return nil
	})
}

func (fs flags) address(name, usage string, to *string) {
	fs.Func(name, usage, func(text string) error {
		_, port, err := net.SplitHostPort(text)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil {
			return errors.New("must be an address and a port such as 127.0.0.1:8000; port 0 is any that is free")
		}
		*to = text
		return nil
	})
}

func (fs flags) seed(usage string, to *uint64) {
	fs.Func("seed", usage, func(text string) (err error) {
		if *to, err = strconv.ParseUint(text, 10, 64); err != nil {
			return errors.New("must be a whole number from 0 to 2⁶⁴−1")
		}
		return nil
	})
}

func (fs flags) exitCode(to *int) {
	fs.whole("exit-code", "exit `status` after SIGTERM or SIGINT, e.g. 143 (default 0)", 0, 255, func(v int) { *to = v })
	fs.whole("term-exit", "the same as -exit-code: `status` after SIGTERM or SIGINT", 0, 255, func(v int) { *to = v })
}

func optional(p **int) func(int) { return func(v int) { *p = &v } }

func given(p *int, to *int) {
	if p != nil {
		*to = *p
	}
}

func checkSizes(s *model.Spec, hidden *int, fail func(format string, args ...any)) {
	if hidden != nil && !s.HasHidden {
		fail("invalid value \"%d\" for flag -hidden: %s has no hidden layer, leave it out", *hidden, s.Name)
	}
	if side := int(math.Round(math.Sqrt(float64(s.Dim)))); s.Square && side*side != s.Dim {
		fail("invalid value \"%d\" for flag -dim: must be a square number for %s, e.g. %d", s.Dim, s.Name, side*side)
	}
	if s.Name == "gru" && (s.Dim < 2 || s.Dim > maxSymbols) {
		fail("invalid value \"%d\" for flag -dim: must be from 2 to %d for gru", s.Dim, maxSymbols)
	}
}
