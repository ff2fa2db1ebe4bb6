// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package top

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/shim/store"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func training(change func(*status.Status)) *status.Status {
	u := status.Unknown()
	s := &status.Status{
		Kind: "training", Category: "NL", Since: now.Add(-time.Minute), Metric: "loss", Goal: "min", Value: 0.3125, Step: 1200, Total: 5000,
		Growth: 0.41, Reports: 1200, Target: status.Target{Acceptable: u, Objective: u, QoE: u, Response: u},
		Fair: status.Fair{RemainingCPUS: 900, AheadCPUS: 61, Finish: now.Add(10 * time.Minute), FairFinish: now.Add(14 * time.Minute), Why: "1200 of 5000 steps"},
		Use:  0.45, CPUSeconds: 812, Rule: "fsp.preferred", Why: "it can end first without making another task late", Limit: status.Limit{Fraction: 0.5},
		Updated: now.Add(-2 * time.Second), Node: status.Node{PoolCores: 4},
	}
	if change != nil {
		change(s)
	}
	return s
}

func sample() *View {
	v := &View{
		Time: now,
		Nodes: []Node{
			{ID: "bb22", Name: "two", State: "down", Stale: true, PoolCores: 4, Use: status.Unknown(), SavedS: status.Unknown(), RemainingCPUS: status.Unknown()},
			{ID: "aa11", Name: "one", State: "ready", Datacenter: "dc1", Policy: "auto", Engine: "exec", PoolCores: 4, Use: 0.9, Tasks: 3,
				Categories: map[string]int{"NL": 2, "CL": 1}, SavedS: 250, RemainingCPUS: 1800, Updated: now.Add(-2 * time.Second)},
		},
		Tasks: []Task{
			{Namespace: "ml", Job: "vae", Task: "train", Group: "g", Alloc: "a2", Node: "one", NodeID: "aa11", Started: now.Add(-time.Hour), Status: training(func(s *status.Status) {
				s.Category, s.Fair.Late, s.Fair.FairFinish, s.Use, s.Rule = "CL", true, now.Add(-time.Minute), 0.1, "fsp.late"
				s.Step, s.Total = 123456789, 500000000
				s.GPU = &handoff.Report{State: handoff.Running, Cards: []handoff.Card{{UUID: "GPU-5a1f", Model: "NVIDIA A2", MemoryMiB: 1024, ShareMiB: 512, HeldMiB: 300}}}
			})},
			{Namespace: "ml", Job: "mlp", Task: "train", Group: "g", Alloc: "a1", Node: "one", NodeID: "aa11", Started: now.Add(-2 * time.Hour),
				Status: training(func(s *status.Status) {
					s.GPU = &handoff.Report{State: handoff.Parked, Why: "to make room", Cards: []handoff.Card{{UUID: "GPU-5a1f", Model: "NVIDIA A2", MemoryMiB: 1024, ShareMiB: 408, ParkedMiB: 408}}}
				}),
				Values: []status.Number{3, 2, 1.5, 1.2, 1, 0.9}, Events: []Event{{Time: now.Add(-time.Minute), Type: "Driver", Message: "ebbtide: converged"}}},
			{Namespace: "web", Job: "api", Task: "server", Group: "g", Alloc: "a3", Node: "one", NodeID: "aa11", Started: now, Status: training(func(s *status.Status) {
				s.Kind, s.Category, s.Class, s.Fair = "service", "", "S", status.Fair{}
				s.Target.Response, s.Target.QoE = 0.12, 0.2
				s.Step, s.Total, s.Limit.Fraction, s.Rule = status.Unknown(), status.Unknown(), 1, "auto.service"
			})},
			{Namespace: "ml", Job: "rnn-with-a-very-long-name-of-its-own", Task: "train", Alloc: "a4", Node: "two", NodeID: "bb22", Stale: true, Error: "node two is down",
				Status: training(func(s *status.Status) { s.Metric = "validation/accuracy_top_5_of_the_whole_set" })},
			{Namespace: "ml", Job: "new", Task: "train", Alloc: "a5", Node: "two", NodeID: "bb22", Stale: true, Error: "node two is down"},
		},
		Moves: []Move{{ID: "4f02", Namespace: "ml", Job: "mlp", Alloc: "a1", From: "one", To: "two", Phase: "wait", Owner: "ebbtide shim on n1, process 4711", Until: now.Add(25 * time.Second)}},
		Queue: []store.Queued{
			{Namespace: "ml", Job: "gru", Number: 1, Owner: "vision", Start: now.Add(10 * time.Minute), End: now.Add(70 * time.Minute), Late: true, Why: "no place is free"},
			{Namespace: "web", Job: "rnn", Number: 2, Owner: "web", Order: store.DoHold, Why: "on hold since then"},
			{Namespace: "ml", Job: "mlp", Owner: "ml", Node: "one", End: now.Add(10 * time.Minute), FairEnd: now.Add(14 * time.Minute), Priority: -3, Why: "runs"},
		},
		Owners: []queue.OwnerShare{
			{Owner: queue.Owner{Name: "ml", Weight: 1}, Use: 0.75, Share: 0.25, Running: 1},
			{Owner: queue.Owner{Name: "vision", Weight: 2.5}, Share: 0.625, Waiting: 1},
		},
	}
	v.Finish()
	return v
}

