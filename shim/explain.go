// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/policies"
)

// explainEvery is the time between scans of all jobs for those without a reason.
const explainEvery = 10 * time.Second

// reason is why a job is not moved or placed, the latest per job.
type reason struct {
	text   string // at most maxReasonLen bytes
	alloc  string // the reason ends with it; "" if with the job's version
	index  uint64 // of the job
	failed bool   // the error of an attempt; without alloc it is kept
}

// explain logs the reason for a decision about a job unless it is unchanged, and reports whether it
// is new.
func (t *term) explain(key cluster.JobKey, what string) bool {
	return t.setReason(hclog.Info, key, reason{text: what})
}

// explainSkip logs why an allocation is not moved now, and reports whether the reason is new.
func (t *term) explainSkip(a *cluster.Alloc, why string) bool { return t.skip(hclog.Info, a, why) }

// skip keeps the error of an attempt, which tells more than the back-off after it.
func (t *term) skip(level hclog.Level, a *cluster.Alloc, why string) bool {
	if r := t.reasons[a.Job]; r.failed && (r.alloc == "" || r.alloc == a.ID) {
		return false
	}
	return t.setReason(level, a.Job, reason{text: "not moved now: " + why, alloc: a.ID})
}

// explainStay records why no move of an allocation is useful.
func (t *term) explainStay(a *cluster.Alloc, why string) {
	if !t.busy[a.Job] {
		t.setReason(hclog.Debug, a.Job, reason{text: "not moved: " + why, alloc: a.ID})
	}
}

// explainFailure records the error of an attempt.
func (t *term) explainFailure(f transfer, what string) {
	r := reason{text: "not moved: " + what, alloc: f.alloc.ID, failed: true}
	if f.result.NewAlloc != "" {
		r.alloc = "" // it may have been replaced
	}
	t.setReason(hclog.Debug, f.alloc.Job, r)
}

func (t *term) setReason(level hclog.Level, key cluster.JobKey, r reason) bool {
	what := r.text
	r.text = strings.ToValidUTF8(what[:min(len(what), maxReasonLen)], "")
	if j := t.state.Jobs[key]; j != nil && r.alloc == "" {
		r.index = j.Index
	}
	was := t.reasons[key]
	t.reasons[key] = r
	if was.text == r.text {
		return false
	}
	t.log.Log(level, what, "job", key.ID, "namespace", key.Namespace)
	return true
}

// forgetReasons drops the reasons of jobs that are over, have changed or have moved.
func (t *term) forgetReasons(over func(cluster.JobKey) bool) {
	maps.DeleteFunc(t.reasons, func(key cluster.JobKey, r reason) bool {
		switch {
		case over(key) || t.state.Jobs[key].Dead:
			return true
		case r.alloc != "":
			return t.state.Allocs[r.alloc] == nil
		case r.failed:
			return false
		}
		return t.state.Jobs[key].Index != r.index
	})
}

// explainJobs explains the jobs that no policy proposes to move.
func (t *term) explainJobs(c config.Config, keys []cluster.JobKey) {
	enabled := func(name string) bool {
		switch name {
		case policies.Relocate:
			return c.Relocation.Enabled
		case policies.FlowConPlace:
			return c.Placement.Enabled
		case policies.SpeConMigrate:
			return c.Migration.Enabled
		}
		return c.Rebalance.Enabled
	}
	for _, key := range keys {
		j := t.state.Jobs[key]
		if j == nil || len(j.Migrates) == 0 || j.Stopped || j.Dead || isHeld(j) || t.busy[key] {
			continue
		}
		why := immovable(j)
		if why == "" && !slices.ContainsFunc(j.Migrates, enabled) {
			why = "no policy that may move it is enabled"
		}
		if _, explained := t.reasons[key]; why == "" && !explained {
			why = "no policy proposes it"
		}
		if why != "" {
			t.setReason(hclog.Debug, key, reason{text: "not moved: " + why})
		}
	}
}

// immovable returns why no group of the job can be moved, "" if one can.
func immovable(j *cluster.Job) (why string) {
	if j.Template || j.Child {
		return "it is periodic or parameterized, or started by such a job"
	}
	for _, g := range j.Groups {
		if g.Movable && g.Count == 1 {
			return ""
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.Groups)) {
		if g := j.Groups[name]; !g.Movable {
			return fmt.Sprintf("group %s has a task without a checkpoint block", name)
		}
		why = fmt.Sprintf("group %s has count %d, not 1", name, j.Groups[name].Count)
	}
	return why
}
