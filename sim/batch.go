// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"context"
	"io/fs"
	"sync"

	"github.com/ebbtide/ebbtide/sim/metrics"
	"github.com/ebbtide/ebbtide/sim/scenario"
)

// Batch is a scenario under several policies with the same seeds.
type Batch struct {
	Scenario scenario.Scenario
	Data     fs.FS
	Variants []Variant
	First    uint64 // seed
	Seeds    int
	Workers  int // concurrent runs
	// Progress receives the fraction done, from several goroutines but not concurrently. May be
	// nil.
	Progress func(part float64)
}

// Draws is over how many runs of plain Nomad a job's time is averaged on several nodes, where it
// depends on the luck of placement.
const Draws = 10

// draws returns the number of a policy's runs per seed.
func (b Batch) draws(v Variant) int {
	if v.Name == metrics.DefaultBase && v.byLot() && b.Scenario.NodeCount() > 1 {
		return Draws
	}
	return 1
}

// Run returns the runs by seed, then in the order of Variants, independently of Workers.
func (b Batch) Run(ctx context.Context) ([]metrics.Run, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type item struct {
		config Config
		to     *metrics.Run
	}
	var items []item
	runs := make([]metrics.Run, b.Seeds*len(b.Variants))
	for i := range runs {
		c := Config{Scenario: b.Scenario, Data: b.Data, Variant: b.Variants[i%len(b.Variants)], Seed: b.First + uint64(i/len(b.Variants))}
		items = append(items, item{c, &runs[i]})
		runs[i].Draws = make([]metrics.Run, b.draws(c.Variant)-1)
		for k := range runs[i].Draws {
			c.Draw = k + 1
			items = append(items, item{c, &runs[i].Draws[k]})
		}
	}
	var (
		mu    sync.Mutex
		first error
		parts = make([]float64, len(items))
		sum   float64
		next  = make(chan int)
		all   sync.WaitGroup
	)
	progress := func(i int, part float64) {
		mu.Lock()
		defer mu.Unlock()
		sum += part - parts[i]
		parts[i] = part
		if b.Progress != nil {
			b.Progress(sum / float64(len(items)))
		}
	}
	for range max(b.Workers, 1) {
		all.Go(func() {
			for i := range next {
				c, to := items[i].config, items[i].to
				c.Progress = func(ended, of int) { progress(i, float64(ended)/float64(of)) }
				run, err := Run(ctx, c)
				if err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
					stop()
					continue
				}
				run.Draws = to.Draws
				*to = run
				progress(i, 1)
			}
		})
	}
	for i := range items {
		next <- i
	}
	close(next)
	all.Wait()
	return runs, first
}
