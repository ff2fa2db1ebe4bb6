// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package memory

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/move"
)

// Pause is what operators have told all shims: to begin no moves.
type Pause struct {
	By    string    `json:"by"`
	Why   string    `json:"why"`
	Since time.Time `json:"since"`
	// Until is when it ends by itself; zero: when somebody ends it.
	Until time.Time `json:"until,omitzero"`
}

// Holds says whether the pause is not over.
func (p *Pause) Holds(now time.Time) bool {
	return p != nil && (p.Until.IsZero() || now.Before(p.Until))
}

// String is for people.
func (p *Pause) String() string {
	text := fmt.Sprintf("paused by %s since %s", p.By, p.Since.UTC().Format(time.RFC3339))
	if !p.Until.IsZero() {
		text += " until " + p.Until.UTC().Format(time.RFC3339)
	}
	if p.Why != "" {
		text += ": " + p.Why
	}
	return text
}

// The names of single variables.
const (
	LeaderName = "leader"
	pauseName  = "pause"
	reportName = "report"
)

// Pause pauses all shims.
func (s Store) Pause(ctx context.Context, p Pause) error { return s.writeJSON(ctx, pauseName, p) }

// Resume ends a pause.
func (s Store) Resume(ctx context.Context) error { return s.remove(ctx, path.Join(s.Path, pauseName)) }

// Paused returns the pause, also one that is over; nil if there is none.
func (s Store) Paused(ctx context.Context) (*Pause, error) { return readJSON[Pause](ctx, s, pauseName) }

// Leader is the shim that leads, or has led last.
type Leader struct {
	Holder string    `json:"holder"`
	Since  time.Time `json:"since"`
	// Leads says that it holds the lock now. Nomad shows that to management tokens only.
	Leads bool `json:"leads"`
}

// Leader returns the shim that leads; nil if none ever has.
func (s Store) Leader(ctx context.Context) (*Leader, error) {
	full := path.Join(s.Path, LeaderName)
	v, err := s.readVariable(ctx, full)
	if err != nil || v == nil {
		return nil, err
	}
	return &Leader{Holder: v.Items["holder"], Since: when(v.Items["since"]), Leads: v.Lock != nil}, nil
}

// Report is what the shim that leads says of itself, for people. It is written when it has
// changed.
type Report struct {
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	DryRun  bool      `json:"dry_run"`

	Nodes int `json:"nodes"`
	// Closed is why no move begins at all; "" if moves may.
	Closed string `json:"closed"`
	// InFlight are moves under way of at most InFlightMax, and Begun those that have begun
	// within a minute of at most BegunMax.
	InFlight    int `json:"in_flight"`
	InFlightMax int `json:"in_flight_max"`
	Begun       int `json:"begun"`
	BegunMax    int `json:"begun_max"`
	// LongestStepS is how long the loop was busy with one thing at most, in seconds.
	LongestStepS float64 `json:"longest_step_s"`
	// Waiting are the jobs that wait for a node.
	Waiting []string `json:"waiting"`
	// Said is what was said last of jobs: why they are not moved. More are not kept (Unsaid).
	Said   []Said `json:"said"`
	Unsaid int    `json:"unsaid"`
}

// Said is what was said of a job.
type Said struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	What      string `json:"what"`
}

// Report writes a report down.
func (s Store) Report(ctx context.Context, r Report) error { return s.writeJSON(ctx, reportName, r) }

// Reported returns the last report; nil if there is none.
func (s Store) Reported(ctx context.Context) (*Report, error) {
	return readJSON[Report](ctx, s, reportName)
}

// Overview is what is known of the shims. Each part may be nil.
type Overview struct {
	Leader *Leader       `json:"leader"`
	Report *Report       `json:"report"`
	Pause  *Pause        `json:"pause"`
	Moves  []move.Record `json:"moves"` // under way
}

// Overview reads what is known of the shims.
func (s Store) Overview(ctx context.Context) (o Overview, err error) {
	if o.Leader, err = s.Leader(ctx); err != nil {
		return o, err
	}
	if o.Report, err = s.Reported(ctx); err != nil {
		return o, err
	}
	if o.Pause, err = s.Paused(ctx); err != nil {
		return o, err
	}
	o.Moves, err = Claims{Store: s}.List(ctx)
	return o, err
}

// item is the one that holds an object.
const item = "json"

func (s Store) writeJSON(ctx context.Context, name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("writing variable %s: %w", path.Join(s.Path, name), err)
	}
	return s.write(ctx, name, api.VariableItems{item: string(data)})
}

func readJSON[T any](ctx context.Context, s Store, name string) (*T, error) {
	full := path.Join(s.Path, name)
	items, err := s.read(ctx, full)
	if err != nil || items == nil {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal([]byte(items[item]), v); err != nil {
		return nil, fmt.Errorf("reading variable %s: %w", full, err)
	}
	return v, nil
}
