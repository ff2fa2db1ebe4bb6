// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package store

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/queue"
)

// Pause is an operator's request that no shim starts moves.
type Pause struct {
	By    string    `json:"by"`
	Why   string    `json:"why"`
	Since time.Time `json:"since"`
	// Until is when the pause expires; zero for never.
	Until time.Time `json:"until,omitzero"`
}

// Active reports whether the pause is set and has not expired.
func (p *Pause) Active(now time.Time) bool {
	return p != nil && (p.Until.IsZero() || now.Before(p.Until))
}

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

// Names of single variables.
const (
	LeaderName = "leader"
	pauseName  = "pause"
	reportName = "report"
)

func (s Store) Pause(ctx context.Context, p Pause) error { return s.writeJSON(ctx, pauseName, p) }

func (s Store) Resume(ctx context.Context) error { return s.remove(ctx, path.Join(s.Path, pauseName)) }

// LoadPause returns the pause, even if expired; nil if there is none.
func (s Store) LoadPause(ctx context.Context) (*Pause, error) {
	return readJSON[Pause](ctx, s, pauseName)
}

// Leader is the current or last leader.
type Leader struct {
	Holder string    `json:"holder"`
	Since  time.Time `json:"since"`
	// Leads means that it holds the lock. Only management tokens can see this.
	Leads bool `json:"leads"`
}

// Leader returns the current or last leader, nil if there was none.
func (s Store) Leader(ctx context.Context) (*Leader, error) {
	full := path.Join(s.Path, LeaderName)
	v, err := s.readVariable(ctx, full)
	if err != nil || v == nil {
		return nil, err
	}
	return &Leader{Holder: v.Items["holder"], Since: parseTime(v.Items["since"]), Leads: v.Lock != nil}, nil
}

// Report is the leader's state for `ebbtide shim status`, written when it changes.
type Report struct {
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	DryRun  bool      `json:"dry_run"`

	Nodes int `json:"nodes"`
	// Closed is why no move may start; "" if moves may.
	Closed string `json:"suspended"`
	// Started counts the moves started within a minute.
	InFlight    int `json:"in_flight"`
	InFlightMax int `json:"in_flight_max"`
	Started     int `json:"started"`
	StartedMax  int `json:"started_max"`
	// LongestStepS is the leadership's longest step, in seconds.
	LongestStepS float64 `json:"longest_step_s"`
	// Held are the jobs held for placement.
	Held []string `json:"held"`
	// Queue are the jobs of the queue, in order; at most 200.
	Queue []Queued `json:"queue"`
	// Owners are the queue's, those that have or are due most of the cluster first; at most 50.
	Owners []queue.OwnerShare `json:"owners"`
	// QueueOff is why there is no queue; "" if there is.
	QueueOff string `json:"queue_off"`
	// Reasons are the latest reason of each job. Omitted counts those that did not fit.
	Reasons []Reason `json:"reasons"`
	Omitted int      `json:"reasons_omitted"`
}

// Reason is why a job is not moved.
type Reason struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Text      string `json:"text"`
}

// Queued is a job of the queue.
type Queued struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Owner     string `json:"owner"`
	Node      string `json:"node"` // name; "" while it waits
	// Number is its place among those that wait, from 1; 0 if it runs. Suspended means that it waits with
	// a checkpoint.
	Number    int  `json:"number,omitempty"`
	Suspended bool `json:"suspended,omitempty"`
	// Start and End are when it is expected to get its place, and to end; zero if unknown.
	Start time.Time `json:"start,omitzero"`
	End   time.Time `json:"end,omitzero"`
	// FairEnd is when it would end with its fair share of the cluster; zero if unknown. Late means
	// that it would have ended.
	FairEnd time.Time `json:"fair_end,omitzero"`
	Late    bool      `json:"late"`
	// Order is an operator's, one of Do*; "" for none.
	Order    string `json:"order,omitempty"`
	Priority int    `json:"priority,omitempty"`
	Why      string `json:"why"`
}

// Heartbeat is the longest time between two reports of a leader.
const Heartbeat = 5 * time.Minute

// maxReport bounds a report, in bytes: Nomad rejects a variable of more than 64 KiB.
const maxReport = 60 << 10

// SaveReport writes a report. Of one that is too large it drops reasons, then the queue's last jobs, then its last owners.
func (s Store) SaveReport(ctx context.Context, r Report) error {
	for {
		data, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
		switch reasons, jobs, owners := len(r.Reasons)/2, len(r.Queue)/2, len(r.Owners)/2; {
		case len(data) > maxReport && len(r.Reasons) > 0:
			r.Omitted += len(r.Reasons) - reasons
			r.Reasons = r.Reasons[:reasons]
		case len(data) > maxReport && len(r.Queue) > 0:
			r.Queue = r.Queue[:jobs]
		case len(data) > maxReport && len(r.Owners) > 0:
			r.Owners = r.Owners[:owners]
		default:
			return s.write(ctx, reportName, api.VariableItems{item: string(data)})
		}
	}
}

// LoadReport returns the last report, nil if there is none.
func (s Store) LoadReport(ctx context.Context) (*Report, error) {
	return readJSON[Report](ctx, s, reportName)
}

// Overview is the state of the shims; each part may be nil.
type Overview struct {
	Leader *Leader       `json:"leader"`
	Report *Report       `json:"report"`
	Pause  *Pause        `json:"pause"`
	Moves  []move.Record `json:"moves"` // in progress
	// Unreadable are records of moves that this version cannot read.
	Unreadable []move.Unreadable `json:"unreadable"`
}

// Overview reads the state of the shims.
func (s Store) Overview(ctx context.Context) (o Overview, err error) {
	if o.Leader, err = s.Leader(ctx); err != nil {
		return o, err
	}
	if o.Report, err = s.LoadReport(ctx); err != nil {
		return o, err
	}
	if o.Pause, err = s.LoadPause(ctx); err != nil {
		return o, err
	}
	o.Moves, o.Unreadable, err = Claims{Store: s}.List(ctx)
	return o, err
}

// item is the key of an object encoded as JSON.
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
