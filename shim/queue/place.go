// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Rules are what giving places in an order may do.
type Rules struct {
	// Head lets a job that finds no place block those after it.
	Head bool
	// Reserve selects jobs for the first of which, if it finds no place, a node is kept free: others
	// start there only if they end before it can start, or leave it room (EASY backfilling, Lifka
	// 1995). May be nil.
	Reserve func(Job) bool
	// Interrupt suspends jobs for earlier ones.
	Interrupt bool
}

// Placed is what happens to a job.
type Placed struct {
	Node    string
	Rule    string
	Because string
}

// attempts bounds how many jobs without a free place look for one to take or reserve, per decision.
const attempts = 32

// Place gives places in the order of indexes into in.Jobs. Running jobs keep theirs unless they are
// suspended for a job before them.
func Place(in Input, order []int, rules Rules) []Placed {
	return newCluster(in).place(order, rules).plan
}

func (c *cluster) place(order []int, rules Rules) *placing {
	p := c.placing(order)
	left := attempts
	blocked := false
	for _, i := range order {
		j := &c.in.Jobs[i]
		to := &p.plan[i]
		switch {
		case to.Rule != "": // it leaves
		case j.Node != "":
			*to = Placed{Node: j.Node, Rule: RuleRuns}
		case !c.fits(i):
			*to = Placed{Rule: RuleNever, Because: "no node has what it asks for: " + c.lacks(i)}
		case blocked:
			*to = Placed{Rule: RuleWait, Because: "waits for a job before it"}
		case p.start(i):
		case left == 0:
			*to = Placed{Rule: RuleWait, Because: "no place is free"}
		default:
			left--
			soonest := p.soonest(i)
			if rules.Interrupt && p.take(i, soonest.at) {
				continue
			}
			*to = Placed{Rule: RuleWait, Because: "no place is free"}
			if rules.Reserve != nil && rules.Reserve(*j) && p.reserved == nil && soonest.node >= 0 {
				p.keep(i, soonest)
				to.Rule, to.Because = RuleReserve, fmt.Sprintf("no place is free; node %s is kept for it", c.in.Nodes[soonest.node].ID)
			}
			blocked = rules.Head
		}
	}
	return p
}

// placing is the state while places are given.
type placing struct {
	*cluster
	free     [][]float64       // by node
	late     map[int][]float64 // by node: of free, what comes from jobs that leave
	running  [][]int           // jobs by node, by rising left
	left     []float64         // how long a job will need its place, in seconds; +Inf if unknown
	cost     []float64         // of a job's suspension; +Inf if it may not be suspended
	cheapest float64           // of cost
	last     []int             // jobs that may be suspended, the last in the order first
	tried    []int             // the latest job that looked for a place to take, plus 1, by node
	position []int             // in the order, by job
	bound    []int             // how many suspended jobs can go on there only, by node
	plan     []Placed
	reserved *reservation
	// Scratch space.
	room   []float64
	others []int
}

// reservation keeps a node free.
type reservation struct {
	job   int
	node  int
	at    float64   // seconds from now
	spare []float64 // what is left there then
}

