// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package metrics

import "slices"

// Fairness returns each job's finish-time fairness ρ (Mahajan et al., "Themis", NSDI 2020,
// §4.1): its duration relative to that with an exclusive 1/N of the pool, N being the mean
// number of jobs present during it. Above 1 the job was treated worse. ρ is 0 for a job that
// did not finish or used no CPU.
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

// presence is the number of jobs over time.
type presence struct {
	at       []float64 // times of change
	count    []float64 // from then on
	integral []float64 // of count, until then
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

// mean returns the mean number of jobs between two times of change.
func (p presence) mean(from, to float64) float64 {
	return (p.until(to) - p.until(from)) / (to - from)
}

func (p presence) until(t float64) float64 {
	i, _ := slices.BinarySearch(p.at, t)
	i = min(i, len(p.at)-1)
	return p.integral[i]
}
