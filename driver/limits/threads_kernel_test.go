// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// Two threads could use two cores, next to other tasks and under a quota.
func TestKernel_threads(t *testing.T) {
	if len(cpus(t)) < 2 {
		t.Skip("skipped: a helper has as many busy threads as there are CPUs, two at most")
	}
	k := newKernel(t)
	tasks := []*Cgroup{k.run("a", "busy", -1), k.run("b", "busy", -1), k.run("limited", "busy", -1), k.run("idle", "sleep", -1)}
	must.NoError(t, tasks[2].SetQuota(0.1))
	during(t, 0.5, tasks[0], tasks[1]) // while they start up
	look := func() (all []Threads) {
		for _, c := range tasks {
			all = append(all, c.Threads())
		}
		return all
	}
	start := time.Now()
	before := look()
	during(t, 2, tasks[0], tasks[1])
	took := time.Since(start)
	for i, now := range look() {
		least, most := now.Demand(before[i], took)
		t.Logf("task %d could have used %.2f to %.2f cores", i, least, most)
		if i == 3 {
			must.Less(t, 0.2, least)
			continue
		}
		two := must.Sprint("two threads, and those of the Go runtime now and then")
		must.LessEq(t, 3.6, least, two)
		must.GreaterEq(t, 1.4, most, two)
		if i != 2 { // a wait that has not ended is missing, and the limited one's are long
			must.GreaterEq(t, 1.4, least, two)
		}
	}
}

func TestThreads_demand(t *testing.T) {
	second := func(run, wait float64) Thread {
		return Thread{time.Duration(run * 1e9), time.Duration(wait * 1e9)}
	}
	for name, tc := range map[string]struct {
		was, is Thread
		want    float64
	}{
		"a third of a core, alone":     {second(7, 0), second(9, 0), 1.0 / 3},
		"the same beside others":       {second(7, 1), second(8, 4), 1.0 / 3},
		"the same, nearly starved":     {second(7, 0), second(7.1, 5.7), 1.0 / 3},
		"spins":                        {second(1, 1), second(2, 6), 1},
		"starves":                      {second(1, 1), second(1, 7), 1},
		"sleeps":                       {second(1, 1), second(1, 1), 0},
		"new":                          {Thread{}, second(3, 0), 0.5},
		"another's number":             {second(9, 0), second(3, 0), 0.5},
		"more than a clock's accuracy": {second(0, 0), second(6.1, 0.1), 1},
	} {
		least, most := Threads{1: tc.is}.Demand(Threads{1: tc.was}, 6*time.Second)
		must.InDelta(t, tc.want, least, 1e-9, must.Sprint(name))
		must.InDelta(t, tc.want, most, 1e-9, must.Sprint(name))
	}
	for name, tc := range map[string]struct {
		a, b        Thread
		least, most float64
	}{
		"neither waits":          {second(6, 0), second(2, 0), 4.0 / 3, 4.0 / 3},
		"one waits, one sleeps":  {second(1, 4), second(1, 0), 1.0/2 + 1.0/6, 1.0/2 + 1.0/2},
		"they wait in turn":      {second(0.1, 3), second(0.1, 2.8), 0.1/3 + 0.1/3.2, 2 * 0.1 / 0.2},
		"one does nothing":       {second(1, 3), second(0, 0), 1.0 / 3, 1.0 / 3},
		"both wait all the time": {second(0.1, 5.9), second(0.1, 5.9), 2, 2},
	} {
		least, most := Threads{1: tc.a, 2: tc.b}.Demand(Threads{3: second(5, 5)}, 6*time.Second)
		must.InDelta(t, tc.least, least, 1e-9, must.Sprint(name))
		must.InDelta(t, tc.most, most, 1e-9, must.Sprint(name))
	}
}
