// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/version"
)

// operatorState is the pause that operators set for all shims.
type operators struct {
	pause    *memory.Pause
	paused   bool // the pause was in effect at the last read
	attended bool // read at least once
	asked    time.Time
	hearing  bool // a read is in progress
}

// readPause reads the operators' pause. Nothing is decided before the first successful read.
func (t *term) attend() {
	if t.hearing || time.Since(t.asked) < lookEvery {
		return
	}
	t.hearing, t.asked = true, time.Now()
	t.send(func() func() {
		ctx, cancel := context.WithTimeout(t.leading, askWithin)
		defer cancel()
		pause, err := t.book.store.Paused(ctx)
		return func() {
			t.hearing = false
			if err != nil {
				t.log.Warn("it is not known whether moves may begin", "error", err)
				return
			}
			was := t.paused
			t.pause, t.attended, t.paused = pause, true, pause.Holds(time.Now())
			switch {
			case t.paused && !was:
				t.log.Info("no move begins: " + pause.String())
			case !t.paused && was:
				t.log.Info("moves may begin again")
			}
		}
	})
}

// suspended says why no move may start at all, "" if moves may.
func (t *term) closed(c config.Config) string {
	now := time.Now()
	if t.pause.Holds(now) {
		return t.pause.String()
	}
	return c.Closed(now)
}

// Bounds of a report, which has to fit into a Nomad variable.
const (
	mostSaid    = 200
	mostWaiting = 50
	longestSaid = 200 // bytes
)

// report writes the state shown by `ebbtide shim status`, if it has changed.
func (t *term) report(c config.Config, held []*cluster.Job) {
	now := time.Now()
	r := memory.Report{
		Version: version.String(), DryRun: c.DryRun, Nodes: len(t.state.Nodes), Closed: t.closed(c),
		InFlightMax: c.Limits.InFlight, BegunMax: c.Limits.MovesPerMinute, Waiting: []string{}, Said: []memory.Said{},
	}
	r.InFlight, r.Begun = t.gate.Spent(now)
	for _, j := range held {
		r.Waiting = append(r.Waiting, j.Key.Namespace+"/"+j.Key.ID)
	}
	slices.Sort(r.Waiting)
	r.Waiting = r.Waiting[:min(len(r.Waiting), mostWaiting)]
	keys := slices.SortedFunc(maps.Keys(t.told), func(a, b cluster.JobKey) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.ID, b.ID))
	})
	for _, key := range keys[:min(len(keys), mostSaid)] {
		what := t.told[key]
		r.Said = append(r.Said, memory.Said{Namespace: key.Namespace, Job: key.ID, What: strings.ToValidUTF8(what[:min(len(what), longestSaid)], "")})
	}
	r.Unsaid = len(keys) - len(r.Said)
	r.At, r.LongestStepS = t.reported.At, t.reported.LongestStepS
	if reflect.DeepEqual(r, t.reported) {
		return
	}
	r.At, r.LongestStepS = now, t.longest.Seconds()
	t.reported = r
	t.book.add(entry{
		failed: "what is done is not reported",
		write:  func(ctx context.Context) error { return t.book.store.Report(ctx, r) },
		then:   func() { t.reported = memory.Report{} },
	})
}
