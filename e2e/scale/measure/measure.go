// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package measure measures a cluster's cost for the shim's code, within its own process.
package measure

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/e2e/scale/nomad"
	"github.com/ebbtide/ebbtide/shim"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/store"
	"github.com/ebbtide/ebbtide/shim/stream"
)

type Options struct {
	Address   string // of the load generator
	Seed      uint64
	Events    int // per pour; 0 for the list only
	Batch     int // allocations per change
	Pours     int
	Decisions int
	Rebalance int // number of repetitions
}

// Report is the result. Slices are distributions.
type Report struct {
	Nodes  int `json:"nodes"`
	Allocs int `json:"allocs"`
	Jobs   int `json:"jobs"`

	ListS   float64 `json:"list_s"`   // until everything is read
	ModelS  float64 `json:"model_s"`  // including the model
	PeakMiB float64 `json:"peak_mib"` // of the process's memory by then

	EventsPerS   []float64 `json:"events_per_s"` // of allocations and nodes
	EventBytes   float64   `json:"event_bytes"`  // per payload, mean
	EventCPUS    float64   `json:"event_cpu_s"`  // CPU per event, mean
	PeakEventMiB float64   `json:"peak_event_mib"`

	AskS  float64 `json:"ask_s"` // until all summaries are read
	Known int     `json:"known"` // nodes with a summary
	// LoadsS is the time to compute all nodes' loads.
	LoadsS float64 `json:"loads_s"`

	PlaceS     []float64 `json:"place_s"`
	PlaceCPUS  float64   `json:"place_cpu_s"` // CPU per decision, mean
	PlaceNodes []float64 `json:"place_nodes"` // feasible nodes per decision

	RebalanceS []float64 `json:"rebalance_s"`
	Moves      int       `json:"moves"` // that rebalancing would start
}

func Run(ctx context.Context, o Options) (Report, error) {
	var r Report
	client, err := api.NewClient(&api.Config{Address: o.Address})
	if err != nil {
		return r, fmt.Errorf("making a client: %w", err)
	}
	events, err := stream.Open(ctx, stream.Nomad(client, cluster.Topics()...), stream.Deadline)
	if err != nil {
		return r, err
	}
	defer events.Close()

	begun := time.Now()
	listing, err := cluster.List(ctx, client)
	if err != nil {
		return r, err
	}
	r.ListS = time.Since(begun).Seconds()
	model := cluster.NewStore()
	model.Replace(listing)
	r.ModelS = time.Since(begun).Seconds()
	r.Nodes, r.Allocs, r.Jobs = len(listing.Nodes), len(listing.Allocs), len(listing.Jobs)
	if r.PeakMiB, err = Peak(os.Getpid()); err != nil {
		return r, err
	}
	if o.Events == 0 {
		return r, nil
	}
	size := 0
	used := cpu()
	for range o.Pours {
		seconds, bytes, err := pour(ctx, o, events, model)
		if err != nil {
			return r, err
		}
		r.EventsPerS = append(r.EventsPerS, float64(o.Events)/seconds)
		size += bytes
	}
	r.EventCPUS = (cpu() - used) / float64(o.Events*o.Pours)
	r.EventBytes = float64(size) / float64(o.Events*o.Pours)
	if r.PeakEventMiB, err = Peak(os.Getpid()); err != nil {
		return r, err
	}

	state, _ := model.Snapshot()
	jobs := marked(state, o.Seed)
	preview := shim.NewPreview(client, state, jobs)
	begun = time.Now()
	nodes := preview.Summaries(ctx)
	r.AskS, r.Known = time.Since(begun).Seconds(), len(nodes)
	if err := ctx.Err(); err != nil {
		return r, err
	}
	place(&r, o, preview, state, nodes)
	for range o.Rebalance {
		begun := time.Now()
		out, err := preview.Rebalance(begun, nodes)
		if err != nil {
			return r, err
		}
		r.RebalanceS = append(r.RebalanceS, time.Since(begun).Seconds())
		r.Moves = len(out.Moves)
	}
	return r, nil
}

// pour requests events and applies them. It returns the time from the first change, and the
// payloads' bytes.
func pour(ctx context.Context, o Options, events *stream.Stream, model *cluster.Store) (seconds float64, bytes int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	poured := make(chan error, 1)
	go func() {
		err := Ask(ctx, o.Address, nomad.Pour{Events: o.Events, Batch: o.Batch})
		if err != nil {
			cancel(err)
		}
		poured <- err
	}()
	var begun time.Time
	for applied := 0; applied < o.Events; {
		batch, err := events.Next(ctx)
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return 0, 0, err
		}
		if begun.IsZero() {
			begun = time.Now()
		}
		for _, e := range batch.Events {
			if _, err := model.Apply(e); err != nil {
				return 0, 0, err
			}
			applied++
			bytes += len(e.Payload)
		}
	}
	return time.Since(begun).Seconds(), bytes, <-poured
}

// Ask requests the generator to pour events, and waits.
func Ask(ctx context.Context, address string, p nomad.Pour) error {
	body, err := json.Marshal(p)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address+nomad.PourPath, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("asking for events: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return fmt.Errorf("asking for events: %s: %s", resp.Status, text)
	}
	return nil
}

// marked returns job memory after decisions on all jobs, the worst case for rebalancing.
func marked(state cluster.Snapshot, seed uint64) map[cluster.JobKey]store.Job {
	r := rand.New(rand.NewPCG(seed, 1))
	jobs := make(map[cluster.JobKey]store.Job, state.NumJobs())
	now := time.Now()
	for j := range state.Jobs() {
		jobs[j.Key] = store.Job{Marked: now.Add(-time.Duration(r.Int64N(int64(time.Hour))))}
	}
	return jobs
}

// place decides on random allocations of training jobs.
func place(r *Report, o Options, preview shim.Preview, state cluster.Snapshot, nodes map[string]shim.Summary) {
	random := rand.New(rand.NewPCG(o.Seed, 2))
	var trainings []*cluster.Alloc
	for a := range state.Allocs() {
		if state.Job(a.Job) != nil {
			trainings = append(trainings, a)
		}
	}
	if len(trainings) == 0 {
		return
	}
	begun := time.Now()
	place := preview.Placing(config.Default(), nodes)
	r.LoadsS = time.Since(begun).Seconds()
	used := cpu()
	defer func() { r.PlaceCPUS = (cpu() - used) / float64(o.Decisions) }()
	for range o.Decisions {
		a := trainings[random.IntN(len(trainings))]
		begun := time.Now()
		out, _ := place(a)
		r.PlaceS = append(r.PlaceS, time.Since(begun).Seconds())
		r.PlaceNodes = append(r.PlaceNodes, float64(len(out.Scores)))
	}
}

// cpu returns this process's CPU-seconds, independent of other load.
func cpu() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // only for an invalid argument
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// Peak returns a process's peak memory, in MiB.
func Peak(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(text), "kB")), 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no VmHWM", pid)
}
