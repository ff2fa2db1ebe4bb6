// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"math"
	"slices"
)

// expectations bounds the jobs whose start is expected: the first that wait.
const expectations = 200

// expect returns when the first waiting jobs start, and when they and the running ones end, in seconds
// from now; +Inf if unknown. It assumes that the sizes are right, no job comes, and no further one is
// suspended: each place that becomes free goes to the first job that fits there.
func (p *placing) expect(order []int) (start, end []float64) {
	start, end = slices.Repeat([]float64{math.Inf(1)}, len(p.plan)), slices.Repeat([]float64{math.Inf(1)}, len(p.plan))
	var ends events // of jobs
	node := make([]int, len(p.plan))
	for n, jobs := range p.running {
		for _, i := range jobs {
			node[i] = n
			if end[i] = p.left[i]; !math.IsInf(end[i], 1) {
				ends = append(ends, event{end[i], i})
			}
		}
	}
	ends.order()
	var waiting []int
	for _, i := range order {
		if p.plan[i].Node == "" && p.plan[i].Rule != RuleNever && len(waiting) < expectations {
			waiting = append(waiting, i)
		}
	}
	for len(waiting) > 0 && len(ends) > 0 {
		gone, at := ends[0].id, ends[0].at
		ends = ends.drop()
		n := node[gone]
		add(p.free[n], p.need[gone], 1)
		waiting = slices.DeleteFunc(waiting, func(i int) bool {
			if !within(p.need[i], p.free[n]) || !p.may[i].has(n) || p.keeps(n, i, at) {
				return false
			}
			start[i], end[i] = at, at+p.left[i]
			add(p.free[n], p.need[i], -1)
			if node[i] = n; !math.IsInf(end[i], 1) {
				ends = ends.add(event{end[i], i})
			}
			return true
		})
	}
	return start, end
}

// keeps reports whether node n is kept free for another job than i at that time.
func (p *placing) keeps(n, i int, at float64) bool {
	r := p.reserved
	if r == nil || r.node != n {
		return false
	}
	if r.job == i {
		p.reserved = nil
		return false
	}
	return !within(p.need[i], r.spare) && at+p.left[i] > r.at
}
