// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fsp

import (
	"fmt"
	"math"
	"strings"

	"github.com/ebbtide/ebbtide/driver/policy"
)

func why(t policy.Task, d policy.Decision, s policy.Snapshot, p Prefer) string {
	var w strings.Builder
	switch d.Rule {
	case RulePreferred:
		fmt.Fprintf(&w, "preferred: %s", needs(t, p))
	case RuleGuard:
		w.WriteString("served so that no task ends later than with its fair share")
	case RuleWait:
		fmt.Fprintf(&w, "waits with its floor: %s", needs(t, p))
	case RuleSpare:
		fmt.Fprintf(&w, "uses CPU that preferred tasks cannot use: %s", needs(t, p))
	case RuleLate:
		fmt.Fprintf(&w, "late: its twin has ended, %.4g CPU-seconds remaining", *t.RemainingCPUS)
	case RuleUnknown:
		w.WriteString("size unknown: runs at its fair share")
	case RuleGhost:
		w.WriteString("has ended")
	}
	switch ahead := float64(t.CPUS - t.FairCPUS); {
	case ahead == 0:
		w.WriteString("; level with its fair share")
	case ahead > 0:
		fmt.Fprintf(&w, "; ahead of its fair share by %.4g CPU-seconds", ahead)
	default:
		fmt.Fprintf(&w, "; behind its fair share by %.4g CPU-seconds", -ahead)
	}
	if d.FinishS != nil {
		fmt.Fprintf(&w, "; expected to end in %s", in(*d.FinishS-s.NowS))
	}
	if d.FairFinishS != nil {
		fmt.Fprintf(&w, "; with its fair share it would in %s", in(*d.FairFinishS-s.NowS))
	}
	if d.Limit != nil {
		fmt.Fprintf(&w, "; %.4g of %.4g cores, fair share %.4g", *d.Limit*policy.Share(s.PoolCores), s.PoolCores, d.FairRateCores)
	}
	return w.String()
}

func needs(t policy.Task, p Prefer) string {
	twin := t.CPUS + *t.RemainingCPUS - t.FairCPUS
	if first := toFirst(t); p == Balanced && first > 0 && first <= float64(twin) && (t.QualityCPUS == nil || *t.QualityCPUS == 0 || first <= float64(*t.QualityCPUS)) {
		return fmt.Sprintf("%.4g CPU-seconds to its first results, an eighth of its work", first)
	}
	if p != Completion && t.QualityCPUS != nil && *t.QualityCPUS > 0 && (p == Quality || *t.QualityCPUS <= twin) {
		return fmt.Sprintf("%.4g CPU-seconds to its quality point", *t.QualityCPUS)
	}
	return fmt.Sprintf("its twin has %.4g CPU-seconds remaining", twin)
}

func in(seconds float64) string { return fmt.Sprintf("%.0f s", math.Ceil(seconds)) }

func whyService(t policy.Task) string {
	return fmt.Sprintf("a service, exempt from fair finish; use %.4g, limit %.4g", t.Use, t.Bound())
}
