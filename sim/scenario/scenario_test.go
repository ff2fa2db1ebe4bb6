// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package scenario

import (
	"testing"

	"github.com/shoenig/test/must"
)

const node = "node \"a\" { cores = 2 }\n"
const jobs = "workload \"generated\" { jobs = 3 }\n"

func TestParse(t *testing.T) {
	s, err := Parse("some/where/ten.hcl", []byte(node+`node "b" {
  count = 3
  cores = 8
}
`+jobs+"workload \"papers\" {\n jobs = 2\n sigma = 0\n noise = 0\n}\nservice \"api\" {\n objective_s = 1\n batch_cpu_s = 2\n for_s = 3\n count = 2\n}\n"), Changes{})
	must.NoError(t, err)
	must.Eq(t, "ten", s.Name)
	must.Eq(t, Estimated, s.Sizes)
	must.Eq(t, 5, s.IntervalS)
	must.Eq(t, 300, s.MaxS)
	must.Eq(t, 1, s.Nodes[0].Count)
	must.Eq(t, 26, s.PoolCores())
	must.Eq(t, 1, *s.Workloads[0].Sigma)
	must.Eq(t, 0, *s.Workloads[1].Sigma)
	must.Eq(t, 0, *s.Workloads[1].Noise)

	all, err := s.Jobs(nil, 7)
	must.NoError(t, err)
	must.Len(t, 7, all)
	ids := make(map[string]bool)
	for i, j := range all {
		must.False(t, ids[j.ID], must.Sprint(j.ID))
		ids[j.ID] = true
		must.True(t, i == 0 || all[i-1].ArriveS <= j.ArriveS)
	}
	must.True(t, ids["api-1"])
}

func TestParse_errors(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"nothing", "", "node: must be there once at least: a node has a name and cores\nworkload: must be there once at least, or a service"},
		{"syntax", "node {", "test.hcl:1: "},
		{"unknown field", node + jobs + "speed = 3\n", "speed: is unknown (line 3), must be one of contention, data, failures, "},
		{"unknown field of a block", node + "workload \"generated\" {\n jobs = 3\n size = 2\n}\n", "workload generated.size: is unknown (line 4), must be one of arrive_s, asks, cap_cores, jobs, list, "},
		{"unknown block", node + jobs + "gpu \"a\" {}\n", "gpu: is unknown (line 3)"},
		{"no cores", "node \"a\" {}\n" + jobs, "test.hcl:1: Missing required argument"},
		{"a word", "node \"a\" { cores = \"many\" }\n" + jobs, "test.hcl:1: Unsuitable value type"},
		{"zero capacity", "node \"a\" { cores = 0 }\n" + jobs, "node a.cores: must be > 0, got 0"},
		{"negative count", "node \"a\" {\n cores = 1\n count = -1\n}\n" + jobs, "node a.count: must be from 1 to 1000000, got -1"},
		{"twice", node + node + jobs, "node a: is duplicated"},
		{"zero jobs", node + "workload \"generated\" { jobs = 0 }\n", "workload generated.jobs: must be from 1 to 1000000, got 0"},
		{"source", node + "workload \"guess\" { jobs = 1 }\n", `workload guess: must be one of generated, adaptdl, alibaba, papers, got "guess"`},
		{"sizes", node + jobs + "sizes = \"big\"\n", `sizes: must be one of exact, estimated, unknown, got "big"`},
		{"mode", node + jobs + "mode = \"none\"\n", `mode: must be one of weight, quota, got "none"`},
		{"placement", node + jobs + "placement = \"left-hand\"\n", "placement: must be one of spread, binpack, alg4, relocate"},
		{"interval", node + jobs + "interval_s = -5\n", "interval_s: must be > 0, got -5"},
		{"max interval", node + jobs + "max_interval_s = 4\n", "max_interval_s: must be ≥ interval_s = 5, got 4"},
		{"contention", node + jobs + "contention = -1\n", "contention: must be ≥ 0, got -1"},
		{"arrivals", node + "workload \"generated\" {\n jobs = 3\n arrive_s = [1]\n}\n", "workload generated.arrive_s: must have a moment for each of 3 jobs, got 1"},
		{"an arrival", node + "workload \"generated\" {\n jobs = 1\n arrive_s = [-1]\n}\n", "workload generated.arrive_s[0]: must be ≥ 0, got -1"},
		{"a cap", node + "workload \"generated\" {\n jobs = 1\n cap_cores = [0]\n}\n", "workload generated.cap_cores[0]: must be > 0, got 0"},
		{"a total", node + "workload \"generated\" {\n jobs = 1\n totals = [1, 0]\n}\n", "workload generated.totals[1]: must be > 0, got 0"},
		{"sigma", node + "workload \"generated\" {\n jobs = 1\n sigma = 9\n}\n", "workload generated.sigma: must be ≤ 4, got 9"},
		{"list", node + "workload \"adaptdl\" {\n jobs = 1\n list = 5\n}\n", "workload adaptdl.list: must be from 1 to 4, or 0 for one by the seed, got 5"},
		{"service", node + "service \"a\" {\n objective_s = 0\n batch_cpu_s = 1\n for_s = 1\n}\n", "service a.objective_s: must be > 0, got 0"},
		{"failures", node + jobs + "failures {\n every_s = 0\n repair_s = 1\n}\n", "failures.every_s: must be > 0, got 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("test.hcl", []byte(tc.text), Changes{})
			must.ErrorContains(t, err, tc.want)
		})
	}
}