func (c *cluster) placing(order []int) *placing {
	jobs := len(c.in.Jobs)
	p := &placing{
		cluster: c, free: vectors(len(c.in.Nodes), len(c.names)), late: make(map[int][]float64), running: make([][]int, len(c.in.Nodes)), left: make([]float64, jobs),
		cost: make([]float64, jobs), cheapest: math.Inf(1), position: make([]int, jobs), plan: make([]Placed, jobs), room: make([]float64, len(c.names)),
		bound: make([]int, len(c.in.Nodes)), tried: make([]int, len(c.in.Nodes)),
	}
	for n, v := range c.capacity {
		copy(p.free[n], v)
	}
	for i := range c.in.Jobs {
		j := &c.in.Jobs[i]
		p.left[i], p.cost[i] = math.Inf(1), math.Inf(1)
		if j.RemainingS != nil {
			p.left[i] = *j.RemainingS
		}
		switch {
		case j.Node != "" && j.Leaving:
			p.leave(i, c.node[j.Node], Placed{Rule: RuleLeave, Because: "it is being stopped or suspended"})
		case j.Node != "":
			p.occupy(i, c.node[j.Node])
			params := &c.in.Params
			cost := params.cost(j)
			if j.Suspendable && (c.in.NowS-j.SinceS)*params.Lost >= cost && p.left[i] > params.Margin*cost {
				p.cost[i], p.cheapest = cost, min(p.cheapest, cost)
			}
		case j.Local && !j.Ended && j.ServedS > 0 && len(j.Feasible) == 1:
			p.bound[c.node[j.Feasible[0]]]++
		}
	}
	for k, i := range order {
		p.position[i] = k
	}
	for _, i := range slices.Backward(order) {
		if !math.IsInf(p.cost[i], 1) {
			p.last = append(p.last, i)
		}
	}
	return p
}

// occupy books the place of job i on node n.
func (p *placing) occupy(i, n int) {
	add(p.free[n], p.need[i], -1)
	at, _ := slices.BinarySearchFunc(p.running[n], p.left[i], func(o int, left float64) int { return cmp.Compare(p.left[o], left) })
	p.running[n] = slices.Insert(p.running[n], at, i)
}

// leave notes that job i, which is not booked, leaves its place on node n, which is free later.
func (p *placing) leave(i, n int, how Placed) {
	if p.late[n] == nil {
		p.late[n] = make([]float64, len(p.names))
	}
	add(p.late[n], p.need[i], 1)
	p.plan[i] = how
}

// start gives job i a free place: on the node for which the fewest suspended jobs wait, and then on
// which least is left.
func (p *placing) start(i int) bool {
	need, may := p.need[i], p.may[i]
	for _, f := range may.failed {
		if within(f, need) {
			return false
		}
	}
	best, least, room := -1, 0.0, false
	for _, n := range may.nodes {
		if !within(need, p.free[n]) {
			continue
		}
		room = true
		if !p.spared(i, n) {
			continue
		}
		left := 0.0
		for r, x := range p.free[n] {
			if whole := p.capacity[n][r]; whole > 0 {
				left = max(left, (x-need[r])/whole)
			}
		}
		if best < 0 || p.bound[n] < p.bound[best] || p.bound[n] == p.bound[best] && left < least {
			best, least = n, left
		}
	}
	if !room {
		may.failed = append(may.failed, need)
	}
	if best < 0 {
		return false
	}
	to := Placed{Rule: RuleStart}
	if !p.now(i, best) {
		to = Placed{Rule: RuleTake, Because: "a place is about to be free"}
		p.awaits(i, best)
	}
	p.give(i, best, to)
	return true
}

// awaits notes that job i gets what comes from jobs that leave node n.
func (p *placing) awaits(i, n int) {
	for r, x := range p.need[i] {
		p.late[n][r] = max(p.late[n][r]-x, 0)
	}
}

// now reports whether job i finds room on node n before jobs leave it.
func (p *placing) now(i, n int) bool {
	late := p.late[n]
	if late == nil {
		return true
	}
	copy(p.room, p.free[n])
	add(p.room, late, -1)
	return within(p.need[i], p.room)
}

// spared reports whether job i may start on the node despite a reservation.
func (p *placing) spared(i, n int) bool {
	r := p.reserved
	return r == nil || r.node != n || within(p.need[i], r.spare) || p.left[i] <= r.at
}

func (p *placing) give(i, n int, to Placed) {
	if r := p.reserved; r != nil && r.node == n && p.left[i] > r.at {
		add(r.spare, p.need[i], -1)
	}
	to.Node = p.in.Nodes[n].ID
	p.plan[i] = to
	p.occupy(i, n)
}

type moment struct {
	node int // -1 for never
	at   float64
}

