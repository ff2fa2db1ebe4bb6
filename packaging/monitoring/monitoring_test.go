// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package monitoring tests the configuration for Prometheus and Grafana against the exported
// metrics.
package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/handoff"
	gpu "github.com/ebbtide/ebbtide/device/metrics"
	driver "github.com/ebbtide/ebbtide/driver/metrics"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/shim/web"
)

// registries returns the registries of the three processes, with an example of every metric.
func registries(t *testing.T) []*prometheus.Registry {
	t.Helper()
	d, g := driver.New(), gpu.New()
	d.Update(&driver.Node{Tasks: []driver.Task{{Kind: policy.Training, Ahead: 1}}})
	d.Decisions.WithLabelValues("p", "r")
	g.Requests("GPU-1")
	g.UpdateCards([]gpu.Card{{UUID: "GPU-1"}})
	g.UpdateGate(&gpu.Gate{
		Memory:     []gpu.Memory{{Card: "GPU-1"}},
		Containers: []gpu.Container{{State: handoff.Running, Uses: []gpu.Use{{Card: "GPU-1"}}}},
	})
	return []*prometheus.Registry{d.Registry, g.Registry, web.NewMetrics().Registry}
}

// described returns the names of all of Ebbtide's metrics that a registry may export.
func described(r *prometheus.Registry) []string {
	ch := make(chan *prometheus.Desc)
	go func() { r.Describe(ch); close(ch) }()
	var names []string
	for d := range ch {
		if m := regexp.MustCompile(`fqName: "(ebbtide_\w+)"`).FindStringSubmatch(d.String()); m != nil {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return names
}

// families returns all of Ebbtide's metrics, by process.
func families(t *testing.T) (all []*dto.MetricFamily) {
	t.Helper()
	for _, r := range registries(t) {
		gathered, err := r.Gather()
		must.NoError(t, err)
		var names []string
		for _, f := range gathered {
			if strings.HasPrefix(f.GetName(), "ebbtide_") {
				names = append(names, f.GetName())
				all = append(all, f)
			}
		}
		must.Eq(t, described(r), names, must.Sprint("the example has everything"))
	}
	return all
}

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	must.NoError(t, err)
	return string(text)
}

// The page has a row for each metric, as exported.
func TestDocs_metrics(t *testing.T) {
	want := "| metric | type | meaning |\n| --- | --- | --- |\n"
	for _, f := range families(t) {
		name := f.GetName()
		var labels []string
		for _, l := range f.Metric[0].Label {
			labels = append(labels, l.GetName())
		}
		if len(labels) > 0 {
			name += "{" + strings.Join(labels, ",") + "}"
		}
		want += fmt.Sprintf("| `%s` | %s | %s |\n", name, strings.ToLower(f.GetType().String()), f.GetHelp())
	}
	_, got, _ := strings.Cut(page(t), "<!-- metrics -->\n")
	got, _, _ = strings.Cut(got, "<!-- end of metrics -->")
	if got != want {
		t.Errorf("docs/metrics.md does not have the metrics that there are; it should have\n%s", want)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	must.NoError(t, err)
	return string(text)
}

// Rules and dashboard use existing metrics, and the dashboard also recorded ones.
func TestNames(t *testing.T) {
	known := make(map[string]bool)
	for _, f := range families(t) {
		known[f.GetName()] = true
		if f.GetType() == dto.MetricType_HISTOGRAM {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				known[f.GetName()+suffix] = true
			}
		}
	}
	recorded := make(map[string]bool)
	for _, m := range regexp.MustCompile(`record: (\S+)`).FindAllStringSubmatch(read(t, "recording.yml"), -1) {
		recorded[m[1]] = true
	}
	must.MapNotEmpty(t, recorded)
	used := make(map[string]bool)
	for _, file := range []string{"recording.yml", "alerts.yml", "dashboard.json"} {
		for _, name := range regexp.MustCompile(`[a-z_]+:ebbtide_\w+:\w+|\bebbtide_(?:driver|gpu|shim)_\w+`).FindAllString(read(t, file), -1) {
			used[name] = true
			must.True(t, known[name] || recorded[name], must.Sprintf("%s: there is no metric %s", file, name))
		}
	}
	for name := range recorded {
		must.MapContainsKey(t, used, name, must.Sprint("it is recorded for nothing"))
	}
}

// Each alert is complete and has a row in the page.
func TestAlerts(t *testing.T) {
	text := read(t, "alerts.yml")
	alerts := regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(text, -1)
	must.SliceNotEmpty(t, alerts)
	for _, needed := range []string{"severity: ", "summary: ", "description: ", "runbook_url: https://github.com/ebbtide/ebbtide/blob/main/docs/metrics.md#alerts\n"} {
		must.Eq(t, len(alerts), strings.Count(text, needed), must.Sprint(needed))
	}
	tests := read(t, "alerts_test.yml")
	for _, a := range alerts {
		must.StrContains(t, page(t), "| `"+a[1]+"` |")
		must.StrContains(t, tests, "alertname: "+a[1]+"\n        eval_time", must.Sprint("it has no test"))
	}
	must.StrContains(t, page(t), "\n## Alerts\n")
}

// board is the tested part of a dashboard.
type board struct {
	SchemaVersion int
	Templating    struct{ List []struct{ Name, Type string } }
	Panels        []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ H, W, X, Y int }
		Targets []struct {
			Datasource struct{ UID string }
			Expr       string
		}
	}
}

// Grafana can display each panel, at a separate place, from the selected data source.
func TestDashboard(t *testing.T) {
	var b board
	must.NoError(t, json.Unmarshal([]byte(read(t, "dashboard.json")), &b))
	must.GreaterEq(t, 40, b.SchemaVersion)
	must.Eq(t, "datasource", b.Templating.List[0].Type)
	ids, places := make(map[int]bool), make(map[[2]int]string)
	var rows []string
	for _, p := range b.Panels {
		must.False(t, ids[p.ID], must.Sprint(p.Title))
		ids[p.ID] = true
		must.LessEq(t, 24, p.GridPos.X+p.GridPos.W)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				must.Eq(t, "", places[at], must.Sprint(p.Title))
				places[at] = p.Title
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		must.SliceNotEmpty(t, p.Targets, must.Sprint(p.Title))
		for _, target := range p.Targets {
			must.Eq(t, "${datasource}", target.Datasource.UID)
			must.StrContains(t, target.Expr, `instance=~"$instance"`)
		}
	}
	must.Eq(t, []string{"Overview", "Nodes", "Jobs", "GPUs", "Shim"}, rows)
}

// promtool runs Prometheus' own checks.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is missing (Debian: prometheus)")
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
}

func TestPromtool(t *testing.T) {
	for name, args := range map[string][]string{
		"rules":  {"check", "rules", "--lint-fatal", "recording.yml", "alerts.yml"},
		"config": {"check", "config", "--syntax-only", "scrape.yml"},
		"alerts": {"test", "rules", "alerts_test.yml"},
	} {
		t.Run(name, func(t *testing.T) { promtool(t, args...) })
	}
}
