// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package auto

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/twin"
	"github.com/ebbtide/ebbtide/internal/waterfill"
)

// job is a task of the plant, a simulated node whose step is an interval.
type job struct {
	task policy.Task
	cap  float64 // maximum CPU it can use; 1 is the pool

	// A service answers in work/CPU. Closed-loop, it always has a request; else it uses
	// demand on average and can use more while it answers.
	work, demand float64

	// A training task has the value exp(−rate·cpu) and ends at its objective.
	rate   float64
	silent bool

	got       float64 // CPU in the last interval
	potential float64 // what it would get if it used all it can
}

func serviceJob(id string, need float64) *job {
	objective := 10.0
	return &job{task: policy.Task{ID: id, Kind: policy.Service, Entitlement: 1, ObjectiveS: &objective}, cap: 1, work: 10 * need}
}

func trainingJob(id string, rate float64) *job {
	return &job{task: policy.Task{ID: id, Kind: policy.Training, Entitlement: 1}, cap: 1, rate: rate}
}

type plant struct {
	jobs     []*job
	params   Params
	quota    bool
	stopping map[*job]bool
	idle     float64
	ran      []*job // in the last interval
	noise    func() float64

	damper *plan.Damper // as in the driver; may be nil
	shares map[*job]float64
	clock  time.Time
}

const interval = 20

func newPlant() *plant {
	return &plant{params: DefaultParams(), stopping: map[*job]bool{}, noise: func() float64 { return 1 }}
}

func (p *plant) snapshot() policy.Snapshot {
	s := policy.Snapshot{NowS: 1e9, PoolCores: 1, IntervalS: interval, InitialIntervalS: interval, MaxIntervalS: 80}
	for _, j := range p.jobs {
		s.Tasks = append(s.Tasks, j.task)
	}
	return s
}

func (p *plant) decide(t *testing.T, event policy.Event) policy.Outcome {
	t.Helper()
	s := p.snapshot()
	s.Event = event
	out := decided(t, s, p.params)
	p.enforce(s.Tasks, out)
	var left []*job
	for i, j := range p.jobs {
		d := out.Tasks[i]
		j.task.Limit, j.task.Category, j.task.State = d.Bound(), d.Category, d.State
		if !d.Stop || !p.stopping[j] {
			left = append(left, j) // saves its model for an interval
		}
		p.stopping[j] = d.Stop
	}
	if len(left) < len(p.jobs) {
		p.jobs = left
		p.decide(t, policy.EventLeave)
	}
	return out
}

func (p *plant) run(t *testing.T) policy.Outcome {
	t.Helper()
	for _, j := range p.jobs {
		demand := j.demand
		j.demand = 0
		p.allot()
		j.potential, j.demand = j.got, demand
	}
	p.allot()
	p.ran = p.jobs
	for _, j := range p.jobs {
		j.task.Use = policy.Share(j.got * p.noise())
		if j.task.Kind == policy.Service {
			response := j.work / j.potential * p.noise()
			j.task.ResponseS = &response
			continue
		}
		if j.silent {
			continue
		}
		j.task.CPUS += policy.CPUSeconds(j.got * interval)
		value := math.Exp(-j.rate * float64(j.task.CPUS))
		left := policy.CPUSeconds(1e6)
		if o := j.task.Objective; o != nil {
			left = policy.CPUSeconds(max(math.Log(value / *o)/j.rate, 0))
		}
		j.task.Value, j.task.RemainingCPUS = &value, &left
	}
	s := p.snapshot()
	cores := 1.0
	for _, j := range p.jobs {
		if j.task.Kind == policy.Service {
			cores -= j.got
		}
	}
	twin.Advance(s.Tasks, policy.Cores(cores), interval)
	for i, j := range p.jobs {
		j.task.FairCPUS = s.Tasks[i].FairCPUS
	}
	return p.decide(t, policy.EventNone)
}

