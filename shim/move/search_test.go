// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

// violations runs the model and returns what went wrong, and how many processes were killed.
func violations(t *testing.T, s schedule) (wrong []string, killed int) {
	synctest.Test(t, func(*testing.T) {
		m := newModel(s)
		_, err := m.run()
		killed = m.killed
		if wrong = m.wrong; len(wrong) > 0 {
			wrong = append(wrong, fmt.Sprint(m.log), fmt.Sprint(err))
		}
	})
	return wrong, killed
}

// lateRegister delays the mover's first registration.
func lateRegister(s *schedule) {
	s.Faults = []fault{{Call: firstRegister, Kind: "late", Late: 20 * time.Second}}
}

func suspended(s *schedule) { s.Suspend = true }

// Whichever call the mover is killed at, recovery finishes the move.
func TestSearch_crashes(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*schedule){
		"":        func(*schedule) {},
		"service": func(s *schedule) { s.Service = true },
		"slow": func(s *schedule) {
			s.Eval, s.Stop, s.Start, s.Lease = 3*time.Second, 5*time.Second, 2*time.Second, 15*time.Second
		},
		"short job":   func(s *schedule) { s.Steps = 30 },
		"no room":     func(s *schedule) { s.Room = false },
		"plugin gone": func(s *schedule) { s.FailStart = 0 },
		"agent restarted": func(s *schedule) {
			s.FailStart, s.Restart = 0, 50*time.Millisecond
		},
		"empty disk":  func(s *schedule) { s.EmptyDisk = 0 },
		"target dies": func(s *schedule) { s.Events = []event{{At: 3 * time.Second, Kind: "target-dies"}} },
		"changed":     func(s *schedule) { s.Events = []event{{At: 2 * time.Second, Kind: "change"}} },
		"server slow": func(s *schedule) {
			s.Events = []event{{At: 1500 * time.Millisecond, Kind: "server", For: 5 * time.Second}}
		},
		"late register": lateRegister,
		"suspended":     suspended,
		"suspended, slow": func(s *schedule) {
			suspended(s)
			s.Eval, s.Stop, s.Start, s.Lease = 3*time.Second, 5*time.Second, 2*time.Second, 15*time.Second
		},
		"suspended, plugin gone": func(s *schedule) { suspended(s); s.FailStart = 0 },
		"suspended, agent restarted": func(s *schedule) {
			suspended(s)
			s.FailStart, s.Restart = 0, 50*time.Millisecond
		},
		"suspended, short job": func(s *schedule) { suspended(s); s.Steps = 30 },
		"suspended, collected": func(s *schedule) {
			suspended(s)
			s.Events = []event{{At: 4 * time.Second, Kind: "source-filled"}, {At: 4 * time.Second, Kind: "collected"}}
		},
		"suspended, changed":       func(s *schedule) { suspended(s); s.Events = []event{{At: 2 * time.Second, Kind: "change"}} },
		"suspended, late register": func(s *schedule) { suspended(s); lateRegister(s) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call := 1
			for killed := 1; killed > 0; call++ {
				s := faultFree()
				change(&s)
				s.Crash = []int{call}
				var wrong []string
				wrong, killed = violations(t, s)
				must.SliceEmpty(t, wrong, must.Sprintf("killed after call %d: %s", call, strings.Join(wrong, "; ")))
			}
			must.Greater(t, 5, call, must.Sprint("every call of the mover"))
		})
	}
}

// The recovering process is killed as well, at every pair of calls.
func TestSearch_pairs(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*schedule){
		"":              func(*schedule) {},
		"empty disk":    func(s *schedule) { s.EmptyDisk = 0 },
		"plugin gone":   func(s *schedule) { s.FailStart = 0 },
		"late register": lateRegister,
		"suspended":     suspended,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pairs := 0
			for first, killed := 1, 1; killed > 0; first++ {
				for second := 1; ; second++ {
					s := faultFree()
					change(&s)
					s.Crash = []int{first, second}
					var wrong []string
					wrong, killed = violations(t, s)
					must.SliceEmpty(t, wrong, must.Sprintf("killed after calls %d and %d: %s", first, second, strings.Join(wrong, "; ")))
					if killed < 2 {
						break // the second process needs fewer calls
					}
					pairs++
				}
			}
			must.Greater(t, 500, pairs)
		})
	}
}