func text(t Table) string {
	lines := []string{t.Head}
	for _, l := range t.Lines {
		lines = append(lines, l.Text)
	}
	return strings.Join(lines, "\n")
}

func TestTable(t *testing.T) {
	v := sample()
	for _, tc := range []struct {
		name  string
		tab   Tab
		width int
		want  string
	}{
		{"tasks, 80", Tasks, 80, `
  JOB          STATE  METRIC       CURVE       STEP END FAIR CPU/LIM% RULE
  mlp          parked 0.3125 loss  █▅▃▂▁▁ 1200/5000 10m  -4m    45/50 fsp.prefe…
  new          stale  -                           -   -    -        - -
  rnn-with-a-… stale  0.3125 vali…        1200/5000 10m  -4m    45/50 fsp.prefe…
  vae          late   0.3125 loss         123M/500M 10m +11m    10/50 fsp.late
  api          S      0.12/0.2s                   -   -    -   45/100 auto.serv…`},
		{"tasks, 200", Tasks, 200, `
  JOB                              TASK   NODE NAMESPACE STATE  METRIC                  CURVE       STEP END FAIR CPU/LIM% RULE          AGE
  mlp                              train  one  ml        parked 0.3125 loss             █▅▃▂▁▁ 1200/5000 10m  -4m    45/50 fsp.preferred  2s
  new                              train  two  ml        stale  -                                      -   -    -        - -               -
  rnn-with-a-very-long-name-of-it… train  two  ml        stale  0.3125 validation/accu…        1200/5000 10m  -4m    45/50 fsp.preferred  2s
  vae                              train  one  ml        late   0.3125 loss                    123M/500M 10m +11m    10/50 fsp.late       2s
  api                              server one  web       S      0.12/0.2s                              -   -    -   45/100 auto.service   2s`},
		{"nodes, 80", Nodes, 80, `
  NODE STATE POOL USE TASKS NL/WL/CL G/S/B SAVED  LEFT POLICY ENGINE AGE
  one  ready    4 90%     3    2/0/1 0/0/0 4m10s 7m30s auto   exec    2s
  two  down     4   -     0    0/0/0 0/0/0     -     - -      -        -`},
		{"gpus, 80", GPUs, 80, `
  CARD, JOB          NODE STATE   HELD SHARE USED PARKED WAITING
  NVIDIA A2 GPU-5a1f one           300  1024    0    408       0
    mlp              one  parked     0   408    0    408       0
    vae              one  running  300   512    0      0       0`},
		{"moves, 80", Moves, 80, `
  JOB NAMESPACE FROM TO  PHASE UNTIL OWNER                            MOVE
  mlp ml        one  two wait    25s ebbtide shim on n1, process 4711 4f02`},
		{"queue, 80", Queue, 80, `
  NO JOB NAMESPACE OWNER  PRIO NODE START   END FAIR WHY
   1 gru ml        vision    0 -      10m 1h10m late no place is free
   2 rnn web       web    hold -        -     -    - on hold since then
   - mlp ml        ml       -3 one      -   10m  14m runs`},
		{"owners, 80", Owners, 80, `
  OWNER  WEIGHT USE SHARE RUN WAIT
  ml          1 75%   25%   1    0
  vision    2.5  0%   62%   0    1`},
		{"tasks, 40", Tasks, 40, `
  JOB             STATE  METRIC
  mlp             parked 0.3125 loss
  new             stale  -
  rnn-with-a-ver… stale  0.3125 validat…
  vae             late   0.3125 loss
  api             S      0.12/0.2s`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			must.EqOp(t, strings.TrimPrefix(tc.want, "\n"), text(v.Table(tc.tab, Query{}, Layout{Width: tc.width})))
		})
	}
}

