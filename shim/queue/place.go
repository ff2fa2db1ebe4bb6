// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
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
	c := newCluster(in, order)
	left := attempts
	blocked := false
	for _, i := range order {
		j := &in.Jobs[i]
		p := &c.plan[i]
		switch {
		case p.Rule != "": // it yields
		case j.Node != "":
			*p = Placed{Node: j.Node, Rule: RuleRuns}
		case !c.total.fits(*j):
			*p = Placed{Rule: RuleNever, Because: "no node has what it asks for: " + c.total.lacks(*j)}
		case blocked:
			*p = Placed{Rule: RuleWait, Because: "waits for a job before it"}
		case c.start(i):
		case left == 0:
			*p = Placed{Rule: RuleWait, Because: "no place is free"}
		default:
			left--
			soonest := c.soonest(i)
			if rules.Interrupt && c.take(i, soonest.at) {
				continue
			}
			*p = Placed{Rule: RuleWait, Because: "no place is free"}
			if rules.Reserve != nil && rules.Reserve(*j) && c.reserved == nil && soonest.node >= 0 && !math.IsInf(soonest.at, 1) {
				c.keep(i, soonest)
				p.Rule, p.Because = RuleReserve, fmt.Sprintf("no place is free; node %s is kept for it", in.Nodes[soonest.node].ID)
			}
			blocked = rules.Head
		}
	}
	return c.plan
}

// cluster is the state while places are given.
type cluster struct {
	in       Input
	total    totals
	names    []string // of resources
	need     [][]float64
	node     map[string]int
	free     [][]float64 // by node
	capacity [][]float64
	running  [][]int // jobs by node
	position []int   // in the order, by job
	plan     []Placed
	failed   [][]float64 // needs for which no node has room
	reserved *reservation
}

// reservation keeps a node free.
type reservation struct {
	node  int
	at    float64   // seconds from now
	spare []float64 // what is left there then
}

func newCluster(in Input, order []int) *cluster {
	total := in.total()
	c := &cluster{in: in, total: total, names: total.names, node: make(map[string]int, len(in.Nodes)), plan: make([]Placed, len(in.Jobs)), position: make([]int, len(in.Jobs))}
	vector := func(r Resources) []float64 {
		v := make([]float64, len(c.names))
		for k, name := range c.names {
			v[k] = r[name]
		}
		return v
	}
	for i, n := range in.Nodes {
		c.node[n.ID] = i
		v := vector(n.Capacity)
		c.capacity, c.free = append(c.capacity, v), append(c.free, slices.Clone(v))
	}
	c.running = make([][]int, len(in.Nodes))
	for i, j := range in.Jobs {
		c.need = append(c.need, vector(j.Needs))
		if j.Node != "" {
			n := c.node[j.Node]
			c.running[n] = append(c.running[n], i)
			add(c.free[n], c.need[i], -1)
		}
	}
	for k, i := range order {
		c.position[i] = k
	}
	return c
}

func add(to, v []float64, sign float64) {
	for k := range to {
		to[k] += sign * v[k]
	}
}

// within reports whether the need fits, up to rounding.
func within(need, free []float64) bool {
	for k, x := range need {
		if x > free[k]+1e-9*x {
			return false
		}
	}
	return true
}

// nodes calls f with the nodes on which job i may run.
func (c *cluster) nodes(i int, f func(n int)) {
	if c.in.Jobs[i].Feasible == nil {
		for n := range c.free {
			f(n)
		}
		return
	}
	for _, id := range c.in.Jobs[i].Feasible {
		f(c.node[id])
	}
}

// start gives job i a free place: on the node on which least is left.
func (c *cluster) start(i int) bool {
	need, all := c.need[i], c.in.Jobs[i].Feasible == nil
	for _, f := range c.failed {
		if within(f, need) {
			return false
		}
	}
	best, least, room := -1, 0.0, false
	c.nodes(i, func(n int) {
		if !within(need, c.free[n]) {
			return
		}
		room = true
		if !c.spared(i, n) {
			return
		}
		left := 0.0
		for k, x := range c.free[n] {
			if c.capacity[n][k] > 0 {
				left = max(left, (x-need[k])/c.capacity[n][k])
			}
		}
		if best < 0 || left < least {
			best, least = n, left
		}
	})
	if best < 0 {
		if all && !room {
			c.failed = append(c.failed, need)
		}
		return false
	}
	c.give(i, best, Placed{Rule: RuleStart})
	return true
}

// spared reports whether job i may start on the node despite a reservation.
func (c *cluster) spared(i, n int) bool {
	r := c.reserved
	if r == nil || r.node != n || within(c.need[i], r.spare) {
		return true
	}
	left := c.in.Jobs[i].RemainingS
	return left != nil && *left <= r.at
}

func (c *cluster) give(i, n int, p Placed) {
	if r := c.reserved; r != nil && r.node == n {
		if left := c.in.Jobs[i].RemainingS; left == nil || *left > r.at {
			add(r.spare, c.need[i], -1)
		}
	}
	p.Node = c.in.Nodes[n].ID
	c.plan[i] = p
	add(c.free[n], c.need[i], -1)
	c.running[n] = append(c.running[n], i)
}

type moment struct {
	node int // -1 for never
	at   float64
}

// soonest returns where and when job i finds a place if no job is suspended.
func (c *cluster) soonest(i int) moment {
	out := moment{-1, math.Inf(1)}
	c.nodes(i, func(n int) {
		if !within(c.need[i], c.capacity[n]) {
			return
		}
		if at := c.roomAt(i, n); out.node < 0 || at < out.at {
			out = moment{n, at}
		}
	})
	return out
}