// Ten thousand random schedules, fixed unless a flag says otherwise; failures are shrunk.
func TestSearch_random(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{"rapid.checks": "10000", "rapid.seed": "1"} {
		f := flag.Lookup(name)
		if was := f.Value.String(); was == f.DefValue {
			must.NoError(t, f.Value.Set(value))
			defer func() { must.NoError(t, f.Value.Set(was)) }()
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		ms := func(name string, least, most int) time.Duration {
			return time.Duration(rapid.IntRange(least, most).Draw(r, name)) * time.Millisecond
		}
		s := schedule{
			Service: rapid.Bool().Draw(r, "service"), Steps: rapid.SampledFrom([]int{0, 0, 15, 30, 60, 120}).Draw(r, "steps"),
			Lease: ms("lease", 1000, 60000), Save: ms("save", 1, 3000), Eval: ms("eval", 1, 5000), Stop: ms("stop", 1, 8000), Start: ms("start", 1, 5000),
			Room: rapid.IntRange(0, 5).Draw(r, "room") > 0, NoPlan: rapid.Bool().Draw(r, "no plan"), Limited: rapid.IntRange(0, 9).Draw(r, "limited") == 0, FailStart: rapid.IntRange(-3, 2).Draw(r, "fail"), EmptyDisk: rapid.IntRange(-3, 2).Draw(r, "empty"),
			Restart: ms("restart", 0, 3000), Skew: ms("skew", -100000, 100000), Report: ms("report", 0, 20000),
			Disconnect: rapid.IntRange(0, 9).Draw(r, "disconnect") == 0, Replace: rapid.Bool().Draw(r, "replace"),
			Suspend: rapid.IntRange(0, 2).Draw(r, "suspend") == 0,
		}
		for range rapid.IntRange(0, 3).Draw(r, "faults") {
			s.Faults = append(s.Faults, fault{rapid.IntRange(0, 2).Draw(r, "process"), rapid.IntRange(0, 60).Draw(r, "call"), rapid.SampledFrom([]string{"before", "after", "late", "stall"}).Draw(r, "fault"), ms("late", 1, 40000)})
		}
		for range rapid.IntRange(0, 2).Draw(r, "events") {
			s.Events = append(s.Events, event{
				At: ms("at", 900, 15000), For: ms("for", 100, 15000),
				Kind: rapid.SampledFrom([]string{"change", "stop", "alloc-stop", "collected", "server", "source-dies", "target-dies", "source-deaf", "target-deaf", "source-parts", "target-parts", "source-full", "target-full", "source-filled", "target-filled", "source-drained", "target-drained", "disconnect", "scale-0", "scale-1", "scale-2"}).Draw(r, "event"),
			})
		}
		for range rapid.IntRange(0, 3).Draw(r, "crashes") {
			s.Crash = append(s.Crash, rapid.IntRange(0, 60).Draw(r, "crash"))
		}
		// With its mover dead or unreachable a task is frozen for the lease only. If that ends
		// before another process has taken over, or Nomad has stopped the task, it runs, and may
		// end.
		if len(s.Crash)+len(s.Events)+len(s.Faults) > 0 {
			s.Lease = max(s.Lease, 50*time.Second)
		}
		// A held job waits for the process that suspends its task, however many die before.
		if s.Suspend {
			s.Lease *= time.Duration(1 + len(s.Crash))
		}
		if rapid.IntRange(0, 4).Draw(r, "two") == 0 {
			s.Mover = rapid.IntRange(1000, 6000).Draw(r, "other")
		}
		if wrong, _ := violations(t, s); len(wrong) > 0 {
			r.Fatalf("%+v: %s", s, strings.Join(wrong, "\n"))
		}
	})
}
