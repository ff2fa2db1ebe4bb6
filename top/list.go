// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package top

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
)

// Query selects and orders tasks.
type Query struct {
	Sort      string // one of Sorts
	Reverse   bool
	Filter    string // words, as for matches
	Namespace string // "" or "*" = all
}

type order struct {
	name string
	by   func(a, b Task) int
}

// orders lists the sort orders. The items that need attention come first: the highest use, the task
// furthest behind its twin.
func orders() []order {
	return []order{
		{"job", byName},
		{"node", func(a, b Task) int { return cmp.Compare(a.Node, b.Node) }},
		{"state", func(a, b Task) int { return cmp.Compare(stateRank(a), stateRank(b)) }},
		{"end", func(a, b Task) int { return earlier(end(a), end(b)) }},
		{"gap", func(a, b Task) int { return -smaller(a.Gap(), b.Gap()) }},
		{"step", func(a, b Task) int { return -smaller(part(a), part(b)) }},
		{"cpu", func(a, b Task) int { return -smaller(use(a), use(b)) }},
		{"limit", func(a, b Task) int { return -smaller(limit(a), limit(b)) }},
		{"started", func(a, b Task) int { return -earlier(a.Started, b.Started) }},
	}
}

func Sorts() []string {
	var names []string
	for _, o := range orders() {
		names = append(names, o.name)
	}
	return names
}

func Select(tasks []Task, q Query) []Task {
	words := strings.Fields(strings.ToLower(q.Filter))
	var out []Task
	for _, t := range tasks {
		if (q.Namespace == "" || q.Namespace == "*" || q.Namespace == t.Namespace) && matches(t, words) {
			out = append(out, t)
		}
	}
	by := byName
	for _, o := range orders() {
		if o.name == q.Sort {
			by = o.by
		}
	}
	slices.SortStableFunc(out, func(a, b Task) int {
		c := by(a, b)
		if q.Reverse {
			c = -c
		}
		return cmp.Or(c, byName(a, b))
	})
	return out
}

// matches reports whether each lower-case word occurs in one of the task's names or states.
func matches(t Task, words []string) bool {
	has := []string{t.Namespace, t.Job, t.Group, t.Task, t.Alloc, t.Node}
	if s := t.Status; s != nil {
		has = append(has, s.Metric, s.Rule, s.Category, s.Class, s.Kind)
		if s.GPU != nil {
			has = append(has, string(s.GPU.State))
		}
	}
	has = append(has, t.State())
	for i := range has {
		has[i] = strings.ToLower(has[i])
	}
	for _, w := range words {
		if !slices.ContainsFunc(has, func(text string) bool { return strings.Contains(text, w) }) {
			return false
		}
	}
	return true
}

func byName(a, b Task) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Group, b.Group),
		cmp.Compare(a.Task, b.Task), cmp.Compare(a.Alloc, b.Alloc))
}

// State returns one word for a task: a cause of delay takes precedence over its category.
func (t Task) State() string {
	s := t.Status
	switch {
	case t.Stale:
		return "stale"
	case s == nil:
		return "-"
	case s.Fair.Late:
		return "late"
	case s.Move.State == status.MoveSaving, s.Move.State == status.MoveReady, s.Move.State == status.MoveFrozen:
		return "move"
	case s.GPU != nil && s.GPU.State != "running" && s.GPU.State != "":
		return string(s.GPU.State)
	}
	return cmp.Or(s.Category, s.Class, "-")
}

// stateRank orders states by the attention they need.
func stateRank(t Task) int {
	known := []string{"stale", "late", "lost", "parked", "yielding", "waiting", "move", "B", "NL", "WL", "CL", "S", "G"}
	if i := slices.Index(known, t.State()); i >= 0 {
		return i
	}
	return len(known)
}

func end(t Task) time.Time {
	if t.Status == nil {
		return time.Time{}
	}
	return t.Status.Fair.Finish
}

// Gap returns by how many seconds a task finishes later than its twin; NaN if unknown.
func (t Task) Gap() float64 {
	if t.Status == nil || t.Status.Fair.Finish.IsZero() || t.Status.Fair.FairFinish.IsZero() {
		return math.NaN()
	}
	return t.Status.Fair.Finish.Sub(t.Status.Fair.FairFinish).Seconds()
}

// part returns the fraction of steps done; NaN if unknown.
func part(t Task) float64 {
	if t.Status == nil || t.Status.Total <= 0 {
		return math.NaN()
	}
	return float64(t.Status.Step / t.Status.Total)
}

func use(t Task) float64 {
	if t.Status == nil {
		return math.NaN()
	}
	return float64(t.Status.Use)
}

func limit(t Task) float64 {
	if t.Status == nil {
		return math.NaN()
	}
	return float64(t.Status.Limit.Fraction)
}

// smaller orders unknown numbers first.
func smaller(a, b float64) int { return cmp.Compare(a, b) }

// earlier orders unknown times last.
func earlier(a, b time.Time) int {
	switch {
	case a.IsZero() && b.IsZero():
		return 0
	case a.IsZero():
		return 1
	case b.IsZero():
		return -1
	}
	return a.Compare(b)
}
