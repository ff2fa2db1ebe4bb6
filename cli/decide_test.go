// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/internal/fields"
)

const decideSnapshot = `{
  "tasks": [
    {"id": "a", "category": "NL", "growth": 0.6, "progress": 0.3, "limit": 1, "use": 0.5},
    {"id": "b", "category": "NL", "growth": 0.3, "progress": null, "limit": 0.4, "use": 0.3},
    {"id": "c", "category": "WL", "growth": 0.1, "progress": 0.02, "limit": 0.4, "use": 0.2}
  ],
  "interval_s": 20, "initial_interval_s": 20, "event": "",
  "params": {"alpha": 0.35, "beta": 2}
}`

// taskFields are a task's fields in a node's snapshot.
const taskFields = "id, kind, entitlement, limit, use, epoch, category_epoch, category, growth, progress, goal, value, acceptable, objective, state, tracked, objective_s, response_s, cap_cores, overhead, cpu_s, fair_cpu_s, remaining_cpu_s, quality_cpu_s, ended"

// decideWith returns the snapshot with one replacement.
func decideWith(old, new string) string { return strings.Replace(decideSnapshot, old, new, 1) }

func TestDecide_golden(t *testing.T) {
	for _, tc := range []struct {
		file string
		args []string
	}{
		{"testdata/flowcon.json", []string{"decide", "--policy", "flowcon"}},
		{"testdata/flowcon-compact.json", []string{"decide", "--compact", "-policy=flowcon"}},
		{"testdata/none.json", []string{"decide", "--policy", "none"}},
	} {
		t.Run(tc.file, func(t *testing.T) {
			status, stdout, stderr := ebbtide(decideSnapshot, tc.args...)
			must.Eq(t, "", stderr)
			must.Eq(t, exitOK, status)
			want, err := os.ReadFile(tc.file)
			must.NoError(t, err)
			must.Eq(t, string(want), stdout)
		})
	}
}

func TestDecide_params(t *testing.T) {
	alpha := func(doc string) float64 {
		status, stdout, stderr := ebbtide(doc, "decide", "--policy", "flowcon")
		must.Eq(t, "", stderr)
		must.Eq(t, exitOK, status)
		var out struct{ Alpha float64 }
		must.NoError(t, json.Unmarshal([]byte(stdout), &out))
		return out.Alpha
	}
	const adaptive = (0.45 + 0.1) / 2
	must.Eq(t, 0.35, alpha(decideSnapshot))
	must.InDelta(t, adaptive, alpha(decideWith("0.35", `"adaptive"`)), 1e-12)
	must.InDelta(t, adaptive, alpha(decideWith(`"alpha": 0.35, `, "")), 1e-12)
	must.InDelta(t, adaptive, alpha(decideWith(`"alpha": 0.35, "beta": 2`, "")), 1e-12)
	must.InDelta(t, adaptive, alpha(decideWith(`"event": "",
  "params": {"alpha": 0.35, "beta": 2}`, `"event": "join"`)), 1e-12)
}

func TestDecide_list(t *testing.T) {
	status, stdout, stderr := ebbtide("", "decide", "--list")
	must.Eq(t, exitOK, status)
	must.Eq(t, "", stderr)
	must.Eq(t, "auto\nfsp\nflowcon\ntradl\ndqoes\nnone\nspecon-categorise\nrelocate\nflowcon-place\nspecon-migrate\nspecon-rebalance\nqueue\nfairshare\nfairshare-adapt\n", stdout)
}

func TestDecide_examples(t *testing.T) {
	for _, p := range allPolicies() {
		for _, extra := range [][]string{nil, {"--compact"}} {
			status, example, stderr := ebbtide("", append([]string{"decide", "--example", p.Name}, extra...)...)
			must.Eq(t, exitOK, status)
			must.Eq(t, "", stderr)
			status, stdout, stderr := ebbtide(example, append([]string{"decide", "--policy", p.Name}, extra...)...)
			must.Eq(t, exitOK, status)
			must.Eq(t, "", stderr)
			must.True(t, json.Valid([]byte(stdout)))
			if extra != nil {
				must.Eq(t, 1, strings.Count(stdout, "\n"))
			}
		}
	}
	_, compact, _ := ebbtide("", "decide", "--example", "flowcon", "--compact")
	must.Eq(t, 1, strings.Count(compact, "\n"))
}

// unexplained removes the explanations of missing fields.
func unexplained(stderr string) string {
	return regexp.MustCompile(`is missing: .*`).ReplaceAllString(stderr, "is missing")
}