// A job keeps its number in a selection.
func TestTable_queue(t *testing.T) {
	must.StrContains(t, text(sample().Table(Queue, Query{Namespace: "web"}, Layout{Width: 80})), "   2 rnn")
}

func TestSelect(t *testing.T) {
	v := sample()
	for _, tc := range []struct {
		query Query
		want  string
	}{
		{Query{}, "mlp new rnn-with-a-very-long-name-of-its-own vae api"},
		{Query{Sort: "no such order"}, "mlp new rnn-with-a-very-long-name-of-its-own vae api"},
		{Query{Reverse: true}, "api vae rnn-with-a-very-long-name-of-its-own new mlp"},
		{Query{Namespace: "web"}, "api"},
		{Query{Namespace: "*", Filter: "MLP"}, "mlp"},
		{Query{Filter: "stale val"}, "rnn-with-a-very-long-name-of-its-own"},
		{Query{Filter: "late"}, "vae"},
		{Query{Filter: "late mlp"}, ""},
		{Query{Filter: "two"}, "new rnn-with-a-very-long-name-of-its-own"},
		{Query{Sort: "state"}, "new rnn-with-a-very-long-name-of-its-own vae mlp api"},
		{Query{Sort: "gap", Filter: "one"}, "vae mlp api"}, // unknown last
		{Query{Sort: "cpu", Filter: "one"}, "mlp api vae"},
		{Query{Sort: "limit", Filter: "one"}, "api mlp vae"},
		{Query{Sort: "step", Filter: "one"}, "vae mlp api"},
		{Query{Sort: "end", Filter: "one"}, "mlp vae api"},
		{Query{Sort: "started", Filter: "one"}, "api vae mlp"},
		{Query{Sort: "node"}, "mlp vae api new rnn-with-a-very-long-name-of-its-own"},
	} {
		var jobs []string
		for _, task := range Select(v.Tasks, tc.query) {
			jobs = append(jobs, task.Job)
		}
		must.Eq(t, tc.want, strings.Join(jobs, " "), must.Sprintf("%+v", tc.query))
	}
}

func TestSummary(t *testing.T) {
	v := sample()
	must.Eq(t, "2 nodes (1 stale)  8 cores 45% used  5 tasks 2 NL 1 CL 1 late  saved 4m10s  1 move", v.Summary(Layout{Width: 200}))
	must.LessEq(t, 40, wide(v.Summary(Layout{Width: 40})))
	v.Unread = 7
	must.StrContains(t, v.Summary(Layout{Width: 200}), "5 tasks (7 to be read) 2 NL")
}

func TestEmpty(t *testing.T) {
	must.Eq(t, "", sample().Empty())
	must.StrContains(t, (&View{}).Empty(), "`ebbtide doctor`")
	v := &View{Nodes: []Node{{}}}
	must.StrContains(t, v.Empty(), "No task runs under Ebbtide.")
	v.Unread = 1
	must.Eq(t, "", v.Empty())
}