// left is the time that a job will need its place for, in seconds; +Inf if unknown.
func (c *cluster) left(i int) float64 {
	if left := c.in.Jobs[i].RemainingS; left != nil {
		return *left
	}
	return math.Inf(1)
}

// roomAt returns the seconds until the jobs on node n have left room for job i.
func (c *cluster) roomAt(i, n int) float64 {
	free := slices.Clone(c.free[n])
	by := slices.Clone(c.running[n])
	slices.SortStableFunc(by, func(a, b int) int { return cmp.Compare(c.left(a), c.left(b)) })
	for _, o := range by {
		if add(free, c.need[o], 1); within(c.need[i], free) {
			return c.left(o)
		}
	}
	return math.Inf(1)
}

// keep reserves the node for job i.
func (c *cluster) keep(i int, m moment) {
	r := &reservation{node: m.node, at: m.at, spare: slices.Clone(c.free[m.node])}
	for _, o := range c.running[m.node] {
		if c.left(o) <= m.at {
			add(r.spare, c.need[o], 1)
		}
	}
	add(r.spare, c.need[i], -1)
	c.reserved = r
}

// take suspends jobs after job i on one node, the last first, if that makes room and gains enough.
// wait is the time in seconds until there is room anyway. The node that loses least is chosen.
func (c *cluster) take(i int, wait float64) bool {
	var chosen []int
	node, least := -1, math.Inf(1)
	c.nodes(i, func(n int) {
		if !c.spared(i, n) {
			return
		}
		victims := c.victims(i, n)
		if victims == nil {
			return
		}
		cost := 0.0
		for _, v := range victims {
			cost += c.in.cost(c.in.Jobs[v])
		}
		if wait > c.in.Params.Margin*cost && cost < least {
			node, chosen, least = n, victims, cost
		}
	})
	if node < 0 {
		return false
	}
	for _, v := range chosen {
		add(c.free[node], c.need[v], 1)
		c.plan[v] = Placed{Rule: RuleYield, Because: fmt.Sprintf("job %s is before it", c.in.Jobs[i].ID)}
	}
	c.running[node] = slices.DeleteFunc(c.running[node], func(o int) bool { return slices.Contains(chosen, o) })
	c.give(i, node, Placed{Rule: RuleTake, Because: fmt.Sprintf("%d suspended for it", len(chosen))})
	c.failed = slices.DeleteFunc(c.failed, func(need []float64) bool { return within(need, c.free[node]) })
	return true
}

// victims returns the jobs on node n that are suspended for job i, nil if that makes no room.
func (c *cluster) victims(i, n int) []int {
	if !within(c.need[i], c.capacity[n]) {
		return nil
	}
	var by []int
	for _, o := range c.running[n] {
		if c.mayYield(o, i) {
			by = append(by, o)
		}
	}
	slices.SortFunc(by, func(a, b int) int { return c.position[b] - c.position[a] })
	free := slices.Clone(c.free[n])
	for k, o := range by {
		add(free, c.need[o], 1)
		if !within(c.need[i], free) {
			continue
		}
		// Those before it may not be needed.
		by = by[:k+1]
		return slices.DeleteFunc(by, func(o int) bool {
			add(free, c.need[o], -1)
			if within(c.need[i], free) {
				return true
			}
			add(free, c.need[o], 1)
			return false
		})
	}
	return nil
}

// mayYield reports whether running job o may be suspended for job i.
func (c *cluster) mayYield(o, i int) bool {
	j, p := c.in.Jobs[o], c.in.Params
	return c.position[o] > c.position[i] && j.Node != "" && j.Suspendable && (c.in.NowS-j.SinceS)*p.Lost >= c.in.cost(j) &&
		c.left(o) > p.Margin*c.in.cost(j)
}

// totals are the cluster's resources.
type totals struct {
	names  []string
	amount []float64
	nodes  []Node
	byID   map[string]Node
}

func (in Input) total() totals {
	sum := make(Resources)
	for _, n := range in.Nodes {
		for name, x := range n.Capacity {
			sum[name] += x
		}
	}
	for _, j := range in.Jobs {
		for name := range j.Needs {
			sum[name] += 0
		}
	}
	t := totals{names: slices.Sorted(maps.Keys(sum)), nodes: in.Nodes, byID: make(map[string]Node, len(in.Nodes))}
	for _, n := range in.Nodes {
		t.byID[n.ID] = n
	}
	for _, name := range t.names {
		t.amount = append(t.amount, sum[name])
	}
	return t
}

func (t totals) has(j Job) bool {
	for r, name := range t.names {
		if j.Needs[name] > 0 && t.amount[r] == 0 {
			return false
		}
	}
	return true
}

// fits reports whether a node is large enough for the job.
func (t totals) fits(j Job) bool {
	for n := range t.candidates(j) {
		if j.fits(n) {
			return true
		}
	}
	return false
}

// candidates yields the nodes on which the job may run.
func (t totals) candidates(j Job) iter.Seq[Node] {
	if j.Feasible == nil {
		return slices.Values(t.nodes)
	}
	return func(yield func(Node) bool) {
		for _, id := range j.Feasible {
			if !yield(t.byID[id]) {
				return
			}
		}
	}
}

func (j Job) fits(n Node) bool {
	for name, x := range j.Needs {
		if x > n.Capacity[name]*(1+1e-9) {
			return false
		}
	}
	return true
}

// lacks names the resource that no node has enough of.
func (t totals) lacks(j Job) string {
	for _, name := range slices.Sorted(maps.Keys(j.Needs)) {
		most := 0.0
		for n := range t.candidates(j) {
			most = max(most, n.Capacity[name])
		}
		if j.Needs[name] > most*(1+1e-9) {
			return fmt.Sprintf("%v of %s, at most %v", j.Needs[name], name, most)
		}
	}
	return "all of it on one node"
}
