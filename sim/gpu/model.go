// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/ebbtide/ebbtide/device/fairshare"
)

// The TITAN Xp of the paper's table 2.
const cardMiB = 12288

// Parameters of the model.
const (
	windowS    = 60.0 // seconds between runs of Adapt
	workingSet = 0.25 // fraction of a job's need below which it cannot run
	margin     = 1.1  // a container's wish relative to its largest peak
)

type job struct {
	properties map[string]fairshare.Value
	needMiB    int     // for full speed
	seconds    float64 // alone on the card with that memory
	compute    float64 // fraction of the card's compute it uses then
}

// by are the grouping properties.
var by = []string{"user", "application", "size"}

// draw returns jobs of one or two applications with ten parameter sets, as in §4.2 of the
// paper. What the paper omits is random: numbers, sizes and durations.
func draw(rng *rand.Rand, mixed bool, count int) []job {
	apps := 1
	if mixed {
		apps = 2
	}
	type kind struct {
		properties map[string]fairshare.Value
		need       float64
		seconds    float64
		compute    float64
		weight     float64
	}
	var kinds []kind
	total := 0.0
	for a := range apps {
		compute := 0.15 + 0.35*rng.Float64()
		mibPerSize := 20 + 40*rng.Float64()
		for k := range 10 / apps {
			size := 5 * (1 + rng.IntN(12))
			kd := kind{
				properties: map[string]fairshare.Value{
					"user":        {Name: fmt.Sprintf("user-%d", k%3)},
					"application": {Name: fmt.Sprintf("app-%d", a)},
					"size":        {Name: fmt.Sprintf("%dM", size), Score: float64(size)},
				},
				need:    math.Min(300+mibPerSize*float64(size), 4096),
				seconds: 20 + 3*float64(size)*(0.5+rng.Float64()),
				compute: compute, weight: rng.ExpFloat64(),
			}
			total += kd.weight
			kinds = append(kinds, kd)
		}
	}
	jobs := make([]job, count)
	for i := range jobs {
		at, k := rng.Float64()*total, 0
		for ; k < len(kinds)-1 && at >= kinds[k].weight; k++ {
			at -= kinds[k].weight
		}
		noise := func(spread float64) float64 { return math.Exp(spread * rng.NormFloat64()) }
		kd := kinds[k]
		jobs[i] = job{
			properties: kd.properties, compute: kd.compute,
			needMiB: int(math.Min(kd.need*noise(0.1), 4800)), seconds: kd.seconds * noise(0.2),
		}
	}
	return jobs
}

type scheme struct {
	name   string
	mode   fairshare.Mode
	bounds bool // containers have wishes and minima measured from their group
	equal  bool // all groups get equal parts, ignoring equation 1
}

type result struct {
	makespan    float64
	utilisation float64 // mean fraction of the card's memory over the makespan
	ends        []float64
}

// container runs the jobs of one group sequentially, as in the paper.
type container struct {
	group   string
	queue   []int // unfinished jobs, the first one running or next
	started float64
	left    float64 // of the first job, in seconds at full speed
	heldMiB int
	running bool

	// Measurements of the window, and in total.
	granted, peak, denied int
	took, baseline        float64
	ended                 int
	wishMiB, minimumMiB   int
	denialCounted         bool
}

// simulate runs the jobs, all submitted at time 0. Speed falls with missing memory,
// (held/need)^penalty, and with compute demand beyond the card's.
func simulate(jobs []job, s scheme, penalty float64) result {
	var window []fairshare.Job
	for _, j := range jobs {
		window = append(window, fairshare.Job{Properties: j.properties})
	}
	groups := fairshare.Window(window, by)
	at := make(map[string]*container, len(groups))
	var containers []*container
	for _, g := range groups {
		c := &container{group: g.ID}
		at[g.ID], containers = c, append(containers, c)
	}
	for i := range jobs {
		c := at[fairshare.Key(window[i], by)]
		c.queue = append(c.queue, i)
	}
	coefficients := fairshare.Coefficients{Scheme: fairshare.CountOnly}
	res := result{ends: make([]float64, len(jobs))}
	now, used, next, profiles := 0.0, 0.0, windowS, 0
	for profiles < len(jobs) {
		share(groups, containers, coefficients, s, jobs)
		demand := 0.0
		for _, c := range containers {
			if c.running {
				demand += jobs[c.queue[0]].compute
			}
		}
		speed := func(c *container) float64 {
			j := jobs[c.queue[0]]
			return math.Pow(float64(c.heldMiB)/float64(j.needMiB), penalty) / max(demand, 1)
		}
		step := next - now
		for _, c := range containers {
			if c.running {
				step = min(step, c.left/speed(c))
			}
		}
		now += step
		for _, c := range containers {
			if !c.running {
				continue
			}
			used += step * float64(c.heldMiB)
			if c.left -= step * speed(c); c.left <= 1e-9 {
				j := c.queue[0]
				res.ends[j] = now
				profiles++
				c.end(jobs[j], now)
			}
		}
		if now >= next {
			next += windowS
			if s.mode == fairshare.Adaptive && !s.equal {
				coefficients = adapt(groups, containers, coefficients, profiles)
			}
			for _, c := range containers {
				c.granted, c.peak, c.denied, c.took, c.baseline, c.ended = 0, 0, 0, 0, 0, 0
			}
		}
	}
	res.makespan, res.utilisation = now, used/now/cardMiB
	return res
}