func TestProblems(t *testing.T) {
	v := sample()
	must.Eq(t, []string{"stale, 2 tasks: node two is down"}, v.Problems())
	for i := range 8 {
		v.Tasks = append(v.Tasks, Task{Stale: true, Error: strings.Repeat("x", i+1)})
	}
	must.Len(t, 6, v.Problems())
	must.Eq(t, "and for 4 reasons more", v.Problems()[5])
}

func TestDetail(t *testing.T) {
	v := sample()
	var rows []status.Row
	for i := range 100 {
		rows = append(rows, status.Row{Time: now.Add(time.Duration(i) * time.Minute), Value: 1 / (1 + float64(i)/10)})
	}
	got := strings.Join(v.Detail(v.Task(Key{"a1", "train"}), rows, Layout{Width: 80}), "\n")
	for _, want := range []string{
		"ml/mlp  task train of group g  parked",
		"Allocation a1 on node one, running for 2h",
		"Why        it can end first without making another task late (fsp.preferred)",
		"Metric     loss = 0.3125 (min)  step 1200/5000  1200 reports",
		"End        in 10m; with its fair share in 14m",
		"CPU        45% of a pool of 4 cores, limit 50%; 812 CPU-seconds so far",
		"NVIDIA A2 GPU-5a1f: holds 0 of a share of 408 MiB, uses 0, parked\n           408, waits for 0",
		"    0.9091 █",
		"   0.09174 ",
		"           12:00:00",
		"  11:59:00 Driver: ebbtide: converged",
	} {
		must.StrContains(t, got, want)
	}
	// Steps alone.
	for i := range rows {
		rows[i].Value, rows[i].Step = math.NaN(), float64(10*i)
	}
	k := v.Task(Key{"a1", "train"})
	k.Status.Metric, k.Status.Value = "", status.Unknown()
	got = strings.Join(v.Detail(k, rows, Layout{Width: 80}), "\n")
	must.StrContains(t, got, "Steps      1200/5000, no metric  1200 reports")
	must.StrContains(t, got, "       990 ")
	must.Eq(t, 64, len(Values(rows)))
	must.Eq(t, 990, Values(rows)[63])
	got = strings.Join(v.Detail(v.Task(Key{"a5", "train"}), nil, Layout{Width: 80}), "\n")
	must.StrContains(t, got, "Stale      node two is down")
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"loss":                      "loss",
		"\x1b[2Jgone\x07":           "?[2Jgone?",
		"\u009b31m":                 "?31m", // the one-byte form of ESC [
		"a\nb\tc\r":                 "a b c ",
		"\u202Eevil\u2066\u200b":    "?evil??", // changes direction, or is invisible
		"größe…":                    "größe…",
		"\xff\xfe":                  "??",
		"\U000E0041tag\ue000\u2028": "?tag??",
	} {
		must.Eq(t, want, Clean(in, false))
	}
	must.Eq(t, "gr??e~-1", Clean("größe…−1", true))
	must.Eq(t, maxText, len(Clean(strings.Repeat("x", 10*maxText), false)))
}

