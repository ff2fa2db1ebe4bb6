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

// Run returns the runs by seed, then in the order of Variants, independently of Workers.
func (b Batch) Run(ctx context.Context) ([]metrics.Run, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	runs := make([]metrics.Run, b.Seeds*len(b.Variants))
	var (
		mu    sync.Mutex
		first error
		parts = make([]float64, len(runs))
		sum   float64
		jobs  = make(chan int)
		all   sync.WaitGroup
	)
	progress := func(i int, part float64) {
		mu.Lock()
		defer mu.Unlock()
		sum += part - parts[i]
		parts[i] = part
		if b.Progress != nil {
			b.Progress(sum / float64(len(runs)))
		}
	}
	for range max(b.Workers, 1) {
		all.Go(func() {
			for i := range jobs {
				run, err := Run(ctx, Config{
					Scenario: b.Scenario, Data: b.Data, Variant: b.Variants[i%len(b.Variants)], Seed: b.First + uint64(i/len(b.Variants)),
					Progress: func(ended, of int) { progress(i, float64(ended)/float64(of)) },
				})
				if err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
					stop()
					continue
				}
				runs[i] = run
				progress(i, 1)
			}
		})
	}
	for i := range runs {
		jobs <- i
	}
	close(jobs)
	all.Wait()
	return runs, first
}