// share divides the card and lets jobs use their shares.
func share(groups []fairshare.Group, containers []*container, coefficients fairshare.Coefficients, s scheme, jobs []job) {
	in := fairshare.Input{MemoryMiB: cardMiB, Mode: s.mode, Coefficients: coefficients, Params: fairshare.DefaultParams()}
	var here []*container
	for i, c := range containers {
		g := groups[i]
		g.Jobs = max(len(c.queue), 1)
		if s.equal {
			g.Jobs = 1
		}
		if len(c.queue) > 0 || s.mode == fairshare.Static { // static shares persist
			in.Groups = append(in.Groups, g)
		}
		if len(c.queue) == 0 {
			continue
		}
		x := fairshare.Container{ID: c.group, Group: c.group, InUseMiB: c.heldMiB, ArrivedS: float64(c.queue[0])}
		if s.bounds && c.wishMiB > 0 {
			x.CapMiB, x.MinimumMiB = &c.wishMiB, c.minimumMiB
		}
		in.Containers, here = append(in.Containers, x), append(here, c)
	}
	for i, d := range fairshare.Decide(in).Containers {
		c, j := here[i], jobs[here[i].queue[0]]
		c.granted = max(c.granted, d.ShareMiB)
		if !c.running && float64(d.ShareMiB) >= workingSet*float64(j.needMiB) {
			c.running, c.left = true, j.seconds
		}
		if c.running {
			c.heldMiB = min(d.ShareMiB, j.needMiB)
			c.peak = max(c.peak, c.heldMiB)
		}
		if d.ShareMiB < j.needMiB && !c.denialCounted {
			c.denialCounted = true
			c.denied++
		}
	}
}

func (c *container) end(j job, now float64) {
	c.took, c.baseline, c.ended = c.took+now-c.started, c.baseline+j.seconds, c.ended+1
	// The gate sees requests, granted or not.
	c.wishMiB = max(c.wishMiB, int(margin*float64(j.needMiB)))
	c.minimumMiB = max(c.minimumMiB, int(math.Ceil(workingSet*float64(j.needMiB))))
	c.queue, c.started, c.heldMiB, c.running, c.denialCounted = c.queue[1:], now, 0, false, false
}

// adapt updates the groups' coefficients after a window.
func adapt(groups []fairshare.Group, containers []*container, coefficients fairshare.Coefficients, profiles int) fairshare.Coefficients {
	in := fairshare.AdaptInput{Coefficients: coefficients, Profiles: profiles, Params: fairshare.DefaultAdaptParams()}
	var of []int
	for i, c := range containers {
		if len(c.queue) == 0 {
			continue
		}
		g := groups[i]
		g.Jobs = len(c.queue)
		in.Groups, of = append(in.Groups, g), append(of, i)
		m := fairshare.Measured{Group: g.ID, GrantedMiB: c.granted, PeakMiB: c.peak, MinimumMiB: c.minimumMiB, Denied: c.denied}
		if c.ended > 0 {
			took, baseline := c.took/float64(c.ended), c.baseline/float64(c.ended)
			m.DurationS, m.BaselineS = &took, &baseline
		}
		in.Measured = append(in.Measured, m)
	}
	out := fairshare.Adapt(in)
	for k, g := range out.Groups {
		groups[of[k]].Coefficients = g.Coefficients
	}
	return out.Coefficients
}
