// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/e2e/mix"
)

// findLengths runs a seed's training jobs separately, outside Nomad. Steps and values do not depend
// on speed, so they are stored.
func (m *measurement) findLengths(ctx context.Context, seed uint64) ([]result.Length, error) {
	known := &m.e.Calibration.Lengths
	var out []result.Length
	for _, c := range courses(m.scale) {
		same := func(l result.Length) bool { return l.Model == c.model && l.Seed == seed && l.Pool == c.pool }
		if i := slices.IndexFunc(*known, same); i >= 0 {
			out = append(out, (*known)[i])
			continue
		}
		m.logf("Finding out what %s with seed %d reaches in %.1f s of %d cores.", c.model, seed, c.pool, pool())
		curve, err := mix.Alone(ctx, m.h, c.model, pool(), seed, c.pool*float64(pool()))
		if err != nil {
			return nil, err
		}
		l := result.Length{Model: c.model, Seed: seed, Pool: c.pool, Steps: int(curve[len(curve)-1].Step)}
		l.Acceptable, l.AcceptableAt = result.Target(curve, acceptableAt)
		l.Objective, l.ObjectiveAt = result.Target(curve, objectiveAt)
		if l.Steps == 0 || math.IsNaN(l.Acceptable) || math.IsNaN(l.Objective) {
			return nil, fmt.Errorf("the curve of %s has no targets in it: %d steps", c.model, l.Steps)
		}
		m.logf("  %d steps; acceptable %.5g (first reached at %.0f %% of them), objective %.5g (%.0f %%)",
			l.Steps, l.Acceptable, 100*l.AcceptableAt, l.Objective, 100*l.ObjectiveAt)
		out, *known = append(out, l), append(*known, l)
	}
	return out, nil
}

// answer is the used part of trainer serve's response.
type answer struct {
	ResponseS float64 `json:"response_s"`
	CPUS      float64 `json:"cpu_s"`
}

// batch finds the work that takes the given CPU-seconds with one thread, and its duration on an
// idle machine, with a service outside Nomad.
func (n *node) batch(ctx context.Context, seconds float64) (work, alone float64, err error) {
	trainer, err := n.h.Tools.Trainer(ctx)
	if err != nil {
		return 0, 0, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	address := l.Addr().String()
	_ = l.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	p, err := n.h.Start(ctx, "batch", []string{
		trainer, "serve", "-model", serviceModel, "-train-steps", "20", "-threads", "1", "-listen", address,
	}, nil)
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		_ = p.Signal(unix.SIGTERM)
		err = errors.Join(err, p.Wait(ctx))
	}()
	ask := func(work float64) (a answer, err error) {
		body := fmt.Sprintf(`{"work": %s}`, number(work))
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/predict", strings.NewReader(body))
		if err != nil {
			return a, err
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return a, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return a, errors.New(resp.Status)
		}
		return a, json.NewDecoder(resp.Body).Decode(&a)
	}
	err = harness.Poll(ctx, "the service answers", func(context.Context) error {
		_, err := ask(1)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	median := func(work float64) (cpu, response float64, err error) {
		var cpus, responses []float64
		for range 15 {
			a, err := ask(work)
			if err != nil {
				return 0, 0, err
			}
			cpus, responses = append(cpus, a.CPUS), append(responses, a.ResponseS)
		}
		return result.SpreadOf(cpus).Median, result.SpreadOf(responses).Median, nil
	}
	work = 10
	for range 2 { // the first pass is coarse, as the clock has ticks
		cpu, _, err := median(work)
		if err != nil {
			return 0, 0, err
		}
		if !(cpu > 0) {
			return 0, 0, errors.New("a batch takes no CPU time")
		}
		work *= seconds / cpu
	}
	work = math.Round(work*100) / 100
	cpu, alone, err := median(work)
	n.logf("A batch of work %g takes %.1f ms of CPU time and is answered after %.1f ms, alone.", work, 1000*cpu, 1000*alone)
	return work, alone, err
}