// Each policy's example has all fields that the policy requires, and the error of a missing one
// explains it.
func TestDecide_missing(t *testing.T) {
	for _, p := range allPolicies() {
		_, example, _ := ebbtide("", "decide", "--example", p.Name)
		var whole any
		must.NoError(t, json.Unmarshal([]byte(example), &whole))
		required := 0
		var walk func(value any, path string)
		walk = func(value any, path string) {
			switch v := value.(type) {
			case []any:
				for i, element := range v {
					walk(element, fields.Index(path, i))
				}
			case map[string]any:
				for name, field := range maps.Clone(v) {
					at := fields.Member(path, name)
					delete(v, name)
					without, err := json.Marshal(whole)
					must.NoError(t, err)
					status, _, stderr := ebbtide(string(without), "decide", "--policy", p.Name)
					if strings.Contains(stderr, at+": is missing") {
						required++
						must.Eq(t, exitUsage, status)
						must.StrContains(t, stderr, at+": is missing: ", must.Sprint(p.Name))
					}
					v[name] = field
					walk(field, at)
				}
			}
		}
		walk(whole, "")
		must.Positive(t, required, must.Sprint(p.Name))
	}
}

func TestDecide_usage(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "give one of --policy NAME, --list, --example NAME; got none of them"},
		{[]string{"--compact"}, "give one of --policy NAME, --list, --example NAME; got none of them"},
		{[]string{"--list", "--policy", "none"}, "give one of --policy NAME, --list, --example NAME; got --list and --policy"},
		{[]string{"--policy", "flowkon"}, `--policy: unknown policy "flowkon", must be one of: auto, fsp, flowcon, tradl, dqoes, none, specon-categorise, relocate, flowcon-place, specon-migrate, specon-rebalance, queue, fairshare, fairshare-adapt`},
		{[]string{"--policy", ""}, `--policy: unknown policy "", must be one of: auto, fsp, flowcon, tradl, dqoes, none, specon-categorise, relocate, flowcon-place, specon-migrate, specon-rebalance, queue, fairshare, fairshare-adapt`},
		{[]string{"--example", "flowkon"}, `--example: unknown policy "flowkon", must be one of: auto, fsp, flowcon, tradl, dqoes, none, specon-categorise, relocate, flowcon-place, specon-migrate, specon-rebalance, queue, fairshare, fairshare-adapt`},
		{[]string{"--policy"}, "flag needs an argument: -policy; allowed are -compact, -example, -list, -policy"},
		{[]string{"--polcy", "none"}, "flag provided but not defined: -polcy; allowed are -compact, -example, -list, -policy"},
		{[]string{"--policy", "none", "snapshot.json"}, `unexpected argument "snapshot.json": the snapshot is read from stdin`},
	} {
		status, stdout, stderr := ebbtide(decideSnapshot, append([]string{"decide"}, tc.args...)...)
		must.Eq(t, exitUsage, status)
		must.Eq(t, "", stdout)
		must.Eq(t, "ebbtide decide: "+tc.want+"\n", stderr)
	}
}