// soonest returns where and when job i finds a place if no job is suspended.
func (p *placing) soonest(i int) moment {
	out := moment{-1, math.Inf(1)}
	for _, n := range p.may[i].nodes {
		if !within(p.need[i], p.capacity[n]) {
			continue
		}
		copy(p.room, p.free[n])
		for _, o := range p.running[n] {
			if p.left[o] >= out.at {
				break
			}
			if add(p.room, p.need[o], 1); within(p.need[i], p.room) {
				out = moment{n, p.left[o]}
				break
			}
		}
	}
	return out
}

// keep reserves the node for job i.
func (p *placing) keep(i int, m moment) {
	r := &reservation{job: i, node: m.node, at: m.at, spare: slices.Clone(p.free[m.node])}
	for _, o := range p.running[m.node] {
		if p.left[o] <= m.at {
			add(r.spare, p.need[o], 1)
		}
	}
	add(r.spare, p.need[i], -1)
	p.reserved = r
}

// take suspends jobs after job i on one node, the last first, if that makes room and gains enough:
// those with a local checkpoint wait for job i to end. wait is the time in seconds until there is
// room anyway. Of the nodes for which the fewest suspended jobs wait, that of the last job in the
// order is chosen: one before it would soon take its place back.
func (p *placing) take(i int, wait float64) bool {
	if wait <= p.in.Params.Margin*p.cheapest {
		return false
	}
	var chosen []int
	node := -1
	for _, last := range p.last {
		if p.position[last] < p.position[i] || node >= 0 && p.bound[node] == 0 {
			break
		}
		n := p.node[p.in.Jobs[last].Node]
		if p.tried[n] == i+1 || p.plan[last].Rule == RuleYield || node >= 0 && p.bound[n] >= p.bound[node] || !p.may[i].has(n) || !p.spared(i, n) {
			continue
		}
		p.tried[n] = i + 1
		victims := p.victims(i, n)
		cost, longer := 0.0, 0.0
		for _, v := range victims {
			if cost += p.cost[v]; p.in.Jobs[v].Local {
				longer += p.in.Params.left(&p.in.Jobs[i])
			}
		}
		if victims != nil && wait > p.in.Params.Margin*cost+longer {
			node, chosen = n, slices.Clone(victims)
		}
	}
	if node < 0 {
		return false
	}
	for _, v := range chosen {
		add(p.free[node], p.need[v], 1)
		p.leave(v, node, Placed{Rule: RuleYield, Because: fmt.Sprintf("job %s is before it", p.in.Jobs[i].ID)})
	}
	p.running[node] = slices.DeleteFunc(p.running[node], func(o int) bool { return slices.Contains(chosen, o) })
	p.awaits(i, node)
	p.give(i, node, Placed{Rule: RuleTake, Because: fmt.Sprintf("%d suspended for it", len(chosen))})
	for _, s := range p.sets { // more may be free there than before
		s.failed = slices.DeleteFunc(s.failed, func(need []float64) bool { return within(need, p.free[node]) })
	}
	return true
}

// victims returns the jobs on node n that are suspended for job i, nil if that makes no room. It is
// valid until the next call.
func (p *placing) victims(i, n int) []int {
	need, room, by := p.need[i], p.room, p.others[:0]
	copy(room, p.free[n])
	for _, o := range p.running[n] {
		if !math.IsInf(p.cost[o], 1) && p.position[o] > p.position[i] {
			by = append(by, o)
			add(room, p.need[o], 1)
		}
	}
	p.others = by
	if !within(need, room) {
		return nil
	}
	slices.SortFunc(by, func(a, b int) int { return p.position[b] - p.position[a] })
	copy(room, p.free[n])
	for k, o := range by {
		add(room, p.need[o], 1)
		if !within(need, room) {
			continue
		}
		// Those before it may not be needed.
		return slices.DeleteFunc(by[:k+1], func(o int) bool {
			add(room, p.need[o], -1)
			if within(need, room) {
				return true
			}
			add(room, p.need[o], 1)
			return false
		})
	}
	return nil
}
