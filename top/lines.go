// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/shim/store"
)

type Tab int

// Tabs, in the order of the user interface.
const (
	Tasks Tab = iota
	Nodes
	GPUs
	Moves
	Queue
	Owners
)

func Tabs() []string { return []string{"Tasks", "Nodes", "GPUs", "Moves", "Queue", "Owners"} }

// Table renders a table. The query selects tasks, the seats and moves of their jobs, and jobs of the
// queue, but not nodes and owners.
func (v *View) Table(tab Tab, q Query, l Layout) Table {
	switch tab {
	case Nodes:
		return v.nodes(l)
	case GPUs:
		return v.cards(q, l)
	case Moves:
		return v.moving(q, l)
	case Queue:
		return v.queue(q, l)
	case Owners:
		return v.owners(l)
	}
	return v.tasks(Select(v.Tasks, q), l)
}

func (v *View) tasks(tasks []Task, l Layout) Table {
	known := func(cell func(*status.Status) string) func(Task) string {
		return func(t Task) string {
			if t.Status == nil {
				return "-"
			}
			return cell(t.Status)
		}
	}
	columns := []column[Task]{
		{title: "JOB", rank: 100, least: 11, most: 32, cell: func(t Task) string { return t.Job }},
		{title: "TASK", rank: 8, least: 4, most: 16, cell: func(t Task) string { return t.Task }},
		{title: "NODE", rank: 10, least: 4, most: 20, cell: func(t Task) string { return t.Node }},
		{title: "NAMESPACE", rank: 6, least: 9, most: 16, cell: func(t Task) string { return t.Namespace }},
		{title: "STATE", rank: 90, least: 6, most: 7, cell: Task.State},
		{title: "METRIC", rank: 85, least: 11, most: 24, cell: known(value)},
		{title: "CURVE", rank: 40, least: 6, most: 16, cell: func(t Task) string { return strings.Repeat("-", min(len(t.Values), 16)) },
			draw: func(t Task, width int) string { return l.spark(t.Values, width) }},
		{title: "STEP", right: true, rank: 70, least: 9, most: 13, cell: known(steps)},
		{title: "END", right: true, rank: 60, least: 5, most: 6, cell: known(func(s *status.Status) string { return until(s.Fair.Finish, v.Time) })},
		{title: "FAIR", right: true, rank: 55, least: 5, most: 7, cell: func(t Task) string { return distance(t) }},
		{title: "CPU/LIM%", right: true, rank: 65, least: 8, most: 8, cell: known(func(s *status.Status) string {
			return strings.TrimSuffix(percent(s.Use), "%") + "/" + strings.TrimSuffix(percent(s.Limit.Fraction), "%")
		})},
		{title: "RULE", rank: 50, least: 9, most: 24, cell: known(func(s *status.Status) string { return cmp.Or(s.Rule, "-") })},
		{title: "AGE", right: true, rank: 5, least: 3, most: 6, cell: known(func(s *status.Status) string { return age(s.Updated, v.Time) })},
	}
	return tabulate(l, columns, tasks, func(t Task) Line {
		return Line{Task: t.Key(), Alert: t.Late() || t.Stale, Faint: t.Stale}
	})
}

// value renders a task's current metric, or a service's response time.
func value(s *status.Status) string {
	if s.Kind == "service" {
		if !s.Target.Response.Known() {
			return "response -"
		}
		return fmt.Sprintf("%s/%ss", number(s.Target.Response), number(s.Target.QoE))
	}
	switch {
	case s.Metric == "" && !s.Value.Known():
		return "-"
	case s.Diverged:
		return cmp.Or(s.Metric, "?") + " diverged"
	}
	// The value matters more than the metric's full name.
	name, text := cmp.Or(s.Metric, "?"), number(s.Value)
	if runes := []rune(name); len(runes) > 16 {
		name = string(runes[:15]) + "…"
	}
	return text + " " + name
}

func until(t, now time.Time) string {
	switch {
	case t.IsZero():
		return "-"
	case t.Before(now):
		return "now"
	}
	return span(t.Sub(now))
}

// distance renders how much later (+) or sooner (-) than its twin a task finishes.
func distance(t Task) string {
	d := t.Gap()
	if math.IsNaN(d) || math.Abs(d) > 1e9 {
		return "-"
	}
	text := span(time.Duration(d * float64(time.Second)))
	if d >= 1 {
		text = "+" + text
	}
	return text
}

func age(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return span(max(0, now.Sub(t)))
}

