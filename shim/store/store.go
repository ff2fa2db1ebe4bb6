// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package store keeps the shim's persistent state in Nomad variables: decisions per job, the
// history of moves, their records, the operators' pause and the leader's report.
package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
)

// Job is the memory of a job.
type Job struct {
	// Marked is when SpeCon's Algorithm 2 decided about the job; zero if never.
	Marked time.Time
	// Rebalanced means that Algorithm 3 has moved the job.
	Rebalanced bool
	// Last is the end of the last move; Failures counts consecutive failures.
	Last     time.Time
	Failures int
	// CostS is how long the last move took to save and then to run on the target, in seconds, 0 if
	// unknown.
	CostS float64
	// Served is what the queue remembers of a job that it has suspended; nil if it never has.
	Served *Served
}

// Served is a job's state when it was last suspended.
type Served struct {
	At time.Time `json:"at"`
	// S is how long it had run, less what was lost; FairS what its twin had had; RemainingS what it
	// still needed, null if unknown; SaveS how long saving took. All in seconds.
	S          float64     `json:"s"`
	FairS      float64     `json:"fair_s"`
	RemainingS *float64    `json:"remaining_s"`
	SaveS      float64     `json:"save_s"`
	Tasks      []move.Task `json:"tasks"` // what it had saved
}

// Entry records a move or placement, or what a dry run would have done.
type Entry struct {
	Time      time.Time
	Namespace string
	Job       string
	Alloc     string
	NewAlloc  string
	From, To  string // node names
	Policy    string // flowcon-place, specon-migrate, specon-rebalance, relocate
	Rule, Why string
	Scores    string // by node, as JSON
	Phase     string
	Error     string
	DownS     string // downtime in seconds
	DryRun    bool
	Owner     string `json:",omitempty"` // of a move in progress
}

const (
	maxEntries  = 200
	maxParallel = 16
)

// Store accesses the variables below Path.
type Store struct {
	Client          *api.Client
	Namespace, Path string
}

// Locate replaces an empty Namespace by the one in which a shim last became the leader, as far as
// the token may list that; "default" if there is none.
func (s Store) Locate(ctx context.Context) (Store, error) {
	if s.Namespace != "" {
		return s, nil
	}
	lock := path.Join(s.Path, LeaderName)
	metas, _, err := s.Client.Variables().PrefixList(lock, (&api.QueryOptions{Namespace: api.AllNamespacesNamespace}).WithContext(ctx))
	var response api.UnexpectedResponseError
	if err != nil && !(errors.As(err, &response) && response.StatusCode() == http.StatusForbidden) { // it may have rights in "default"
		return s, fmt.Errorf("looking for the shim's namespace: %w", err)
	}
	s.Namespace = api.DefaultNamespace
	var last uint64
	for _, m := range metas {
		if m.Path == lock && m.ModifyIndex > last {
			s.Namespace, last = m.Namespace, m.ModifyIndex
		}
	}
	return s, nil
}