func (p *plant) leave(t *testing.T, id string) {
	t.Helper()
	for i, j := range p.jobs {
		if j.task.ID == id {
			p.jobs = append(p.jobs[:i:i], p.jobs[i+1:]...)
			p.decide(t, policy.EventLeave)
			return
		}
	}
}

func (p *plant) join(t *testing.T, jobs ...*job) {
	t.Helper()
	for _, j := range jobs {
		p.jobs = append(p.jobs, j)
		p.decide(t, policy.EventJoin)
	}
}

// allot divides the CPU, by work-conserving weights or below ceilings.
func (p *plant) allot() {
	claims := make([]waterfill.Claim, len(p.jobs))
	for i, j := range p.jobs {
		most := j.cap
		if p.quota && j.task.Limit < 1 {
			most = min(most, float64(j.task.Limit))
		}
		if j.demand > 0 {
			most = min(most, j.demand)
		}
		claims[i] = waterfill.Claim{Weight: p.weight(j), Max: most}
	}
	p.idle = 1
	for i, got := range waterfill.Divide(1, claims) {
		p.jobs[i].got = got
		p.idle -= got
	}
	p.idle = max(0, p.idle)
}

func (p *plant) weight(j *job) float64 {
	switch {
	case p.quota:
		return 1
	case p.damper != nil:
		return p.shares[j]
	default:
		return float64(j.task.Limit)
	}
}

// enforce acts like the driver: weights for the kernel, no change below a tenth.
func (p *plant) enforce(tasks []policy.Task, out policy.Outcome) {
	if p.damper == nil {
		return
	}
	reqs := requests(tasks, out)
	p.clock = p.clock.Add(interval * time.Second)
	wanted := plan.Limits(plan.ModeWeight, 4, reqs, plan.Options{Floor: out.Floor})
	for i, l := range p.damper.Next(p.clock, reqs, wanted) {
		p.shares[p.jobs[i]] = float64(l.Shares)
	}
}

func modes(t *testing.T, run func(t *testing.T, quota bool)) {
	for _, quota := range []bool{false, true} {
		t.Run(fmt.Sprintf("quota=%v", quota), func(t *testing.T) { run(t, quota) })
	}
}

// A satisfied service keeps its target when three training jobs join, if it needs at
// most 1 − 3/(2·4) of the pool; they get the rest.
func TestPlant_join(t *testing.T) {
	modes(t, func(t *testing.T, quota bool) {
		for _, need := range []float64{0.15, 0.3, 0.45, 0.6} {
			service := serviceJob("service", need)
			p := newPlant()
			p.quota = quota
			p.join(t, service)
			for range 20 {
				out := p.run(t)
				must.NotEq(t, policy.Bad, out.Tasks[0].Class)
				must.Eq(t, 1, service.task.Limit)
			}
			p.join(t, trainingJob("fast", 0.01), trainingJob("middle", 0.002), trainingJob("slow", 0.0005))
			settled := 0
			for k := range 60 {
				switch out := p.run(t); out.Tasks[0].Class {
				case policy.Bad:
					t.Fatalf("need %v: worse than asked in run %d after the join", need, k)
				case policy.Good:
					settled = k + 1
				}
			}
			must.LessEq(t, 5, settled, must.Sprintf("need %v", need))
			must.LessEq(t, need/0.9+1e-6, service.got, must.Sprintf("need %v", need))
			must.Less(t, 1e-6, p.idle)
		}
	})
}