func (v *View) nodes(l Layout) Table {
	columns := []column[Node]{
		{title: "NODE", rank: 100, least: 8, most: 32, cell: func(n Node) string { return cmp.Or(n.Name, n.ID) }},
		{title: "STATE", rank: 90, least: 5, most: 12, cell: func(n Node) string {
			if n.Stale && n.State == "ready" {
				return "stale"
			}
			return n.State
		}},
		{title: "POOL", right: true, rank: 80, least: 4, most: 8, cell: func(n Node) string { return number(n.PoolCores) }},
		{title: "USE", right: true, rank: 85, least: 4, most: 5, cell: func(n Node) string { return percent(n.Use) }},
		{title: "TASKS", right: true, rank: 70, least: 5, most: 6, cell: func(n Node) string { return fmt.Sprint(n.Tasks) }},
		{title: "NL/WL/CL", right: true, rank: 60, least: 8, most: 12, cell: func(n Node) string { return counts(n.Categories, "NL", "WL", "CL") }},
		{title: "G/S/B", right: true, rank: 30, least: 5, most: 9, cell: func(n Node) string { return counts(n.Classes, "G", "S", "B") }},
		{title: "SAVED", right: true, rank: 75, least: 6, most: 8, cell: func(n Node) string { return seconds(n.SavedS) }},
		{title: "LEFT", right: true, rank: 55, least: 5, most: 8, cell: func(n Node) string { return seconds(left(n)) }},
		{title: "POLICY", rank: 50, least: 4, most: 8, cell: func(n Node) string { return cmp.Or(n.Policy, "-") }},
		{title: "ENGINE", rank: 40, least: 6, most: 8, cell: func(n Node) string { return cmp.Or(n.Engine, "-") }},
		{title: "DATACENTER", rank: 20, least: 10, most: 16, cell: func(n Node) string { return n.Datacenter }},
		{title: "AGE", right: true, rank: 35, least: 3, most: 6, cell: func(n Node) string { return age(n.Updated, v.Time) }},
	}
	return tabulate(l, columns, v.Nodes, func(n Node) Line { return Line{Alert: n.Stale, Faint: n.Stale} })
}

// left returns the time the whole pool needs for the known remaining work, in seconds.
func left(n Node) status.Number {
	if !(n.PoolCores > 0) {
		return status.Unknown()
	}
	return n.RemainingCPUS / n.PoolCores
}

func counts(of map[string]int, names ...string) string {
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprint(of[name]))
	}
	return strings.Join(all, "/")
}

type seatRow struct {
	card GPU
	seat *Seat
}

func (v *View) cards(q Query, l Layout) Table {
	chosen := make(map[Key]bool)
	for _, t := range Select(v.Tasks, q) {
		chosen[t.Key()] = true
	}
	var rows []seatRow
	for _, g := range v.GPUs {
		var seats []seatRow
		for i := range g.Seats {
			if s := &g.Seats[i]; chosen[Key{s.Alloc, s.Task}] {
				seats = append(seats, seatRow{g, s})
			}
		}
		if len(seats) > 0 {
			rows = append(append(rows, seatRow{card: g}), seats...)
		}
	}
	mib := func(card func(GPU) uint64, seat func(*Seat) uint64) func(seatRow) string {
		return func(r seatRow) string {
			n := card(r.card)
			if r.seat != nil {
				n = seat(r.seat)
			}
			return fmt.Sprint(n)
		}
	}
	columns := []column[seatRow]{
		{title: "CARD, JOB", rank: 100, least: 16, most: 44, cell: func(r seatRow) string {
			if r.seat == nil {
				return fmt.Sprintf("%s %s", cmp.Or(r.card.Model, "GPU"), r.card.UUID)
			}
			return "  " + r.seat.Job
		}},
		{title: "NODE", rank: 20, least: 6, most: 20, cell: func(r seatRow) string { return r.card.Node }},
		{title: "STATE", rank: 90, least: 7, most: 7, cell: func(r seatRow) string {
			if r.seat == nil {
				return ""
			}
			return string(r.seat.State)
		}},
		{title: "HELD", right: true, rank: 80, least: 6, most: 8, cell: mib(func(g GPU) uint64 { return g.HeldMiB }, func(s *Seat) uint64 { return s.HeldMiB })},
		{title: "SHARE", right: true, rank: 70, least: 6, most: 8, cell: mib(func(g GPU) uint64 { return g.MemoryMiB }, func(s *Seat) uint64 { return s.ShareMiB })},
		{title: "USED", right: true, rank: 60, least: 6, most: 8, cell: mib(func(g GPU) uint64 { return g.UsedMiB }, func(s *Seat) uint64 { return s.UsedMiB })},
		{title: "PARKED", right: true, rank: 65, least: 6, most: 8, cell: mib(func(g GPU) uint64 { return g.ParkedMiB }, func(s *Seat) uint64 { return s.ParkedMiB })},
		{title: "WAITING", right: true, rank: 50, least: 7, most: 8, cell: mib(func(g GPU) uint64 { return g.WaitingMiB }, func(s *Seat) uint64 { return s.WaitingMiB })},
		{title: "WHY", rank: 10, least: 20, most: 80, cell: func(r seatRow) string {
			if r.seat == nil {
				return ""
			}
			return r.seat.Why
		}},
	}
	return tabulate(l, columns, rows, func(r seatRow) Line {
		if r.seat == nil {
			return Line{}
		}
		return Line{Task: Key{r.seat.Alloc, r.seat.Task}, Alert: r.seat.State == "lost"}
	})
}

