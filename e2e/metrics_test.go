// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/shim/config"
)

// monitoring is the packages' configuration for Prometheus and Grafana.
const monitoring = "../packaging/monitoring"

// TestMetrics has a real Prometheus scrape driver, GPU plugin and shim while jobs run, with the
// published configuration: every query of the dashboard, every recording rule and every operand of
// an alert has data.
func TestMetrics(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"prometheus", "promtool"} {
		if _, err := harness.Look(program); err != nil {
			t.Skip(err)
		}
	}
	addresses := make(map[string]string) // by job
	for _, job := range []string{"ebbtide-driver", "ebbtide-gpu", "ebbtide-shim"} {
		addresses[job] = freeAddress(t)
	}
	n := newGPUNode(t, fakeCard(t), "exec", gpuOptions{
		memory:   parkCardMiB,
		plugin:   map[string]string{"metrics_address": quote(addresses["ebbtide-gpu"])},
		settings: map[string]string{"metrics_address": quote(addresses["ebbtide-driver"])},
	})
	c := config.Default()
	c.Interval, c.Relocation.Interval = time.Second, 2*time.Second
	c.Web.Address, c.Nomad.Address = addresses["ebbtide-shim"], n.agent.Addr
	runShims(t, c, "shim")
	p := startPrometheus(t, n.h, addresses)

	// Cause every event at least once.
	n.start(t, optIn(trainee("grows"))) // categorised by the shim
	n.finish(t, job{id: "ends", tasks: []task{shell("for i in 1 2 3 4 5; do echo step=$i/5 loss=$((9 - i)); sleep 1; done")}})
	low, high := n.pair(t, "low", "high")
	p.becomes(t, `ebbtide_gpu_containers{state="parked"} == 1`)
	n.end(t, "high")
	n.succeeds(t, high)
	n.back(t, low)
	for _, moved := range []string{
		`sum(up) == 3`,
		`ebbtide_driver_pool_cores > 0`,
		`ebbtide_driver_cpu_seconds_total > 0`,
		`ebbtide_driver_progress_reports_total >= 5`,
		`sum(ebbtide_driver_decisions_total{policy="auto"}) > 0`,
		`sum(ebbtide_driver_tasks) == 2`,
		`sum(ebbtide_driver_tasks_ended_total) == 2`,
		`time() - ebbtide_driver_last_decision_timestamp_seconds < 120`,
		`ebbtide_driver_task_limit_ratio * on (alloc_id, task) group_left (nomad_job) ebbtide_driver_task_info{nomad_job="grows"} > 0`,
		fmt.Sprintf(`ebbtide_driver_task_cpu_seconds_total{alloc_id=%q, task="train"} > 0`, low.ID),
		fmt.Sprintf(`ebbtide_gpu_container_held_bytes{alloc_id=%q, task="train"} >= %d`, low.ID, hogMiB*mib),
		fmt.Sprintf(`ebbtide_gpu_memory_bytes == %d`, parkCardMiB*mib),
		`sum(ebbtide_gpu_grants_total) > 1`,
		`ebbtide_gpu_parkings_total{result="ok"} >= 1`,
		`ebbtide_gpu_restores_total{result="ok"} >= 1`,
		`ebbtide_gpu_gate_connections >= 1`,
		`ebbtide_shim_leader == 1`,
		`ebbtide_shim_nodes == 1`,
		`ebbtide_shim_events_total > 0`,
	} {
		p.becomes(t, moved)
	}
	p.becomesEmpty(t, fmt.Sprintf(`{alloc_id=%q}`, high.ID), "what has ended has no series")

	queries := append(dashboard(t), p.rules(t)...)
	must.Greater(t, 80, len(queries))
	for _, q := range queries {
		eventually(t, q, func() error { return p.finite(t, q) })
	}
	for job, address := range addresses {
		checkMetrics(t, job, address)
	}

	// Restarted plugins are scraped again, and start with the running tasks.
	for _, name := range []string{"ebbtide-driver", "ebbtide-gpu"} {
		pids := n.agent.PluginPIDs(name)
		must.Len(t, 1, pids)
		before := p.value(t, `process_start_time_seconds{job="`+name+`"}`)
		must.NoError(t, unix.Kill(pids[0], unix.SIGKILL))
		p.becomes(t, fmt.Sprintf(`process_start_time_seconds{job=%q} > %f`, name, before))
	}
	p.becomes(t, `sum(ebbtide_driver_tasks) == 2`)
	p.becomes(t, fmt.Sprintf(`ebbtide_gpu_container_held_bytes{alloc_id=%q} >= %d`, low.ID, hogMiB*mib))
	n.end(t, "low")
	n.succeeds(t, low)
}

// prometheus is a running server.
type prometheus struct{ url string }

