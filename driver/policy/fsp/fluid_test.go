// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fsp

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/internal/waterfill"
	"github.com/shoenig/test/must"
)

// load is a task of the fluid model. Times are in seconds, amounts in CPU-seconds.
type load struct {
	arrives, size, weight, cap float64
	quality                    float64 // part of the size
	unknown                    bool
	wrong                      float64 // factor of the estimated size's error; 0 = exact
	constantError              bool    // the estimate does not improve over time
	claims                     float64 // remaining work it always reports; 0 = its own
	noise                      float64 // σ of log2 of each estimate's error, in addition to wrong
}

type state struct {
	load
	id              string
	used, fair      float64
	rate, fairRate  float64
	here, seen      bool
	finish, quality float64 // seconds since the start; 0 = not yet
}

func (s *state) left() float64 { return max(s.size-s.used, 0) }
func (s *state) running() bool { return s.here && s.finish == 0 }

func (s *state) begun() bool { return s.used >= beginning*s.size*(1-1e-12) }

func (s *state) sized() bool { return s.finish > 0 || !s.unknown && s.wrong == 0 && s.claims == 0 }

func (s *state) gone() bool { return s.finish > 0 && s.fair >= s.used*(1-1e-9) }

// fluid is a node with infinitely divisible CPU, simulated from event to event.
type fluid struct {
	pool     float64
	interval float64 // 0: decisions at events only
	sparse   bool    // decisions at intervals only
	check    func(f *fluid, s policy.Snapshot, out policy.Outcome)

	now    float64
	tasks  []*state
	orders int // changes of the first task
}

type divide func(f *fluid)

// run returns the time of each load's end and of its quality point, in seconds from its arrival.
func (f *fluid) run(loads []load, decide divide) (finish, quality []float64) {
	f.now, f.tasks, f.orders = 0, nil, 0
	for i, l := range loads {
		if l.cap == 0 {
			l.cap = f.pool
		}
		f.tasks = append(f.tasks, &state{load: l, id: fmt.Sprintf("job-%02d", i)})
	}
	for next := 0.0; ; {
		event := f.now >= next
		for _, s := range f.tasks {
			if !s.here && s.arrives <= f.now {
				s.here, event = true, true
			}
		}
		if event && (!f.sparse || f.now >= next) {
			decide(f)
			for _, s := range f.tasks {
				s.seen = s.here
			}
			if next = math.Inf(1); f.interval > 0 {
				next = (math.Floor(f.now/f.interval+1e-9) + 1) * f.interval
			}
		}
		rates, step := f.effective(), next-f.now
		done := true
		for i, s := range f.tasks {
			switch {
			case !s.here:
				step = min(step, s.arrives-f.now)
			case s.running() && rates[i] > 0:
				step = min(step, s.left()/rates[i])
				if !s.begun() {
					step = min(step, (beginning*s.size-s.used)/rates[i])
				}
				if s.quality == 0 && s.load.quality*s.size > s.used {
					step = min(step, (s.load.quality*s.size-s.used)/rates[i])
				}
			}
			if s.here && s.fairRate > 0 && s.fair < s.size && s.sized() {
				step = min(step, (s.size-s.fair)/s.fairRate)
			}
			done = done && s.finish > 0
		}
		if done {
			break
		}
		event = false
		f.now += step
		for i, s := range f.tasks {
			if !s.here {
				continue
			}
			before := s.fair
			s.fair += s.fairRate * step
			if s.sized() && s.fair >= s.size*(1-1e-12) {
				s.fair = s.size
				event = event || before < s.fair
			}
			if !s.running() {
				continue
			}
			begun := s.begun()
			s.used += rates[i] * step
			event = event || s.begun() != begun
			if s.quality == 0 && s.used >= s.load.quality*s.size*(1-1e-12) {
				s.quality, event = f.now-s.arrives, true
			}
			if s.used >= s.size*(1-1e-12) {
				s.used, s.finish, event = s.size, max(f.now-s.arrives, 1e-9), true
			}
		}
		if event && !f.sparse {
			next = f.now
		}
	}
	for _, s := range f.tasks {
		finish, quality = append(finish, s.finish), append(quality, s.quality)
	}
	return finish, quality
}