func TestDecide_badSnapshots(t *testing.T) {
	for _, tc := range []struct {
		name, doc string
		want      []string
	}{
		{"negative growth", decideWith("0.1", "-1"), []string{"tasks[2].growth: must be ≥ 0, got -1"}},
		{"NaN", decideWith("0.1", "NaN"), []string{"tasks[2].growth: must be a finite number, got NaN"}},
		{"overflow", decideWith("0.1", "1e400"), []string{"tasks[2].growth: must be a finite number, got 1e400"}},
		{"unknown field", decideWith(`"use": 0.5`, `"use": 0.5, "cpu": 1`),
			[]string{"tasks[0].cpu: unknown field, must be one of: " + taskFields}},
		{"unknown field in params", decideWith(`"beta"`, `"Beta"`), []string{"params.Beta: unknown field, must be one of: alpha, beta"}},
		{"unknown field at the top", decideWith(`"event"`, `"now": 1, "event"`),
			[]string{"now: unknown field, must be one of: node, now_s, policy, pool_cores, event, interval_s, initial_interval_s, max_interval_s, gone, state, tasks, params, policies"}},
		{"missing growth", decideWith(`"growth": 0.6, `, ""), []string{"tasks[0].growth: is missing"}},
		{"missing in all places", `{"tasks": [{"growth": 1}]}`, []string{
			"event: is missing", "interval_s: is missing", "initial_interval_s: is missing",
			"tasks[0].id: is missing", "tasks[0].limit: is missing", "tasks[0].use: is missing",
			"tasks[0].category: is missing", "tasks[0].progress: is missing",
		}},
		{"duplicate id", decideWith(`"b"`, `"a"`), []string{`tasks[1].id: must be unique, "a" is the id of tasks[0] too`}},
		{"name given twice", decideWith(`"use": 0.5`, `"use": 0.5, "use": 0.6`), []string{"tasks[0].use: is given more than once"}},
		{"null tasks", `{"tasks": null, "interval_s": 1, "initial_interval_s": 1, "event": ""}`, []string{"tasks: must be a list, got null"}},
		{"bad alpha", decideWith("0.35", `"adaptiv"`), []string{`params.alpha: must be "adaptive" or a number ≥ 0, got "adaptiv"`}},
		{"negative alpha", decideWith("0.35", "-1"), []string{`params.alpha: must be "adaptive" or a number ≥ 0, got -1`}},
		{"beta 0", decideWith(`"beta": 2`, `"beta": 0`), []string{"params.beta: must be ≥ 1, got 0"}},
		{"no entitlement", decideWith(`"use": 0.5`, `"use": 0.5, "entitlement": 0`), []string{"tasks[0].entitlement: must be > 0, got 0"}},
		{"bad event", decideWith(`"event": ""`, `"event": "joined"`), []string{`event: must be one of "", "join", "leave", "target", got "joined"`}},
		{"several, of all kinds", `{"tasks": [{"id": "a", "category": "XL", "growth": NaN, "progress": "1", "limit": 2, "use": -1, "x": 0}], "interval_s": 0, "event": ""}`,
			[]string{
				"initial_interval_s: is missing",
				"tasks[0].growth: must be a finite number, got NaN",
				`tasks[0].progress: must be a number or null, got a string "1"`,
				"tasks[0].x: unknown field, must be one of: " + taskFields,
				"tasks[0].limit: must be > 0 and ≤ 1, or 0 for none yet, got 2",
				"tasks[0].use: must be ≥ 0, got -1",
				`tasks[0].category: must be one of "NL", "WL", "CL" or "" for a new task, got "XL"`,
				"interval_s: must be > 0, got 0",
			}},
		{"empty", "", []string{"snapshot: is empty, must be a JSON object (line 1, column 1)"}},
		{"trailing data", decideSnapshot + "{}", []string{"snapshot: has more data after its end (line 9, column 2)"}},
		{"cut off", decideSnapshot[:98], []string{"tasks[0].use: ends early (line 3, column 84)"}},
	} {
		for _, policy := range []string{"flowcon", "none"} {
			t.Run(tc.name+"/"+policy, func(t *testing.T) {
				status, stdout, stderr := ebbtide(tc.doc, "decide", "--policy", policy)
				must.Eq(t, strings.Join(tc.want, "\n")+"\n", unexplained(stderr))
				must.Eq(t, exitUsage, status)
				must.Eq(t, "", stdout)
			})
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestDecide_io(t *testing.T) {
	for _, tc := range []struct {
		name   string
		in     io.Reader
		out    io.Writer
		status int
		want   string
	}{
		{"unreadable", iotest.ErrReader(errors.New("broken pipe")), io.Discard, exitError, "ebbtide decide: reading the snapshot: broken pipe\n"},
		{"endless", endless{}, io.Discard, exitUsage, "ebbtide decide: snapshot: must be at most 64 MiB\n"},
		{"unwritable", strings.NewReader(decideSnapshot), fullDisk{}, exitError, "ebbtide decide: writing the result: no space left on device\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stderr strings.Builder
			status := Run([]string{"decide", "--policy", "flowcon"}, tc.in, tc.out, &stderr)
			must.Eq(t, tc.status, status)
			must.Eq(t, tc.want, stderr.String())
		})
	}
}

// FuzzDecide checks that any input yields either decisions or errors, reproducibly.
func FuzzDecide(f *testing.F) {
	_, example, _ := ebbtide("", "decide", "--example", "flowcon", "--compact")
	for _, seed := range []string{
		decideSnapshot, example, autoSnapshot, tradlSnapshot, dqoesSnapshot, fspSnapshot, fairShareSnapshot, adaptSnapshot, "", "{}", decideWith("0.6", "null"), decideWith("0.1", "NaN"), decideWith("20", "1e308"), decideWith("0.6", "1e308"),
		decideWith(`"c"`, `"\u0000<&\u2028"`), decideWith(`"WL"`, `"CL"`), decideWith(`"NL"`, `""`), decideWith("0.35", "0"), decideWith("0.35", `"adaptive"`),
		decideWith(`"beta": 2`, `"beta": 1.7e308`),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, doc string) {
		for _, p := range allPolicies() {
			status, stdout, stderr := ebbtide(doc, "decide", "--policy", p.Name)
			switch status {
			case exitOK:
				must.Eq(t, "", stderr)
				must.True(t, json.Valid([]byte(stdout)))
			case exitUsage:
				must.Eq(t, "", stdout)
				must.NotEq(t, "", stderr)
			default:
				t.Fatalf("status %d, stderr %q", status, stderr)
			}
			again, stdoutAgain, stderrAgain := ebbtide(doc, "decide", "--policy", p.Name)
			must.Eq(t, status, again)
			must.Eq(t, stdout, stdoutAgain)
			must.Eq(t, stderr, stderrAgain)
		}
	})
}
