// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/device/nvml"
)

const reportEvery = time.Second

// reports writes the state of each container to a directory for the driver, until ctx ends.
func (p *Plugin) reports(ctx context.Context, g *sharing, dir string) error {
	// Reports of an earlier plugin are stale.
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("emptying the directory of reports: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the directory of reports: %w", err)
	}
	go func() {
		last := make(map[string]handoff.Report)
		beyond := make(map[string]bool)
		for {
			now := make(map[string]handoff.Report)
			p.turns(g, dir)
			stats := g.Stats()
			var states []handoff.State
			var cards map[ledger.CardID]nvml.Card
			var on map[ledger.CardID][]nvml.Process
			if len(stats) > 0 { // do not query NVML for nothing
				cards, on = p.readCards()
			}
			for _, st := range stats {
				path := handoff.ReportPath(dir, st.Container.Alloc, st.Container.Task)
				now[path] = newReport(st, cards, on, last[path])
				states = append(states, now[path].State)
				is := exceedsGrant(now[path])
				if is && !beyond[path] {
					p.log.Warn("a container has more memory on its card than it was granted: part of it bypasses the gate",
						"alloc_id", st.Container.Alloc, "task", st.Container.Task, "cards", now[path].Cards)
				}
				beyond[path] = is
			}
			p.updateMetrics(g, stats, states)
			maps.DeleteFunc(beyond, func(path string, _ bool) bool { _, there := now[path]; return !there })
			p.writeReports(last, now)
			last = now
			select {
			case <-time.After(reportEvery):
			case <-ctx.Done():
				return
			}
		}
	}()
	return nil
}

// turns follows the driver's turns. Without them all run.
func (p *Plugin) turns(g *sharing, dir string) {
	t, err := handoff.ReadTurns(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.log.Warn("all containers run, whatever the driver says", "error", err)
	}
	now := time.Now()
	g.SetTurns(func(c identify.Container) bool { return t.Yields(now, c.Alloc, c.Task) })
}

// readCards returns the cards and the processes on each, as far as NVML reports them.
func (p *Plugin) readCards() (cards map[ledger.CardID]nvml.Card, on map[ledger.CardID][]nvml.Process) {
	cards, on = make(map[ledger.CardID]nvml.Card), make(map[ledger.CardID][]nvml.Process)
	p.mu.Lock()
	for uuid, c := range p.known {
		cards[ledger.CardID(uuid)] = c
	}
	p.mu.Unlock()
	for id := range cards {
		if u, err := p.usage(string(id)); err == nil {
			on[id] = u.Processes
		}
	}
	return cards, on
}

// Less than this beyond the grants is rounding or has just changed; more means that a program
// bypasses the gate.
const (
	slackMiB  = 256
	slackPart = 10 // a tenth of the held memory
)

func exceedsGrant(r handoff.Report) bool {
	return slices.ContainsFunc(r.Cards, func(c handoff.Card) bool {
		return c.UsedMiB > c.HeldMiB+c.ParkedMiB+max(slackMiB, c.HeldMiB/slackPart)
	})
}

// writeReports writes changed reports, and removes those of containers that have ended.
func (p *Plugin) writeReports(last, now map[string]handoff.Report) {
	var errs []error
	for path, r := range now {
		if old, ok := last[path]; !ok || !reflect.DeepEqual(r, old) {
			errs = append(errs, handoff.WriteReport(path, r))
		}
	}
	for path := range last {
		if _, ok := now[path]; !ok {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("removing a report: %w", err))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		p.log.Warn("cannot report containers to the driver", "error", err)
	}
}

func newReport(st gate.Status, cards map[ledger.CardID]nvml.Card, on map[ledger.CardID][]nvml.Process, last handoff.Report) handoff.Report {
	r := handoff.Report{
		State: handoff.Running, Since: time.Now(), Pauses: st.Pauses, PausedS: st.PausedFor.Seconds(), Parks: st.Parks, ParkedS: st.ParkedFor.Seconds(),
	}
	if st.ParkError != nil {
		r.Unparked = st.ParkError.Error()
	}
	r.NoYield = st.NoYield
	waiting := 0
	for _, u := range st.Usage {
		c := cards[u.Card]
		r.Cards = append(r.Cards, handoff.Card{
			UUID: string(u.Card), Model: c.Name, MemoryMiB: c.Memory / nvml.MiB, ShareMiB: u.Share / nvml.MiB,
			HeldMiB: (u.Held.CardUsage() - u.Held.Overhead) / nvml.MiB, UsedMiB: usedBy(st.PIDs, on[u.Card]) / nvml.MiB, ParkedMiB: u.Held.Parked / nvml.MiB, WaitingMiB: u.WaitingBytes / nvml.MiB,
		})
		r.Denied += u.Denied + u.TooLong
		r.WaitedS += u.Waited.Seconds()
		waiting += u.Waiting
		if busy := busyBy(st.PIDs, on[u.Card]); busy != nil {
			if r.BusyS != nil {
				*busy += *r.BusyS
			}
			r.BusyS = busy
		}
	}
	switch {
	case st.Lost != nil:
		r.State = handoff.Lost
		r.Why = "its GPU memory could not be restored, and the task cannot continue without it: it is being killed (" + st.Lost.Error() + ")"
	case st.Parked:
		r.State, r.Since = handoff.Parked, st.Parking.Since
		r.Why = "its GPU memory is in the host's memory"
		if by := st.Parking.By; by.Alloc != "" {
			r.Why += fmt.Sprintf(", to make room for task %q of allocation %s (job %q)", by.Task, by.Alloc[:min(8, len(by.Alloc))], by.Job)
		}
	case st.Yields:
		r.State, r.Why = handoff.Yielding, "others come first on its card"
	case waiting > 0:
		r.State, r.Why = handoff.Waiting, "waiting for GPU memory"
	}
	if r.State == last.State && r.State != handoff.Parked {
		r.Since = last.Since
	}
	return r
}

// busyBy returns how many seconds processes kept a card busy; nil if unknown.
func busyBy(pids []int, onCard []nvml.Process) *float64 {
	var busy *float64
	for _, pid := range pids {
		i := slices.IndexFunc(onCard, func(p nvml.Process) bool { return p.PID == pid })
		if i < 0 || onCard[i].BusyS == nil {
			continue
		}
		if busy == nil {
			busy = new(float64)
		}
		*busy += *onCard[i].BusyS
	}
	return busy
}

// tasksDir is the directory of task identities, next to the gate's, which containers see.
func tasksDir(gateDir string) string { return filepath.Clean(gateDir) + ".tasks" }

// reportsDir is the directory of reports, next to the gate's, which containers see.
func reportsDir(gateDir string) string { return filepath.Clean(gateDir) + ".reports" }
