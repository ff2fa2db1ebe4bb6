// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package turns

import (
	"math/rand/v2"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
	"github.com/ebbtide/ebbtide/driver/twin"
)

func known(x policy.CPUSeconds) *policy.CPUSeconds { return &x }

func decide(tasks ...Task) (waits string) {
	for _, yields := range Decide(5, fsp.Completion, tasks) {
		waits += map[bool]string{false: "-", true: "w"}[yields]
	}
	return waits
}

func job(id string, left policy.CPUSeconds, utilisation policy.Cores) Task {
	return Task{Task: policy.Task{ID: id, RemainingCPUS: known(left), CapCores: utilisation}}
}

func TestDecide(t *testing.T) {
	unknown := Task{Task: policy.Task{ID: "unknown"}}
	runs := job("runs", 1000, 0)
	runs.Runs = true
	late := Task{Task: policy.Task{ID: "late", CPUS: 10, FairCPUS: 20, RemainingCPUS: known(5)}}
	late2 := late
	late2.ID = "late2"
	service := func(utilisation policy.Cores) Task {
		return Task{Task: policy.Task{ID: "service", Kind: policy.Service, CapCores: utilisation}}
	}
	for _, tc := range []struct {
		name  string
		tasks []Task
		want  string
	}{
		{"least remaining first", []Task{job("a", 30, 0), job("b", 10, 0), job("c", 20, 0)}, "w-w"},
		{"as many as fill the card", []Task{job("a", 30, 0.5), job("b", 10, 0.5), job("c", 20, 0.5)}, "w--"},
		{"the first uses little", []Task{job("a", 1000, 0), job("b", 10, 0.4)}, "--"},
		{"none waits where all fit", []Task{job("a", 30, 0.3), job("b", 10, 0.3), job("c", 20, 0.3)}, "---"},
		{"or where what cannot wait would take their part", []Task{job("a", 30, 0), unknown, job("b", 10, 0)}, "---"},
		{"or is depended on", []Task{job("a", 30, 0), runs, job("b", 10, 0)}, "---"},
		{"a service that uses little takes no more", []Task{job("a", 30, 0), service(0.1), job("b", 10, 0)}, "w--"},
		{"who is late does not wait", []Task{job("a", 30, 0), late, late2, job("b", 10, 0)}, "w--w"},
		{"an ended one takes nothing", []Task{job("a", 30, 0), {Task: policy.Task{ID: "g", CPUS: 9, Ended: true}}, job("b", 10, 0)}, "w--"},
		{"one alone runs", []Task{job("a", 30, 0)}, "-"},
		{"none", nil, ""},
	} {
		must.Eq(t, tc.want, decide(tc.tasks...), must.Sprint(tc.name))
	}
}

// No job of known size ends later than under time slicing plus a decision's length for each of the
// others, and the card is never idle.
func TestDecide_ends(t *testing.T) {
	const step = 1.0
	gained := 0.0
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		n := 2 + rnd.IntN(6)
		size, arrives := make([]float64, n), make([]float64, n)
		for i := range n {
			size[i], arrives[i] = 5+100*rnd.Float64(), float64(rnd.IntN(60))
		}
		run := func(turns bool) (ends []float64) {
			ends = make([]float64, n)
			tasks := make([]policy.Task, n)
			for i := range n {
				tasks[i] = policy.Task{ID: string(rune('a' + i)), Entitlement: 1, RemainingCPUS: known(policy.CPUSeconds(size[i]))}
			}
			for now, left := 0.0, n; left > 0; now += step {
				var here []int
				var all []Task
				var twins []policy.Task
				for i := range n {
					if arrives[i] <= now && (ends[i] == 0 || twin.Left(tasks[i]) > 0) {
						here, all, twins = append(here, i), append(all, Task{Task: tasks[i]}), append(twins, tasks[i])
					}
				}
				yields := make([]bool, len(all))
				if turns {
					yields = Decide(step, fsp.Balanced, all)
				}
				runs := 0
				for k, i := range here {
					if ends[i] == 0 && !yields[k] {
						runs++
					}
				}
				twin.Advance(twins, 1, step)
				for k, i := range here {
					tasks[i].FairCPUS = twins[k].FairCPUS
					if ends[i] > 0 {
						continue
					}
					must.Positive(t, runs)
					if yields[k] {
						continue
					}
					got := policy.CPUSeconds(min(step/float64(runs), float64(*tasks[i].RemainingCPUS)))
					tasks[i].CPUS += got
					if *tasks[i].RemainingCPUS -= got; *tasks[i].RemainingCPUS < 1e-9 {
						ends[i], left = now+step, left-1
						tasks[i].Ended, tasks[i].RemainingCPUS = true, nil
					}
				}
			}
			return ends
		}
		plain, ours := run(false), run(true)
		for i := range n {
			must.LessEq(t, plain[i]+step*float64(n), ours[i], must.Sprintf("seed %d, job %d of %v arriving %v", seed, i, size, arrives))
			gained += (plain[i] - ours[i]) / (plain[i] - arrives[i]) / float64(n)
		}
	}
	must.Greater(t, 15, gained, must.Sprint("percent of the time until the end, in the mean of the seeds"))
	t.Logf("the mean time until the end is %.0f %% shorter", gained)
}
