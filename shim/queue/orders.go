// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package queue

import (
	"cmp"
	"math"
	"slices"
)

// obey applies operators' orders and owners' priorities to an order by the policy. held are the jobs
// that wait on hold; they leave it.
func (in Input) obey(order []int, ends []float64) (obeyed, held []int) {
	for _, i := range order {
		if in.Jobs[i].onHold() {
			held = append(held, i)
		} else {
			obeyed = append(obeyed, i)
		}
	}
	slices.SortStableFunc(obeyed, func(a, b int) int { return cmp.Compare(in.Jobs[b].TopS, in.Jobs[a].TopS) })
	if slices.ContainsFunc(obeyed, func(i int) bool { return in.Jobs[i].Priority != 0 }) {
		obeyed = in.byPriority(obeyed, ends)
	}
	return obeyed, held
}

// byPriority puts each job behind those of its owner with a higher priority. It moves jobs back only,
// so that no owner's job overtakes another owner's: if jobs of one owner exchanged their positions,
// a short one of low priority would hold a position at the front for all others. One at the top
// keeps its position, and one that has no place on any node delays none.
func (in Input) byPriority(order []int, ends []float64) []int {
	at := make([]int, len(in.Jobs))
	for k, i := range order {
		at[i] = k
	}
	out := slices.Clone(order)
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(in.Jobs[b].Priority, in.Jobs[a].Priority) })
	last := make(map[string]int) // by owner, of those with a higher priority
	for _, i := range out {
		if j := &in.Jobs[i]; j.TopS == 0 && !math.IsInf(ends[i], 1) {
			at[i] = max(at[i], last[j.Owner])
			last[j.Owner] = at[i]
		}
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(at[a], at[b]) })
	return out
}

// onHold reports whether the job waits on hold. A running job is not touched.
func (j *Job) onHold() bool { return j.Hold != "" && j.Node == "" && !j.Ended }