func TestPlant_joinSeveral(t *testing.T) {
	modes(t, func(t *testing.T, quota bool) {
		rnd := rand.New(rand.NewPCG(4, 5))
		for range 40 {
			services := make([]*job, 1+rnd.IntN(4))
			needs, sum := make([]float64, len(services)), 0.0
			for i := range services {
				needs[i] = 0.1 + rnd.Float64()
				sum += needs[i]
			}
			bound := min(DefaultParams().ServiceShare, 1-3/(2*float64(len(services)+3)))
			p := newPlant()
			p.quota = quota
			for i := range services {
				services[i] = serviceJob(fmt.Sprint("service-", i), needs[i]/sum*bound*0.9)
			}
			p.join(t, services...)
			for range 40 {
				p.run(t)
			}
			p.join(t, trainingJob("fast", 0.01), trainingJob("middle", 0.002), trainingJob("slow", 0.0005))
			for k := range 60 {
				for _, d := range p.run(t).Tasks {
					must.NotEq(t, policy.Bad, d.Class, must.Sprintf("run %d: %s", k, d.Why))
				}
			}
			floor := 1 / (2 * float64(len(p.jobs)))
			for _, j := range services {
				must.LessEq(t, max(j.work/10/0.9, floor)+1e-6, j.got)
			}
		}
	})
}

func TestPlant_load(t *testing.T) {
	modes(t, func(t *testing.T, quota bool) {
		service := serviceJob("service", 0.2)
		p := newPlant()
		p.quota = quota
		p.join(t, service, trainingJob("fast", 0.01), trainingJob("middle", 0.002), trainingJob("slow", 0.0005))
		for range 30 {
			p.run(t)
		}
		service.work = 10 * 0.5
		runs := 0
		for k := range 100 {
			if out := p.run(t); out.Tasks[0].Class != policy.Satisfied {
				runs = k + 1
			}
		}
		t.Logf("satisfied again after %d runs", runs)
		must.LessEq(t, 3, runs)
	})
}

// The driver suppresses changes below a tenth, the tolerance of DQoES; services still
// reach their targets.
func TestPlant_damped(t *testing.T) {
	for need := 0.14; need < 0.6; need += 0.05 {
		service := serviceJob("service", 0.1)
		p := newPlant()
		p.damper, p.shares = plan.NewDamper(interval*time.Second), map[*job]float64{}
		p.join(t, service, trainingJob("fast", 0.01), trainingJob("middle", 0.002), trainingJob("slow", 0.0005))
		for range 30 {
			p.run(t)
		}
		service.work = 10 * need
		runs, swings := 0, 0
		var last policy.Class
		for k := range 100 {
			out := p.run(t)
			if c := out.Tasks[0].Class; c != policy.Satisfied {
				runs = k + 1
				if c != last {
					swings++
				}
			}
			last = out.Tasks[0].Class
		}
		must.LessEq(t, 5, runs, must.Sprintf("need %.2f", need))
		must.LessEq(t, 1, swings, must.Sprintf("need %.2f", need))
	}
}

// A service on CPU that training tasks left idle keeps its target when they use it
// again.
func TestPlant_borrowed(t *testing.T) {
	service, a, b := serviceJob("service", 0.5), trainingJob("a", 0.01), trainingJob("b", 0.002)
	p := newPlant()
	a.cap, b.cap = 0.02, 0.02 // waiting for their data
	p.join(t, a, b, service)
	must.InDelta(t, 1.0/3, float64(service.task.Limit), 1e-9)
	for range 50 {
		p.run(t)
		must.Less(t, 1e-6, p.idle)
	}
	a.cap, b.cap = 1, 1
	for range 50 {
		out := p.run(t)
		must.NotEq(t, policy.Bad, out.Tasks[2].Class)
	}
}

// An open-loop service uses little on average: its limit is not derived from its use,
// so that it neither oscillates nor loses its target.
func TestPlant_openLoop(t *testing.T) {
	service := serviceJob("service", 0.3)
	service.demand = 0.05
	p := newPlant()
	p.join(t, trainingJob("a", 0.01), trainingJob("b", 0.002), service)
	var bad, settled int
	for k := range 50 {
		switch out := p.run(t); out.Tasks[2].Class {
		case policy.Bad:
			bad++
		case policy.Good:
			settled = k + 1
		}
		must.Less(t, 1e-6, p.idle)
	}
	must.LessEq(t, 1, bad)
	must.LessEq(t, 5, settled)
	must.InDelta(t, 0.3, float64(service.task.Limit), 0.04)
}