// For any texts, no line exceeds the terminal or has a control character.
func TestLines_hostile(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		texts := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"\x1b[31mred", "日本語の名前がとても長い", "e\u0301\u0301", "👩‍👩‍👧‍👦👩‍👩‍👧‍👦", "a\nb", strings.Repeat("x", 300)}))
		numbers := rapid.Map(rapid.Float64(), func(f float64) status.Number { return status.Number(f) })
		v := &View{Time: now, Nodes: []Node{{Name: texts.Draw(r, "node"), PoolCores: numbers.Draw(r, "pool"), Use: numbers.Draw(r, "n use"), SavedS: numbers.Draw(r, "saved"), State: texts.Draw(r, "state")}}}
		s := training(func(s *status.Status) {
			s.Metric, s.Why, s.Rule, s.Category, s.Kind = texts.Draw(r, "metric"), texts.Draw(r, "why"), texts.Draw(r, "rule"), texts.Draw(r, "category"), texts.Draw(r, "kind")
			s.Value, s.Step, s.Total, s.Use = numbers.Draw(r, "value"), numbers.Draw(r, "step"), numbers.Draw(r, "total"), numbers.Draw(r, "use")
			s.Fair.Finish = time.Unix(rapid.Int64().Draw(r, "finish")/1000, 0)
			s.GPU = &handoff.Report{State: handoff.State(texts.Draw(r, "gpu")), Why: texts.Draw(r, "gpu why"), Cards: []handoff.Card{{UUID: texts.Draw(r, "uuid"), Model: texts.Draw(r, "model"), HeldMiB: rapid.Uint64().Draw(r, "held")}}}
			s.Move.State = texts.Draw(r, "move")
		})
		values := rapid.SliceOf(numbers).Draw(r, "values")
		v.Tasks = []Task{{Namespace: texts.Draw(r, "namespace"), Job: texts.Draw(r, "job"), Task: "t", Alloc: "a", Status: s, Values: values,
			Events: []Event{{Type: texts.Draw(r, "event"), Message: texts.Draw(r, "message")}}}}
		v.Finish()
		var rows []status.Row
		for i, n := range values {
			rows = append(rows, status.Row{Time: now.Add(time.Duration(i) * time.Second), Value: float64(n)})
		}
		l := Layout{Width: rapid.IntRange(1, 220).Draw(r, "width"), ASCII: rapid.Bool().Draw(r, "ascii")}
		lines := []string{v.Summary(l)}
		for tab := range Tabs() {
			table := v.Table(Tab(tab), Query{}, l)
			lines = append(lines, table.Head)
			for _, line := range table.Lines {
				lines = append(lines, line.Text)
			}
		}
		detail := l
		detail.Width = max(l.Width, 40)
		for _, line := range v.Detail(&v.Tasks[0], rows, detail) {
			if ansi.StringWidth(line) > detail.Width {
				r.Fatalf("%q is wider than %d", line, detail.Width)
			}
			lines = append(lines, line)
		}
		for i, line := range lines {
			if i < 5 && ansi.StringWidth(line) > l.Width {
				r.Fatalf("%q is wider than %d", line, l.Width)
			}
			for _, c := range line {
				if unicode.IsControl(c) || l.ASCII && c > unicode.MaxASCII {
					r.Fatalf("%q has %q", line, c)
				}
			}
		}
	})
}

func TestSpark(t *testing.T) {
	of := func(all ...float64) (out []status.Number) {
		for _, f := range all {
			out = append(out, status.Number(f))
		}
		return out
	}
	for _, tc := range []struct {
		values []status.Number
		width  int
		want   string
	}{
		{nil, 8, ""},
		{of(1), 8, "▅"},
		{of(2, 2, 2), 8, "▅▅▅"},
		{of(0, 1, 2, 3, 4, 5, 6, 7), 8, "▁▂▃▄▅▆▇█"},
		{of(7, math.NaN(), 0), 8, "█▁"},
		{of(0, 1, 2, 3, 4, 5, 6, 7), 4, "▁▃▆█"},
		{of(-math.MaxFloat64, math.MaxFloat64), 8, "▁█"},
		{of(1, 2), 0, ""},
	} {
		must.Eq(t, tc.want, Layout{}.spark(tc.values, tc.width), must.Sprint(tc.values))
	}
	must.Eq(t, ".#", Layout{ASCII: true}.spark(of(0, 9), 8))
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 59 * time.Second: "59s", time.Minute: "1m", 90 * time.Second: "1m30s", 15*time.Minute + 9*time.Second: "15m",
		90 * time.Minute: "1h30m", 25 * time.Hour: "25h", 100 * time.Hour: "4d", -90 * time.Second: "-1m30s", -900 * time.Millisecond: "0s",
	} {
		must.Eq(t, want, span(d))
	}
}