// effective returns the rates that weights result in: an ended task's share goes to the others, and
// a task without a decision has its fair share.
func (f *fluid) effective() []float64 {
	claims := make([]waterfill.Claim, len(f.tasks))
	weights := 0.0
	for _, s := range f.tasks {
		if s.running() {
			weights += s.weight
		}
	}
	sum := 0.0
	for i, s := range f.tasks {
		if s.running() {
			claims[i] = waterfill.Claim{Weight: s.rate, Max: s.cap}
			if !s.seen {
				claims[i].Weight = f.pool * s.weight / weights
			}
			sum += claims[i].Weight
		}
	}
	return waterfill.Divide(f.pool, claims)
}

func serial(key func(*state) float64) divide {
	return func(f *fluid) {
		order := slices.Clone(f.tasks)
		slices.SortStableFunc(order, func(a, b *state) int { return cmp.Compare(key(a), key(b)) })
		free := f.pool
		for _, s := range order {
			if s.rate = 0; s.running() {
				s.rate = min(free, s.cap)
				free -= s.rate
			}
		}
	}
}

func srpt() divide { return serial((*state).left) }

func fairSharing(f *fluid) {
	claims := make([]waterfill.Claim, len(f.tasks))
	for i, s := range f.tasks {
		if s.running() {
			claims[i] = waterfill.Claim{Weight: s.weight, Max: s.cap}
		}
	}
	for i, rate := range waterfill.Divide(f.pool, claims) {
		f.tasks[i].rate = rate
	}
}

func decided(t must.T, p Params) divide {
	front, noise := "", rand.New(rand.NewPCG(1, 12))
	return func(f *fluid) {
		s := policy.Snapshot{NowS: f.now, PoolCores: policy.Cores(f.pool), IntervalS: f.interval}
		var tasks []*state
		for _, x := range f.tasks {
			if !x.here || x.gone() {
				x.rate, x.fairRate = 0, 0
				continue
			}
			task := policy.Task{
				ID: x.id, Entitlement: x.weight, Overhead: new(float64), CapCores: policy.Cores(x.cap),
				CPUS: policy.CPUSeconds(x.used), FairCPUS: policy.CPUSeconds(x.fair), Ended: x.finish > 0,
			}
			if wrong := cmp.Or(x.wrong, 1) * math.Exp2(x.noise*noise.NormFloat64()); !x.unknown && !task.Ended {
				estimate := func(size float64) policy.CPUSeconds {
					if x.claims > 0 {
						return policy.CPUSeconds(x.claims)
					}
					if x.constantError {
						return policy.CPUSeconds(max(size*wrong-x.used, 0))
					}
					return policy.CPUSeconds(max(size-x.used, 0) * wrong)
				}
				left, way := estimate(x.size), policy.CPUSeconds(0)
				if x.quality == 0 {
					way = estimate(x.load.quality * x.size)
				}
				task.RemainingCPUS, task.QualityCPUS = &left, &way
			}
			s.Tasks, tasks = append(s.Tasks, task), append(tasks, x)
		}
		must.NoError(t, s.Validate())
		must.NoError(t, Check(s, p))
		out := Decide(s, p)
		first, most := "", policy.Share(0)
		for i, d := range out.Tasks {
			tasks[i].rate, tasks[i].fairRate = 0, float64(d.FairRateCores)
			if d.Limit != nil {
				tasks[i].rate = float64(*d.Limit) * f.pool
			}
			if d.Limit != nil && (first == "" || *d.Limit > most) {
				first, most = d.ID, *d.Limit
			}
		}
		if front != first {
			front = first
			f.orders++
		}
		if f.check != nil {
			f.check(f, s, out)
		}
	}
}

func jobs(seed uint64, n int, quality float64) []load {
	r := rand.New(rand.NewPCG(seed, 10))
	out := make([]load, n)
	sum := 0.0
	for i := range out {
		out[i] = load{size: 200 * math.Exp(r.NormFloat64()), weight: 1, quality: quality}
		sum += out[i].size
	}
	for i := range out {
		out[i].arrives = r.Float64() * sum / 4 // on two cores: half of the makespan
	}
	return out
}