func (v *View) moving(q Query, l Layout) Table {
	words := strings.Fields(strings.ToLower(q.Filter))
	moves := slices.Clone(v.Moves)
	moves = slices.DeleteFunc(moves, func(m Move) bool {
		t := Task{Namespace: m.Namespace, Job: m.Job, Alloc: m.Alloc, Node: m.From + " " + m.To}
		return q.Namespace != "" && q.Namespace != "*" && q.Namespace != m.Namespace || !matches(t, words)
	})
	columns := []column[Move]{
		{title: "JOB", rank: 100, least: 12, most: 32, cell: func(m Move) string { return m.Job }},
		{title: "NAMESPACE", rank: 30, least: 9, most: 16, cell: func(m Move) string { return m.Namespace }},
		{title: "FROM", rank: 80, least: 8, most: 20, cell: func(m Move) string { return cmp.Or(m.From, "-") }},
		{title: "TO", rank: 85, least: 8, most: 20, cell: func(m Move) string { return cmp.Or(m.To, "-") }},
		{title: "PHASE", rank: 90, least: 7, most: 10, cell: func(m Move) string { return m.Phase }},
		{title: "UNTIL", right: true, rank: 60, least: 5, most: 6, cell: func(m Move) string { return until(m.Until, v.Time) }},
		{title: "OWNER", rank: 40, least: 10, most: 60, cell: func(m Move) string { return cmp.Or(m.Owner, "-") }},
		{title: "WHY", rank: 5, least: 10, most: 80, cell: func(m Move) string { return cmp.Or(m.Why, "-") }},
		{title: "MOVE", rank: 10, least: 8, most: 36, cell: func(m Move) string { return cmp.Or(m.ID, "-") }},
	}
	return tabulate(l, columns, moves, func(m Move) Line { return Line{Task: v.taskOf(m)} })
}

func (v *View) queue(q Query, l Layout) Table {
	words := strings.Fields(strings.ToLower(q.Filter))
	rows := slices.DeleteFunc(slices.Clone(v.Queue), func(j store.Queued) bool {
		t := Task{Namespace: j.Namespace, Job: j.Job, Node: j.Node}
		return q.Namespace != "" && q.Namespace != "*" && q.Namespace != j.Namespace || !matches(t, words)
	})
	columns := []column[store.Queued]{
		{title: "NO", right: true, rank: 95, least: 3, most: 4, cell: func(j store.Queued) string {
			if j.Node != "" {
				return "-"
			}
			return strconv.Itoa(j.Number)
		}},
		{title: "JOB", rank: 100, least: 12, most: 32, cell: func(j store.Queued) string { return j.Job }},
		{title: "NAMESPACE", rank: 30, least: 9, most: 16, cell: func(j store.Queued) string { return j.Namespace }},
		{title: "OWNER", rank: 40, least: 6, most: 16, cell: func(j store.Queued) string { return j.Owner }},
		{title: "PRIO", right: true, rank: 20, least: 4, most: 5, cell: func(j store.Queued) string { return cmp.Or(j.Order, strconv.Itoa(j.Priority)) }},
		{title: "NODE", rank: 70, least: 8, most: 20, cell: func(j store.Queued) string { return cmp.Or(j.Node, "-") }},
		{title: "START", right: true, rank: 80, least: 5, most: 6, cell: func(j store.Queued) string { return until(j.Start, v.Time) }},
		{title: "END", right: true, rank: 75, least: 5, most: 6, cell: func(j store.Queued) string { return until(j.End, v.Time) }},
		{title: "FAIR", right: true, rank: 60, least: 5, most: 6, cell: func(j store.Queued) string {
			if j.Late {
				return "late"
			}
			return until(j.FairEnd, v.Time)
		}},
		{title: "WHY", rank: 50, least: 10, most: 80, cell: func(j store.Queued) string { return j.Why }},
	}
	return tabulate(l, columns, rows, func(j store.Queued) Line {
		return Line{Task: v.taskOf(Move{Namespace: j.Namespace, Job: j.Job}), Alert: j.Late && j.Node == "" && j.Order != store.DoHold}
	})
}

