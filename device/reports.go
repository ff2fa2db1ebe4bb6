// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/nvml"
	"github.com/ebbtide/ebbtide/device/seat"
)

// reportEvery is how often containers are looked at, to tell the driver of them.
const reportEvery = time.Second

// reports writes how each container fares to a directory, for the driver, until ctx ends.
func (p *Plugin) reports(ctx context.Context, g *gate.Gate, dir string, cards map[ledger.CardID]nvml.Card) error {
	// What a plugin before this one has left is of no use.
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("emptying the directory of reports: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of reports: %w", err)
	}
	go func() {
		last := make(map[string]seat.Report)
		for {
			now := make(map[string]seat.Report)
			for _, st := range g.Stats() {
				path := seat.ReportPath(dir, st.Container.Alloc, st.Container.Task)
				now[path] = report(st, cards, last[path])
			}
			p.write(last, now)
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

// write writes what has changed, and removes what is gone.
func (p *Plugin) write(last, now map[string]seat.Report) {
	var errs []error
	for path, r := range now {
		if old, ok := last[path]; !ok || !reflect.DeepEqual(r, old) {
			errs = append(errs, seat.WriteReport(path, r))
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
		p.log.Warn("the driver is not told how containers fare", "error", err)
	}
}

// report is how a container fares, given what was said of it last.
func report(st gate.Status, cards map[ledger.CardID]nvml.Card, last seat.Report) seat.Report {
	r := seat.Report{
		State: seat.Running, Since: time.Now(), Pauses: st.Pauses, PausedS: st.PausedFor.Seconds(), Parks: st.Parks, ParkedS: st.ParkedFor.Seconds(),
	}
	if st.Unparked != nil {
		r.Unparked = st.Unparked.Error()
	}
	waiting := 0
	for _, u := range st.Usage {
		c := cards[u.Card]
		r.Cards = append(r.Cards, seat.Card{
			UUID: string(u.Card), Model: c.Name, MemoryMiB: c.Memory / nvml.MiB, ShareMiB: u.Limit / nvml.MiB,
			HeldMiB: u.Held.Taken() / nvml.MiB, ParkedMiB: u.Held.Parked / nvml.MiB, WaitingMiB: u.WaitingBytes / nvml.MiB,
		})
		r.Denied += u.Denied + u.TooLong
		r.WaitedS += u.Waited.Seconds()
		waiting += u.Waiting
	}
	switch {
	case st.Parked:
		r.State, r.Since = seat.Parked, st.Parking.Since
		r.Why = "its GPU memory is in the host's memory"
		if by := st.Parking.By; by.Alloc != "" {
			r.Why += fmt.Sprintf(", to make room for task %q of allocation %s (job %q)", by.Task, by.Alloc[:min(8, len(by.Alloc))], by.Job)
		}
	case st.Paused:
		r.State, r.Why = seat.Paused, "its GPU memory is about to rise when there is no room for it"
	case waiting > 0:
		r.State, r.Why = seat.Waiting, "it waits for GPU memory"
	}
	if r.State == last.State && r.State != seat.Parked {
		r.Since = last.Since
	}
	return r
}

// reportsDir is where reports lie: beside what containers see.
func reportsDir(gateDir string) string { return filepath.Clean(gateDir) + ".reports" }
