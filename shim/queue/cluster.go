// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"fmt"
	"slices"
)

// cluster is an input in numbers: vectors by resource.
type cluster struct {
	in       Input
	names    []string // of resources
	total    []float64
	capacity [][]float64 // by node
	need     [][]float64 // by job
	node     map[string]int
	may      []*nodeSet // by job
	sets     []*nodeSet
}

// nodeSet is the nodes on which a job may run.
type nodeSet struct {
	nodes   []int
	largest [][]float64 // the capacities that are not within another
	failed  [][]float64 // needs for which no node has room
	is      []bool      // by node; made when it is asked for
}

func (s *nodeSet) has(node int) bool {
	if s.is == nil {
		s.is = make([]bool, 1+slices.Max(s.nodes))
		for _, n := range s.nodes {
			s.is[n] = true
		}
	}
	return node < len(s.is) && s.is[node]
}

func newCluster(in Input) *cluster {
	c := &cluster{in: in, node: make(map[string]int, len(in.Nodes))}
	for i := range in.Nodes {
		c.learn(in.Nodes[i].Capacity)
	}
	for i := range in.Jobs {
		c.learn(in.Jobs[i].Needs)
	}
	slices.Sort(c.names)
	c.total, c.capacity, c.need = make([]float64, len(c.names)), vectors(len(in.Nodes), len(c.names)), vectors(len(in.Jobs), len(c.names))
	every := make([]int, len(in.Nodes))
	for i, n := range in.Nodes {
		c.node[n.ID], every[i] = i, i
		for r, name := range c.names {
			c.capacity[i][r] = n.Capacity[name]
		}
		add(c.total, c.capacity[i], 1)
	}
	for i := range in.Jobs {
		for r, name := range c.names {
			c.need[i][r] = in.Jobs[i].Needs[name]
		}
	}
	c.restrict(c.newNodeSet(every))
	return c
}

// learn adds the names of resources that are new: mostly none.
func (c *cluster) learn(of Resources) {
	known := 0
	for _, name := range c.names {
		if _, ok := of[name]; ok {
			known++
		}
	}
	if known == len(of) {
		return
	}
	for name := range of {
		if !slices.Contains(c.names, name) {
			c.names = append(c.names, name)
		}
	}
}

// list identifies the elements of a slice. Jobs often share a list of nodes.
type list struct {
	first *string
	n     int
}

func listOf(all []string) list {
	if len(all) == 0 {
		return list{}
	}
	return list{&all[0], len(all)}
}

// restrict finds the nodes on which each job may run.
func (c *cluster) restrict(all *nodeSet) {
	sets := make(map[list]*nodeSet)
	c.may = slices.Repeat([]*nodeSet{all}, len(c.in.Jobs))
	for i := range c.in.Jobs {
		j := &c.in.Jobs[i]
		if j.Feasible == nil {
			continue
		}
		l := listOf(j.Feasible)
		if sets[l] == nil {
			nodes := make([]int, l.n)
			for k, id := range j.Feasible {
				nodes[k] = c.node[id]
			}
			sets[l] = c.newNodeSet(nodes)
		}
		c.may[i] = sets[l]
	}
}

func (c *cluster) newNodeSet(nodes []int) *nodeSet {
	s := &nodeSet{nodes: nodes}
	c.sets = append(c.sets, s)
	for _, n := range nodes {
		v := c.capacity[n]
		if slices.ContainsFunc(s.largest, func(l []float64) bool { return under(v, l) }) {
			continue
		}
		s.largest = slices.DeleteFunc(s.largest, func(l []float64) bool { return under(l, v) })
		s.largest = append(s.largest, v)
	}
	return s
}

// fits reports whether a node is large enough for job i.
func (c *cluster) fits(i int) bool {
	return slices.ContainsFunc(c.may[i].largest, func(l []float64) bool { return within(c.need[i], l) })
}

// has reports whether the cluster has what job i needs, on any nodes.
func (c *cluster) has(i int) bool {
	for r, x := range c.need[i] {
		if x > 0 && c.total[r] == 0 {
			return false
		}
	}
	return true
}

// parts sets the parts of the cluster's resources that job i needs, 0 of those that it has none of.
func (c *cluster) parts(i int, of []float64) {
	for r, x := range c.need[i] {
		if of[r] = 0; c.total[r] > 0 {
			of[r] = x / c.total[r]
		}
	}
}

// lacks names the resource that no node has enough of for job i.
func (c *cluster) lacks(i int) string {
	for r, x := range c.need[i] {
		most := 0.0
		for _, l := range c.may[i].largest {
			most = max(most, l[r])
		}
		if x > most*(1+1e-9) {
			return fmt.Sprintf("%v of %s, at most %v", x, c.names[r], most)
		}
	}
	return "all of it on one node"
}

// vectors returns n vectors of zeros.
func vectors(n, resources int) [][]float64 {
	all := make([]float64, n*resources)
	out := make([][]float64, n)
	for i := range out {
		out[i] = all[i*resources : (i+1)*resources]
	}
	return out
}

func add(to, v []float64, times float64) {
	for r := range to {
		to[r] += times * v[r]
	}
}

// within reports whether the need fits, up to rounding.
func within(need, free []float64) bool {
	for r, x := range need {
		if x > free[r]+1e-9*x {
			return false
		}
	}
	return true
}

func under(v, w []float64) bool {
	for r, x := range v {
		if x > w[r] {
			return false
		}
	}
	return true
}