// startPrometheus starts a server with the published configuration, except for addresses and
// intervals.
func startPrometheus(t *testing.T, h *harness.Harness, addresses map[string]string) prometheus {
	t.Helper()
	published, err := os.ReadFile(filepath.Join(monitoring, "scrape.yml"))
	must.NoError(t, err)
	rules, err := filepath.Abs(monitoring)
	must.NoError(t, err)
	replace := []string{"15s", "1s", "/usr/share/ebbtide/prometheus/", rules + "/"}
	for job, port := range map[string]string{"ebbtide-driver": "9464", "ebbtide-gpu": "9465", "ebbtide-shim": "9646"} {
		replace = append(replace, "127.0.0.1:"+port, addresses[job])
	}
	text := strings.NewReplacer(replace...).Replace(string(published))
	for _, address := range addresses {
		must.StrContains(t, text, address)
	}
	path := filepath.Join(h.Dir, "prometheus.yml")
	must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	out, err := exec.Command("promtool", "check", "config", path).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))

	program, err := harness.Look("prometheus")
	must.NoError(t, err)
	address := freeAddress(t)
	_, err = h.Start(deadline(t, startDeadline), "prometheus", []string{
		program, "--config.file=" + path, "--storage.tsdb.path=" + filepath.Join(h.Dir, "prometheus"), "--web.listen-address=" + address, "--log.level=warn",
	}, nil)
	must.NoError(t, err)
	p := prometheus{"http://" + address}
	eventually(t, "Prometheus is ready", func() error {
		_, err := p.get("/-/ready", nil)
		return err
	})
	return p
}

func (p prometheus) get(path string, values url.Values) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepDeadline)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path+"?"+values.Encode(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return body, err
}

// query returns the values of an expression.
func (p prometheus) query(t *testing.T, expr string) (values []float64) {
	t.Helper()
	body, err := p.get("/api/v1/query", url.Values{"query": {expr}})
	must.NoError(t, err, must.Sprint(expr))
	var answer struct {
		Data struct {
			ResultType string
			Result     []struct{ Value [2]any }
		}
	}
	must.NoError(t, json.Unmarshal(body, &answer), must.Sprint(string(body)))
	must.Eq(t, "vector", answer.Data.ResultType)
	for _, r := range answer.Data.Result {
		v, err := strconv.ParseFloat(r.Value[1].(string), 64)
		must.NoError(t, err)
		values = append(values, v)
	}
	return values
}

// finite reports why an expression has no data.
func (p prometheus) finite(t *testing.T, expr string) error {
	t.Helper()
	values := p.query(t, expr)
	if !slices.ContainsFunc(values, func(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }) {
		return fmt.Errorf("its values are %v", values)
	}
	return nil
}

// value returns the only value of an expression.
func (p prometheus) value(t *testing.T, expr string) float64 {
	t.Helper()
	values := p.query(t, expr)
	must.Len(t, 1, values, must.Sprint(expr))
	return values[0]
}

// becomes waits until a comparison holds for a series.
func (p prometheus) becomes(t *testing.T, comparison string) {
	t.Helper()
	eventually(t, comparison, func() error {
		if len(p.query(t, comparison)) == 0 {
			return errors.New("it does not hold")
		}
		return nil
	})
}

// becomesEmpty waits until an expression has no series.
func (p prometheus) becomesEmpty(t *testing.T, expr, what string) {
	t.Helper()
	eventually(t, what, func() error {
		if values := p.query(t, expr); len(values) > 0 {
			return fmt.Errorf("%s has %v", expr, values)
		}
		return nil
	})
}

// rules returns the expressions of the recording rules, and the operands of the alerts.
func (p prometheus) rules(t *testing.T) (queries []string) {
	t.Helper()
	body, err := p.get("/api/v1/rules", nil)
	must.NoError(t, err)
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Query, Type, LastError string }
			}
		}
	}
	must.NoError(t, json.Unmarshal(body, &answer))
	for _, g := range answer.Data.Groups {
		for _, r := range g.Rules {
			must.Eq(t, "", r.LastError, must.Sprint(r.Name))
			if r.Type == "recording" {
				queries = append(queries, r.Query, r.Name)
				continue
			}
			expr, err := parser.ParseExpr(r.Query)
			must.NoError(t, err, must.Sprint(r.Name))
			compared := operands(expr)
			must.SliceNotEmpty(t, compared, must.Sprint(r.Name))
			queries = append(queries, compared...)
		}
	}
	return queries
}

// operands returns the vectors that an expression compares, which exist whether it holds or not.
func operands(e parser.Expr) []string {
	switch e := e.(type) {
	case *parser.ParenExpr:
		return operands(e.Expr)
	case *parser.NumberLiteral:
		return nil
	case *parser.BinaryExpr:
		if e.Op.IsComparisonOperator() || e.Op.IsSetOperator() {
			return append(operands(e.LHS), operands(e.RHS)...)
		}
	}
	return []string{e.String()}
}

// dashboard returns the queries of the dashboard's panels, as Grafana would send them.
func dashboard(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	must.NoError(t, err)
	var board struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	must.NoError(t, json.Unmarshal(data, &board))
	queries := make(map[string]bool)
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			queries[strings.NewReplacer("$instance", ".*", "$__rate_interval", "1m", "$__range", "5m").Replace(target.Expr)] = true
		}
	}
	return slices.Sorted(maps.Keys(queries))
}

// checkMetrics runs promtool on the metrics that a process exports.
func checkMetrics(t *testing.T, job, address string) {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	must.NoError(t, err)
	defer resp.Body.Close()
	cmd := exec.CommandContext(deadline(t, stepDeadline), "promtool", "check", "metrics")
	cmd.Stdin = resp.Body
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprint(job, string(out)))
}