func (v *View) owners(l Layout) Table {
	columns := []column[queue.OwnerShare]{
		{title: "OWNER", rank: 100, least: 12, most: 32, cell: func(o queue.OwnerShare) string { return o.Name }},
		{title: "WEIGHT", right: true, rank: 60, least: 6, most: 8, cell: func(o queue.OwnerShare) string { return number(status.Number(o.Weight)) }},
		{title: "USE", right: true, rank: 90, least: 4, most: 5, cell: func(o queue.OwnerShare) string { return percent(status.Number(o.Use)) }},
		{title: "SHARE", right: true, rank: 80, least: 5, most: 5, cell: func(o queue.OwnerShare) string { return percent(status.Number(o.Share)) }},
		{title: "RUN", right: true, rank: 50, least: 4, most: 6, cell: func(o queue.OwnerShare) string { return strconv.Itoa(o.Running) }},
		{title: "WAIT", right: true, rank: 70, least: 4, most: 6, cell: func(o queue.OwnerShare) string { return strconv.Itoa(o.Waiting) }},
	}
	return tabulate(l, columns, v.Owners, func(queue.OwnerShare) Line { return Line{} })
}

func (v *View) taskOf(m Move) Key {
	for _, t := range v.Tasks {
		if t.Namespace == m.Namespace && t.Job == m.Job && (m.Alloc == "" || m.Alloc == t.Alloc) {
			return t.Key()
		}
	}
	return Key{}
}

