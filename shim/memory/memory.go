// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package memory is what the shim remembers beyond its own life, in Nomad variables: what
// was decided about each job, so that it is moved once only, and what was done and why.
package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
)

// Job is what is remembered of a job.
type Job struct {
	// Marked is when it was decided whether it moves or stays (SpeCon, Algorithm 2); zero:
	// not yet.
	Marked time.Time
	// Rebalanced says that it was moved for balance (Algorithm 3).
	Rebalanced bool
	// Last is when its last move ended, and Failures how many have failed in a row.
	Last     time.Time
	Failures int
	// CostS is for how long the last move kept it from running, in seconds; 0: not known.
	CostS float64
}

// Entry is one thing that was done, or would have been.
type Entry struct {
	Time      time.Time
	Namespace string
	Job       string
	Alloc     string
	NewAlloc  string
	From, To  string // names of nodes
	Policy    string // flowcon-place, specon-migrate, specon-rebalance
	Rule, Why string
	Scores    string // of the nodes, as JSON
	Phase     string // how far it came
	Error     string
	DownS     string // for how many seconds nothing ran
	DryRun    bool
	Owner     string `json:",omitempty"` // of one that is under way
}

// kept is how many entries are kept, and atATime how many variables are read side by side.
const (
	kept    = 200
	atATime = 16
)

// Store keeps both.
type Store struct {
	Client          *api.Client
	Namespace, Path string
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

// list returns the paths of all variables beneath a name, in order.
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

// readVariable returns nil if there is none.
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

// A job's name may hold what the path of a variable may not.
func jobName(key cluster.JobKey) string {
	return path.Join("jobs", escape(key.Namespace), escape(key.ID))
}

// escape writes a name with letters, digits, "-", "_" and "~" only.
func escape(name string) string {
	return strings.NewReplacer("~", "~7E", ".", "~2E", "%", "~", "+", "~20").Replace(url.QueryEscape(name))
}

func unescape(name string) (string, error) {
	return url.PathUnescape(strings.ReplaceAll(name, "~", "%"))
}

// Keep remembers a job.
func (s Store) Keep(ctx context.Context, key cluster.JobKey, j Job) error {
	return s.write(ctx, jobName(key), api.VariableItems{
		"marked": stamp(j.Marked), "rebalanced": strconv.FormatBool(j.Rebalanced), "last": stamp(j.Last), "failures": strconv.Itoa(j.Failures),
		"cost_s": strconv.FormatFloat(j.CostS, 'f', 2, 64),
	})
}

// Forget forgets a job that is no more.
func (s Store) Forget(ctx context.Context, key cluster.JobKey) error {
	return s.remove(ctx, path.Join(s.Path, jobName(key)))
}

// Jobs returns all that is remembered of jobs.
func (s Store) Jobs(ctx context.Context) (map[cluster.JobKey]Job, error) {
	paths, err := s.list(ctx, "jobs")
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	jobs := make(map[cluster.JobKey]Job, len(paths))
	// A cluster may have ten thousand, and the next leader waits for them.
	reading, ctx := errgroup.WithContext(ctx)
	reading.SetLimit(atATime)
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
				return nil // nothing of ours, or gone meanwhile
			}
			j := Job{Marked: when(items["marked"]), Last: when(items["last"])}
			j.Rebalanced, _ = strconv.ParseBool(items["rebalanced"])
			j.Failures, _ = strconv.Atoi(items["failures"])
			j.CostS, _ = strconv.ParseFloat(items["cost_s"], 64)
			mu.Lock()
			defer mu.Unlock()
			jobs[key] = j
			return nil
		})
	}
	return jobs, reading.Wait()
}

// Note writes down what was done, and drops what is too old.
func (s Store) Note(ctx context.Context, e Entry) error {
	name := fmt.Sprintf("moves/%020d-%s", e.Time.UnixNano(), escape(cmp.Or(e.Alloc, e.Job)))
	err := s.write(ctx, name, api.VariableItems{
		"time": stamp(e.Time), "namespace": e.Namespace, "job": e.Job, "alloc": e.Alloc, "new_alloc": e.NewAlloc, "from": e.From, "to": e.To,
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
	for _, p := range paths[:max(0, len(paths)-kept)] {
		errs = append(errs, s.remove(ctx, p))
	}
	return errors.Join(errs...)
}

// Notes returns what was done, the oldest first.
func (s Store) Notes(ctx context.Context) ([]Entry, error) {
	known, err := s.NotesSince(ctx, nil)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for _, name := range slices.Sorted(maps.Keys(known)) {
		entries = append(entries, known[name])
	}
	return entries, nil
}

// NotesSince returns what was done by the paths of its variables, whose order is that of time.
// What is in before is not read again: an entry never changes.
func (s Store) NotesSince(ctx context.Context, before map[string]Entry) (map[string]Entry, error) {
	paths, err := s.list(ctx, "moves")
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	known := make(map[string]Entry, len(paths))
	reading, ctx := errgroup.WithContext(ctx)
	reading.SetLimit(atATime)
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
				Time: when(i["time"]), Namespace: i["namespace"], Job: i["job"], Alloc: i["alloc"], NewAlloc: i["new_alloc"], From: i["from"], To: i["to"],
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

// stamp writes a time; "" is none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func when(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return t
}
