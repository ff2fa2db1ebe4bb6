// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package watch

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/profile"
)

const mib = 1 << 20

// card is a gate as it is at each second.
type card struct {
	start time.Time
	at    func(second int) []gate.Status
}

func (c card) Stats() []gate.Status { return c.at(int(time.Since(c.start) / time.Second)) }

func status(id string, held uint64, change ...func(*gate.Status)) gate.Status {
	st := gate.Status{
		Container: identify.Container{ID: id, Namespace: "md", Job: id}, Arrived: time.Unix(1, 0),
		Usage: []gate.Usage{{Held: ledger.Entry{Committed: mib}}, {Held: ledger.Entry{Committed: held * mib}}},
	}
	for _, f := range change {
		f(&st)
	}
	return st
}

type store struct {
	runs map[string][]profile.Run
	err  error
}

func (s *store) Add(k profile.Key, r profile.Run) error {
	if s.err == nil {
		s.runs[k.Job] = append(s.runs[k.Job], r)
	}
	return s.err
}

func watch(t *testing.T, s *store, seconds int, at func(second int) []gate.Status) (log string) {
	t.Helper()
	var told strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second)
	defer cancel()
	New(card{time.Now(), at}, s, hclog.New(&hclog.LoggerOptions{Output: &told})).Run(ctx, time.Second)
	return told.String()
}

func TestWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{runs: make(map[string][]profile.Run)}
		watch(t, s, 300, func(second int) (all []gate.Status) {
			// The paper's LAMMPS job, a tenth as long: 1.7 GB, and 8.3 GB in its last seconds. It is paused for a while.
			paused := func(st *gate.Status) { st.Paused = second >= 50 && second < 90 }
			switch {
			case second >= 1 && second < 118+40:
				all = append(all, status("lammps", 1700, paused))
			case second >= 118+40 && second < 120+40:
				all = append(all, status("lammps", 8300, paused))
			}
			again := func(st *gate.Status) {
				if second >= 100 {
					st.Arrived = time.Unix(100, 0)
				}
			}
			if second >= 10 && second < 170 {
				all = append(all, status("again", 5, again))
			}
			if second < 20 {
				all = append(all, status("sooner", 7))
			}
			if second >= 20 && second < 30 {
				all = append(all, status("absent", 1000, func(st *gate.Status) { st.Disconnected = 1 }))
			}
			return append(all, status("runs", 9))
		})
		must.MapContainsKeys(t, s.runs, []string{"lammps", "again"})
		must.MapLen(t, 2, s.runs, must.Sprint("neither those whose start was not seen, nor what still runs, nor what was never connected"))
		p := s.runs["lammps"]
		must.Len(t, 1, p)
		must.True(t, p[0].Whole)
		must.InDelta(t, 119, p[0].Seconds, 2, must.Sprint("the pause does not count"))
		sum := profile.Profile{Runs: p}.Summary()
		must.Eq(t, []uint64{8300 * mib, 1700 * mib}, []uint64{sum.Peak, sum.Working})
		must.Len(t, 2, s.runs["again"], must.Sprint("a task that is restarted in place keeps its container's name"))
		must.InDelta(t, 90, s.runs["again"][0].Seconds, 2)
		must.InDelta(t, 70, s.runs["again"][1].Seconds, 2)
	})
}

func TestWatcher_storeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{err: errors.New("the disk is full")}
		log := watch(t, s, 100, func(second int) (all []gate.Status) {
			if second%10 >= 5 {
				all = append(all, status("a", 5))
			}
			return all
		})
		must.Eq(t, 1, strings.Count(log, "profiles cannot be stored"), must.Sprint(log))
	})
}
