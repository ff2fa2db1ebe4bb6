// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package metrics

import "slices"

// Fairness returns the finish-time fairness ρ of each job, in the order of the run
// (Mahajan et al., "Themis", NSDI 2020, §4.1): how long it took, of how long it would have
// taken with a slice of the pool of its own. The slice is 1/N of the pool, N being how many
// jobs were there on average while the job was; above 1 the job has been treated worse. A
// job that has not ended, or that used no CPU, has a ρ of 0.
func (r Run) Fairness() []float64 {
	present := newPresence(r.Jobs)
	out := make([]float64, len(r.Jobs))
	for i, j := range r.Jobs {
		took, ok := j.Completion()
		work := j.CPUS - j.LostCPUS
		if !ok || took <= 0 || work <= 0 {
			continue
		}
		slice := r.PoolCores / max(present.mean(j.ArriveS, *j.EndS), 1)
		if j.CapCores > 0 {
			slice = min(slice, j.CapCores)
		}
		out[i] = took / (work / slice)
	}
	return out
}

// presence is how many jobs there are over time.
type presence struct {
	at       []float64 // moments at which that changes
	count    []float64 // from then on
	integral []float64 // of it until then
}

func newPresence(jobs []Job) presence {
	type change struct{ at, by float64 }
	var changes []change
	for _, j := range jobs {
		if j.EndS != nil {
			changes = append(changes, change{j.ArriveS, 1}, change{*j.EndS, -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	var p presence
	count, integral := 0.0, 0.0
	for i, c := range changes {
		if i > 0 {
			integral += count * (c.at - changes[i-1].at)
		}
		count += c.by
		p.at, p.count, p.integral = append(p.at, c.at), append(p.count, count), append(p.integral, integral)
	}
	return p
}

// mean is how many jobs there are on average between two moments at which it changes.
func (p presence) mean(from, to float64) float64 {
	return (p.until(to) - p.until(from)) / (to - from)
}

func (p presence) until(t float64) float64 {
	i, _ := slices.BinarySearch(p.at, t)
	i = min(i, len(p.at)-1)
	return p.integral[i]
}