func (s Store) write(ctx context.Context, name string, items api.VariableItems) error {
	v := &api.Variable{Namespace: s.Namespace, Path: path.Join(s.Path, name), Items: items}
	_, _, err := s.Client.Variables().Update(v, (&api.WriteOptions{Namespace: s.Namespace}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("writing variable %s: %w", v.Path, err)
	}
	return nil
}

func (s Store) remove(ctx context.Context, full string) error {
	_, err := s.Client.Variables().Delete(full, (&api.WriteOptions{Namespace: s.Namespace}).WithContext(ctx))
	if err != nil {
		return fmt.Errorf("removing variable %s: %w", full, err)
	}
	return nil
}

// list returns the sorted paths of all variables below name.
func (s Store) list(ctx context.Context, name string) ([]string, error) {
	prefix := path.Join(s.Path, name) + "/"
	metas, _, err := s.Client.Variables().PrefixList(prefix, (&api.QueryOptions{Namespace: s.Namespace}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("listing variables %s: %w", prefix, err)
	}
	var paths []string
	for _, m := range metas {
		paths = append(paths, m.Path)
	}
	slices.Sort(paths)
	return paths, nil
}

func (s Store) read(ctx context.Context, full string) (api.VariableItems, error) {
	v, err := s.readVariable(ctx, full)
	if err != nil || v == nil {
		return nil, err
	}
	return v.Items, nil
}

// readVariable reads a variable; nil if there is none.
func (s Store) readVariable(ctx context.Context, full string) (*api.Variable, error) {
	v, _, err := s.Client.Variables().Read(full, (&api.QueryOptions{Namespace: s.Namespace}).WithContext(ctx))
	if errors.Is(err, api.ErrVariablePathNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading variable %s: %w", full, err)
	}
	return v, nil
}

// jobName escapes characters that a variable's path cannot contain.
func jobName(key cluster.JobKey) string {
	return path.Join("jobs", escape(key.Namespace), escape(key.ID))
}

// escape encodes a name with letters, digits, "-", "_" and "~" only.
func escape(name string) string {
	return strings.NewReplacer("~", "~7E", ".", "~2E", "%", "~", "+", "~20").Replace(url.QueryEscape(name))
}

func unescape(name string) (string, error) {
	return url.PathUnescape(strings.ReplaceAll(name, "~", "%"))
}

func (s Store) SaveJob(ctx context.Context, key cluster.JobKey, j Job) error {
	served := ""
	if j.Served != nil {
		data, err := json.Marshal(j.Served)
		if err != nil {
			return fmt.Errorf("writing a job's memory: %w", err)
		}
		served = string(data)
	}
	return s.write(ctx, jobName(key), api.VariableItems{
		"served": served,
		"marked": formatTime(j.Marked), "rebalanced": strconv.FormatBool(j.Rebalanced), "last": formatTime(j.Last), "failures": strconv.Itoa(j.Failures),
		"cost_s": strconv.FormatFloat(j.CostS, 'f', 2, 64),
	})
}

func (s Store) DeleteJob(ctx context.Context, key cluster.JobKey) error {
	return s.remove(ctx, path.Join(s.Path, jobName(key)))
}

func (s Store) Jobs(ctx context.Context) (map[cluster.JobKey]Job, error) {
	paths, err := s.list(ctx, "jobs")
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	jobs := make(map[cluster.JobKey]Job, len(paths))
	// Concurrently: there may be ten thousand, and a new leader waits for them.
	reading, ctx := errgroup.WithContext(ctx)
	reading.SetLimit(maxParallel)
	for _, p := range paths {
		reading.Go(func() error {
			items, err := s.read(ctx, p)
			if err != nil {
				return err
			}
			dir, id := path.Split(p)
			key := cluster.JobKey{}
			if key.ID, err = unescape(id); err == nil {
				key.Namespace, err = unescape(path.Base(dir))
			}
			if err != nil || items == nil {
				return nil // not an entry, or deleted meanwhile
			}
			j := Job{Marked: parseTime(items["marked"]), Last: parseTime(items["last"])}
			j.Rebalanced, _ = strconv.ParseBool(items["rebalanced"])
			j.Failures, _ = strconv.Atoi(items["failures"])
			j.CostS, _ = strconv.ParseFloat(items["cost_s"], 64)
			if served := new(Served); json.Unmarshal([]byte(items["served"]), served) == nil {
				j.Served = served
			}
			mu.Lock()
			defer mu.Unlock()
			jobs[key] = j
			return nil
		})
	}
	return jobs, reading.Wait()
}

// AddEntry appends an entry and drops the oldest beyond maxEntries.
func (s Store) AddEntry(ctx context.Context, e Entry) error {
	name := fmt.Sprintf("moves/%020d-%s", e.Time.UnixNano(), escape(cmp.Or(e.Alloc, e.Job)))
	err := s.write(ctx, name, api.VariableItems{
		"time": formatTime(e.Time), "namespace": e.Namespace, "job": e.Job, "alloc": e.Alloc, "new_alloc": e.NewAlloc, "from": e.From, "to": e.To,
		"policy": e.Policy, "rule": e.Rule, "why": e.Why, "scores": e.Scores, "phase": e.Phase, "error": e.Error, "down_s": e.DownS,
		"dry_run": strconv.FormatBool(e.DryRun),
	})
	if err != nil {
		return err
	}
	paths, err := s.list(ctx, "moves")
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range paths[:max(0, len(paths)-maxEntries)] {
		errs = append(errs, s.remove(ctx, p))
	}
	return errors.Join(errs...)
}

// Entries returns all entries, oldest first.
func (s Store) Entries(ctx context.Context) ([]Entry, error) {
	known, err := s.EntriesSince(ctx, nil)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for _, name := range slices.Sorted(maps.Keys(known)) {
		entries = append(entries, known[name])
	}
	return entries, nil
}

// EntriesSince returns all entries by path; the paths sort by time. Entries in before are not read
// again, since entries never change.
func (s Store) EntriesSince(ctx context.Context, before map[string]Entry) (map[string]Entry, error) {
	paths, err := s.list(ctx, "moves")
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	known := make(map[string]Entry, len(paths))
	reading, ctx := errgroup.WithContext(ctx)
	reading.SetLimit(maxParallel)
	for _, p := range paths {
		if e, ok := before[p]; ok {
			mu.Lock()
			known[p] = e
			mu.Unlock()
			continue
		}
		reading.Go(func() error {
			i, err := s.read(ctx, p)
			if err != nil || i == nil {
				return err
			}
			e := Entry{
				Time: parseTime(i["time"]), Namespace: i["namespace"], Job: i["job"], Alloc: i["alloc"], NewAlloc: i["new_alloc"], From: i["from"], To: i["to"],
				Policy: i["policy"], Rule: i["rule"], Why: i["why"], Scores: i["scores"], Phase: i["phase"], Error: i["error"], DownS: i["down_s"],
			}
			e.DryRun, _ = strconv.ParseBool(i["dry_run"])
			mu.Lock()
			defer mu.Unlock()
			known[p] = e
			return nil
		})
	}
	return known, reading.Wait()
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func parseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return t
}