// Unreachable objectives cost neither satisfied services theirs nor training tasks
// their floor; equal ones end with equal shares.
func TestPlant_unreachable(t *testing.T) {
	modes(t, func(t *testing.T, quota bool) {
		one, two := serviceJob("one", 5), serviceJob("two", 5)
		good, small := serviceJob("good", 0.25), serviceJob("small", 0.1)
		p := newPlant()
		p.quota = quota
		p.join(t, one, good, trainingJob("a", 0.01), trainingJob("b", 0.002))
		for range 40 {
			p.run(t)
		}
		must.Greater(t, good.got, one.got) // the largest share
		p.join(t, small, two)
		var out policy.Outcome
		for k := range 100 {
			out = p.run(t)
			must.NotEq(t, policy.Bad, out.Tasks[1].Class, must.Sprintf("run %d", k))
		}
		must.Eq(t, policy.Satisfied, out.Tasks[1].Class)
		must.Eq(t, policy.Satisfied, out.Tasks[4].Class)
		must.Eq(t, policy.Bad, out.Tasks[0].Class)
		must.Eq(t, policy.Bad, out.Tasks[5].Class)
		must.InDelta(t, one.got, two.got, 0.05*one.got)
	})
}

// A day on a node: services with changing load, training jobs with targets that come
// and go, one without reports, one with a single thread, noise everywhere, about a
// hundred intervals.
func TestPlant_day(t *testing.T) {
	modes(t, func(t *testing.T, quota bool) {
		rnd := rand.New(rand.NewPCG(1, 2))
		api, batch := serviceJob("api", 0.15), serviceJob("batch", 0.1)
		silent := trainingJob("silent", 1)
		silent.silent = true
		p := newPlant()
		p.quota = quota
		p.noise = func() float64 { return 1 + 0.03*rnd.NormFloat64() }
		p.join(t, api, batch, silent)

		var idle, trained float64
		var bad, runs, longest, row, stopped int
		for k := range 600 {
			switch k % 100 {
			case 0:
				job := trainingJob(fmt.Sprint("target-", k), 0.003+0.004*rnd.Float64())
				job.task.Goal, job.task.Acceptable, job.task.Objective = policy.GoalMin, number(0.2), number(0.1)
				p.join(t, job)
			case 30:
				job := trainingJob(fmt.Sprint("thread-", k), 0.001)
				job.cap = 0.25
				p.join(t, job)
			case 50:
				api.work = 10 * (0.1 + 0.15*rnd.Float64())
			case 90:
				p.leave(t, fmt.Sprint("thread-", k-60))
			}
			out := p.run(t)
			idle += p.idle
			runs++
			worse := false
			for i, d := range out.Tasks {
				worse = worse || d.Class == policy.Bad
				if d.Stop {
					stopped++
				}
				if j := p.ran[i]; j.cap == 1 {
					must.GreaterEq(t, 0.1*(1-1e-6)/(2*float64(len(out.Tasks))), j.got, must.Sprintf("run %d: %s starves", k, d.ID))
				}
				if d.Kind == policy.Training {
					trained += p.ran[i].got
				}
			}
			row++
			if !worse {
				row = 0
			} else {
				bad++
			}
			longest = max(longest, row)
		}
		t.Logf("of %d intervals %d with a service worse than asked, %d in a row at most; training got %.1f %%, idle %.1f %%; %d runs with a task that stops",
			runs, bad, longest, 100*trained/float64(runs), 100*idle/float64(runs), stopped)
		if !quota {
			must.Less(t, 0.001, idle/float64(runs))
		}
		must.LessEq(t, 3, longest)
		must.LessEq(t, 30, bad)
		must.Positive(t, stopped)
	})
}

func number(x float64) *float64 { return &x }
