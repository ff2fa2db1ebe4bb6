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

// Minimum time between scans of all jobs for those without a reason, and per job: a scan costs some
// 3 µs of CPU per job.
const (
	scanInterval = 10 * time.Second
	scanPerJob   = 2 * time.Millisecond
)

// reason is why a job is not moved or placed, the latest per job.
type reason struct {
	text   string // at most maxReasonLen bytes
	alloc  string // the reason ends with it; "" if with the job's version
	index  uint64 // of the job
	failed bool   // the error of an attempt; without alloc it is kept
}

// reasons keeps the latest reason of each job.
type reasons struct {
	cluster view
	out     hclog.Logger
	latest  map[cluster.JobKey]reason
	scan    schedule // of the jobs without a reason
}

// explain logs the reason for a decision about a job unless it is unchanged, and reports whether it
// is new.
func (r *reasons) explain(key cluster.JobKey, what string) bool {
	return r.set(hclog.Info, key, reason{text: what})
}

// explainSkip logs why an allocation is not moved now, and reports whether the reason is new.
func (r *reasons) explainSkip(a *cluster.Alloc, why string) bool { return r.skip(hclog.Info, a, why) }

// skip keeps the error of an attempt, which tells more than the back-off after it.
func (r *reasons) skip(level hclog.Level, a *cluster.Alloc, why string) bool {
	if was := r.latest[a.Job]; was.failed && (was.alloc == "" || was.alloc == a.ID) {
		return false
	}
	return r.set(level, a.Job, reason{text: "not moved now: " + why, alloc: a.ID})
}

// explainStay records why no move of an allocation is useful.
func (r *reasons) explainStay(a *cluster.Alloc, why string) {
	if !r.cluster.busy[a.Job] {
		r.set(hclog.Debug, a.Job, reason{text: "not moved: " + why, alloc: a.ID})
	}
}

// explainFailure records the error of an attempt.
func (r *reasons) explainFailure(f transfer, what string) {
	is := reason{text: "not moved: " + what, alloc: f.alloc.ID, failed: true}
	if f.result.NewAlloc != "" {
		is.alloc = "" // it may have been replaced
	}
	r.set(hclog.Debug, f.alloc.Job, is)
}

func (r *reasons) set(level hclog.Level, key cluster.JobKey, is reason) bool {
	what := is.text
	is.text = strings.ToValidUTF8(what[:min(len(what), maxReasonLen)], "")
	if j := r.cluster.state.Jobs[key]; j != nil && is.alloc == "" {
		is.index = j.Index
	}
	was := r.latest[key]
	r.latest[key] = is
	if was.text == is.text {
		return false
	}
	r.out.Log(level, what, "job", key.ID, "namespace", key.Namespace)
	return true
}

// forgetReasons drops the reasons of jobs that are over, have changed or have moved.
func (r *reasons) forgetReasons(keys []cluster.JobKey) {
	for _, key := range keys {
		is, j := r.latest[key], r.cluster.state.Jobs[key]
		if j == nil || j.Stopped || j.Dead || is.alloc != "" && r.cluster.state.Allocs[is.alloc] == nil || is.alloc == "" && !is.failed && j.Index != is.index {
			delete(r.latest, key)
		}
	}
}

// explainJobs explains the jobs that no policy proposes to move.
func (r *reasons) explainJobs(c config.Config, keys []cluster.JobKey) {
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
		j := r.cluster.state.Jobs[key]
		if j == nil || len(j.Migrates) == 0 || j.Stopped || j.Dead || j.Held || r.cluster.busy[key] || r.cluster.unreadable[key] {
			continue
		}
		why := immovable(j)
		if why == "" && !slices.ContainsFunc(j.Migrates, enabled) {
			why = "no policy that may move it is enabled"
		}
		if _, explained := r.latest[key]; why == "" && !explained {
			why = "no policy proposes it"
		}
		if why != "" {
			r.set(hclog.Debug, key, reason{text: "not moved: " + why})
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
