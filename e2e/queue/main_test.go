// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestSample(t *testing.T) {
	o := options{nodes: 2, places: 2, jobs: 2000, median: 10 * time.Second, work: 0.5}
	all := o.sample(1)
	must.Eq(t, all, o.sample(1))
	work := 0.0
	for i, j := range all {
		work += j.LengthS
		must.Eq(t, j.LengthS, j.GuessS)
		must.True(t, i == 0 || j.At >= all[i-1].At)
	}
	must.Between(t, 0.45, work/(4*all[len(all)-1].At), 0.55) // the load
}

func TestReport(t *testing.T) {
	long, short := job{ID: "long", LengthS: 60, At: 0, Started: 0, Ended: 60}, job{ID: "short", LengthS: 10, At: 10, Started: 60.4, Ended: 70}
	late, soon := job{ID: "long", Started: 0, Ended: 72, Suspends: 1}, job{ID: "short", At: 10, Started: 11, Ended: 21}
	var out bytes.Buffer
	must.NoError(t, report(&out, []pair{{Seed: 7, Plain: []job{long, short}, Queue: []job{late, soon}}}))
	must.StrContains(t, out.String(), "short   10 s       10 s    50 s           60 s        1 s            11 s        0\n")
	must.StrContains(t, out.String(), "7                   -31 %                 -98 %      +3 %      × 1.20     50 %    0.50                 0.4 s            -\n")

	out.Reset()
	same := []job{long, short}
	must.NoError(t, report(&out, []pair{{Seed: 7, Plain: same, Queue: []job{late, soon}}, {Seed: 8, Plain: same, Queue: same}}))
	must.StrContains(t, out.String(), "all                 -15 %                 -49 %      +1 %      × 1.20     25 %    0.25                 0.4 s            0.4 s\n")
}

// A measurement goes on where it was interrupted, unless its options have changed.
func TestLoad(t *testing.T) {
	o := options{nodes: 4, places: 1, jobs: 16, median: 12 * time.Second, work: 0.9, out: filepath.Join(t.TempDir(), "q.json"), resume: true}
	done := o.load()
	must.SliceEmpty(t, done.Pairs)
	done.Pairs = []pair{{Seed: 3}}
	data, err := json.Marshal(done)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(o.out, data, 0o644))
	must.Len(t, 1, o.load().Pairs)
	again, other := o, o
	again.resume, other.jobs = false, 8
	must.SliceEmpty(t, again.load().Pairs)
	must.SliceEmpty(t, other.load().Pairs)
}
