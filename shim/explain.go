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

// skipped is why an allocation is not moved now.
func skipped(a *cluster.Alloc, why string) reason {
	return reason{text: "not moved now: " + why, alloc: a.ID}
}

// explain logs the reason for a decision about a job unless it is unchanged, and reports whether it
// is new.
func (x *executor) explain(key cluster.JobKey, what string) bool {
	r := reason{text: what}
	if state, _ := x.cluster.Snapshot(); state.Job(key) != nil {
		r.index = state.Job(key).Index
	}
	return x.note(note{key: key, level: hclog.Info, reason: r})
}

// explainSkip logs why an allocation is not moved now, and reports whether the reason is new.
func (x *executor) explainSkip(a *cluster.Alloc, why string) bool {
	return x.note(note{key: a.Job, level: hclog.Info, reason: skipped(a, why), weak: true})
}

// explainFailure records the error of an attempt, whose new allocation may have been replaced.
func (x *executor) explainFailure(a *cluster.Alloc, newAlloc, what string) {
	r := reason{text: "not moved: " + what, failed: true}
	if newAlloc == "" {
		r.alloc = a.ID
	}
	x.note(note{key: a.Job, level: hclog.Debug, reason: r})
}

// note keeps the reason and logs it, if it is new.
func (x *executor) note(n note) bool {
	was, explained := x.latest[n.key]
	if n.weak && was.failed && (was.alloc == "" || was.alloc == n.alloc) || n.first && explained {
		return false
	}
	what := n.text
	n.text = strings.ToValidUTF8(what[:min(len(what), maxReasonLen)], "")
	x.latest[n.key] = n.reason
	if was.text == n.text {
		return false
	}
	x.log.Log(n.level, what, "job", n.key.ID, "namespace", n.key.Namespace)
	return true
}

// outdated returns the reasons of jobs that are over, have changed or have moved.
func (s *snapshot) outdated() map[cluster.JobKey]reason {
	out := make(map[cluster.JobKey]reason)
	for key, is := range s.explained {
		j := s.Job(key)
		if j == nil || j.Stopped || j.Dead || is.alloc != "" && s.Alloc(is.alloc) == nil || is.alloc == "" && !is.failed && j.Index != is.index {
			out[key] = is
		}
	}
	return out
}

// unmoved explains the jobs that no policy proposes to move.
func (s *snapshot) unmoved() (p plan) {
	enabled := map[string]bool{
		policies.Relocate: s.config.Relocation.Enabled, policies.FlowConPlace: s.config.Placement.Enabled,
		policies.SpeConMigrate: s.config.Migration.Enabled, policies.SpeConRebalance: s.config.Rebalance.Enabled,
	}
	for j := range s.Jobs() {
		if len(j.Migrates) == 0 || j.Stopped || j.Dead || j.Held || s.busy[j.Key] || s.unreadable[j.Key] {
			continue
		}
		n := note{key: j.Key, level: hclog.Debug, reason: reason{index: j.Index}}
		why := immovable(j)
		if why == "" && !slices.ContainsFunc(j.Migrates, func(name string) bool { return enabled[name] }) {
			why = "no policy that may move it is enabled"
		}
		if why == "" {
			why, n.first = "no policy proposes it", true
		}
		n.text = "not moved: " + why
		p.note(n)
	}
	return p
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