// Summary renders the cluster in one line.
func (v *View) Summary(l Layout) string {
	t := v.Totals()
	parts := []string{plural(t.Nodes, "node")}
	if t.StaleNodes > 0 {
		parts[0] += fmt.Sprintf(" (%d stale)", t.StaleNodes)
	}
	pool := number(t.Cores) + " cores"
	if t.Cores > 0 {
		pool += " " + percent(t.UsedCores/t.Cores) + " used"
	}
	tasks := plural(t.Tasks, "task")
	if v.Unread > 0 {
		tasks += fmt.Sprintf(" (%d to be read)", v.Unread)
	}
	for _, c := range []string{"NL", "WL", "CL"} {
		if t.Categories[c] > 0 {
			tasks += fmt.Sprintf(" %d %s", t.Categories[c], c)
		}
	}
	if t.Late > 0 {
		tasks += fmt.Sprintf(" %d late", t.Late)
	}
	parts = append(parts, pool, tasks)
	if t.SavedS != 0 {
		parts = append(parts, "saved "+seconds(t.SavedS))
	}
	if len(v.Moves) > 0 {
		parts = append(parts, plural(len(v.Moves), "move"))
	}
	return l.cut(strings.Join(parts, "  "), l.Width)
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// Empty explains an empty view; "" if there are nodes and tasks, or unread ones.
func (v *View) Empty() string {
	switch {
	case len(v.Nodes) == 0:
		return "No node has Ebbtide's driver. Run `ebbtide doctor` on a client to find out why."
	case len(v.Tasks) == 0 && v.Unread == 0:
		return "No task runs under Ebbtide. Tasks that are starting are not shown. Set a job's driver to ebbtide, and run `ebbtide doctor` on a client to check the driver."
	}
	return ""
}

const maxProblems = 5

// Problems lists why tasks are stale, each reason once.
func (v *View) Problems() []string {
	of := make(map[string]int)
	var reasons []string
	for _, t := range v.Tasks {
		if !t.Stale || t.Error == "" {
			continue
		}
		if of[t.Error]++; of[t.Error] == 1 {
			reasons = append(reasons, t.Error)
		}
	}
	var out []string
	for _, r := range reasons[:min(len(reasons), maxProblems)] {
		out = append(out, fmt.Sprintf("stale, %s: %s", plural(of[r], "task"), r))
	}
	if more := len(reasons) - len(out); more > 0 {
		out = append(out, fmt.Sprintf("and for %s more", plural(more, "reason")))
	}
	return out
}

// Detail renders everything about a task.
func (v *View) Detail(t *Task, history []status.Row, l Layout) []string {
	var out []string
	put := func(text string) {
		out = append(out, l.cut(Clean(text, l.ASCII), l.Width))
	}
	row := func(name, format string, args ...any) {
		lines := wrap(Clean(fmt.Sprintf(format, args...), l.ASCII), l.Width-11)
		for i, line := range lines {
			if i > 0 {
				name = ""
			}
			out = append(out, l.cut(fmt.Sprintf("%-10s %s", name, line), l.Width))
		}
	}
	put(fmt.Sprintf("%s/%s  task %s of group %s  %s", t.Namespace, t.Job, t.Task, t.Group, t.State()))
	row("Allocation", "%s on node %s, running for %s", t.Alloc, cmp.Or(t.Node, t.NodeID), age(t.Started, v.Time))
	if t.Error != "" {
		row("Stale", "%s", t.Error)
	}
	if s := t.Status; s != nil {
		v.facts(s, row)
		if chart := l.chart(history, l.Width, 8); chart != nil {
			out = append(out, "")
			out = append(out, chart...)
		}
	}
	if len(t.Events) > 0 {
		put("")
		put("Events, latest first:")
		for _, e := range slices.Backward(t.Events) {
			row("  "+e.Time.UTC().Format(time.TimeOnly), "%s: %s", e.Type, e.Message)
		}
	}
	return out
}

func (v *View) facts(s *status.Status, row func(name, format string, args ...any)) {
	row("Why", "%s (%s)", cmp.Or(s.Why, "not known"), cmp.Or(s.Rule, "-"))
	switch {
	case s.Kind == "service":
		row("Response", "%s s, target %s s; class %s for %s", number(s.Target.Response), number(s.Target.QoE), cmp.Or(s.Class, "-"), age(s.Since, v.Time))
	default:
		if s.Metric == "" && s.Step.Known() {
			row("Steps", "%s, no metric  %d reports", steps(s), s.Reports)
		} else {
			row("Metric", "%s = %s (%s)  step %s  %d reports", cmp.Or(s.Metric, "?"), number(s.Value), cmp.Or(s.Goal, "-"), steps(s), s.Reports)
		}
		row("Growth", "%s per second, category %s for %s", number(s.Growth), cmp.Or(s.Category, "-"), age(s.Since, v.Time))
		f := s.Fair
		if f.Finish.IsZero() {
			row("End", "not known")
		} else {
			row("End", "in %s; with its fair share in %s", until(f.Finish, v.Time), until(f.FairFinish, v.Time))
		}
		row("Left", "%s CPU-seconds, ahead of its fair share by %s (%s)", number(f.RemainingCPUS), number(f.AheadCPUS), cmp.Or(f.Why, "size not known"))
	}
	if s.Target.Acceptable.Known() || s.Target.Objective.Known() {
		row("Targets", "acceptable %s, objective %s: %s", number(s.Target.Acceptable), number(s.Target.Objective), s.Target.State)
	}
	row("CPU", "%s of a pool of %s cores, limit %s; %s CPU-seconds so far", percent(s.Use), number(s.Node.PoolCores), percent(s.Limit.Fraction), number(s.CPUSeconds))
	if s.Limit.Error != "" {
		row("Limit", "%s", s.Limit.Error)
	}
	if g := s.GPU; g != nil {
		row("GPU", "%s", joined(fmt.Sprintf("%s for %s", g.State, age(g.Since, v.Time)), g.Why))
		for _, c := range g.Cards {
			row("", "%s %s: holds %d of a share of %d MiB, uses %d, parked %d, waits for %d", c.Model, c.UUID, c.HeldMiB, c.ShareMiB, c.UsedMiB, c.ParkedMiB, c.WaitingMiB)
		}
	}
	if s.Turn != nil {
		row("GPU time", "%s", s.Turn.Why)
	}
	if s.Move.State != "" {
		row("Move", "%s", joined(s.Move.State, s.Move.Why))
	}
	row("Updated", "%s ago, driver %s, policy %s", age(s.Updated, v.Time), cmp.Or(s.Version, "-"), cmp.Or(s.Policy, "-"))
}

func joined(state, why string) string {
	if why == "" {
		return state
	}
	return state + ": " + why
}
