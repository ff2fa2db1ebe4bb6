// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"time"

	"github.com/hashicorp/cronexpr"
)

// Window is a recurring time when moves may start.
type Window struct {
	Name     string
	Cron     string // start, as in a job's periodic block
	Duration time.Duration
	TimeZone string // of Cron, such as Europe/Berlin
}

// starts returns a function for the first start after a time.
func (w Window) starts() (func(time.Time) time.Time, error) {
	zone, err := time.LoadLocation(w.TimeZone)
	if err != nil {
		return nil, fmt.Errorf("window %q: time_zone: must be a name like Europe/Berlin, got %q", w.Name, w.TimeZone)
	}
	cron, err := cronexpr.Parse(w.Cron)
	if err != nil {
		return nil, fmt.Errorf("window %q: cron: must be an expression like \"0 22 * * *\", got %q: %w", w.Name, w.Cron, err)
	}
	return func(after time.Time) time.Time { return cron.Next(after.In(zone)) }, nil
}

func (w Window) Validate() error {
	if _, err := w.starts(); err != nil {
		return err
	}
	if w.Duration < time.Minute || w.Duration > 7*24*time.Hour {
		return fmt.Errorf("window %q: duration: must be from 1m to 168h, got %v", w.Name, w.Duration)
	}
	return nil
}

// Closed returns why moves may not start outside the windows, "" if they may.
func (c Config) Closed(now time.Time) string {
	var next time.Time
	for _, w := range c.Windows {
		starts, err := w.starts()
		if err != nil {
			continue // reported by Validate
		}
		start := starts(now.Add(-w.Duration))
		if !start.IsZero() && !start.After(now) {
			return ""
		}
		if next.IsZero() || !start.IsZero() && start.Before(next) {
			next = start
		}
	}
	switch {
	case len(c.Windows) == 0:
		return ""
	case next.IsZero():
		return "no further window is scheduled"
	}
	return "the next window starts " + next.UTC().Format(time.RFC3339)
}
