// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package prometheus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/ebbtide/ebbtide/driver/progress"
)

type fixture struct {
	testing.TB
	*Endpoint
	text string
}

func serve(t testing.TB, metric string, opts Options) *fixture {
	f := &fixture{TB: t}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		io.WriteString(w, f.text)
	}))
	t.Cleanup(server.Close)
	e, err := near(server.URL+"/metrics", progress.Config{Metric: metric}, opts)
	must.NoError(t, err)
	close(e.done)
	f.Endpoint = e
	return f
}

// near opens an endpoint whose port belongs to its task.
func near(address string, cfg progress.Config, opts Options) (*Endpoint, error) {
	opts.Reach = reachOf(address)
	return newEndpoint(address, cfg, opts)
}

func reachOf(address string) *Reach {
	u, err := url.Parse(address)
	if err != nil {
		return &Reach{}
	}
	port, _ := strconv.Atoi(u.Port())
	if port == 0 {
		port = map[string]int{"http": 80, "https": 443}[u.Scheme]
	}
	return &Reach{Ports: []Port{{Host: netip.AddrPortFrom(netip.Addr{}, uint16(port)), Inside: uint16(port)}}}
}

func show(reports []progress.Report) []string {
	out := []string{}
	for _, r := range reports {
		text := fmt.Sprintf("%s=%.6g", r.Metric, r.Value)
		if !math.IsNaN(r.Step) || !math.IsNaN(r.Total) {
			text = fmt.Sprintf("%v/%v %s", r.Step, r.Total, text)
		}
		out = append(out, text)
	}
	return out
}

func (f *fixture) poll(text string) ([]string, error) {
	f.text = text
	f.scrape(context.Background())
	reports, err := f.Poll(context.Background())
	return show(reports), err
}

func (f *fixture) want(text string, reports ...string) {
	f.Helper()
	got, err := f.poll(text)
	must.NoError(f, err)
	must.Eq(f, append([]string{}, reports...), got)
}

func (f *fixture) wantError(text, problem string) {
	f.Helper()
	got, err := f.poll(text)
	must.ErrorContains(f, err, problem)
	must.ErrorContains(f, err, "metrics endpoint http://127.0.0.1:")
	must.SliceEmpty(f, got)
	must.StrContains(f, f.Note(), problem)
	got, err = f.poll(text) // reported once
	must.NoError(f, err)
	must.SliceEmpty(f, got)
	must.StrContains(f, f.Note(), problem)
}

func TestOpen(t *testing.T) {
	for _, c := range []struct {
		url      string
		cfg      progress.Config
		opts     Options
		problems []string
	}{
		{"http://127.0.0.1:9/metrics", progress.Config{Metric: "a"}, Options{}, nil},
		{"https://localhost/", progress.Config{Metric: "a", Goal: "max", Preset: "auto"}, Options{Quantile: 1, Labels: map[string]string{"a": ""}}, nil},
		{"http://[::1]:9", progress.Config{Metric: "a"}, Options{}, nil},
		{"http://[::1]:9", progress.Config{Metric: "a", Prometheus: "http://[::1]:9", Quantile: 0.5, Scale: 0.001}, Options{}, nil},
		{"", progress.Config{}, Options{}, []string{"progress.prometheus: must be an address, such as http://127.0.0.1:9090/metrics", "progress.metric: must name the metric"}},
		{"http://127.0.0.1:9", progress.Config{Metric: "a", Pattern: "x", Preset: "keras", Goal: "up"}, Options{Quantile: -1, Interval: -1, Timeout: -1,
			Labels: map[string]string{"": "", "le": "1", "quantile": "1", "__name__": "x"}},
			[]string{"progress.pattern", "progress.preset", "progress.goal", "progress.quantile: must be greater than 0 and at most 1, got \"-1\"",
				"progress.interval: must not be negative", "progress.timeout", "progress.labels: must not have an empty name",
				"cannot choose the metric", `is no label to choose by: set quantile, got "le"`, `got "quantile"`}},
		{"http://127.0.0.1:9", progress.Config{Metric: "a", Pattern: strings.Repeat("x", 300)}, Options{Quantile: math.NaN()}, []string{"progress.quantile", "…"}},
		{"http://example.com/", progress.Config{Metric: "a"}, Options{}, []string{"progress.prometheus: the host must be localhost or an IP address, since names are not looked up"}},
		{"http://192.0.2.1/", progress.Config{Metric: "a"}, Options{}, []string{"a port that Nomad has given this allocation; it has none", `got "http://192.0.2.1"`}},
	} {
		if c.problems == nil {
			c.opts.Reach = reachOf(c.url)
		}
		e, err := Open(c.url, c.cfg, c.opts)
		if c.problems == nil {
			must.NoError(t, err, must.Sprint(c.url))
			must.NoError(t, e.Close())
			continue
		}
		for _, p := range c.problems {
			must.ErrorContains(t, err, p)
		}
		var field *progress.FieldError
		must.True(t, errors.As(err, &field))
	}
}

func TestSecrets(t *testing.T) {
	for _, url := range []string{
		"http://user:hunter2@example.com/metrics?token=hunter2#hunter2",
		"http://hunter2@192.0.2.1/metrics",
		"http://user:hun/ter2@127.0.0.1:9/",
		"http://127.0.0.1:80/hunter2@x",
		"http://127.0.0.1:hunter2@x",
		"http://user:hunter2 x@127.0.0.1/",
		"http://127.0.0.1/%zzhunter2",
		"ftp://user:hunter2@127.0.0.1/",
		"user:hunter2@127.0.0.1:9/metrics",
		"mailto:hunter2@127.0.0.1",
		"hunter2\x00",
		"http://127.0.0.1:9/?" + strings.Repeat("hunter2", 1000),
	} {
		e, err := near(url, progress.Config{Metric: "a"}, Options{Timeout: time.Second})
		if err != nil {
			must.StrNotContains(t, err.Error(), "hunter2", must.Sprint(url))
			must.StrNotContains(t, err.Error(), "ter2", must.Sprint(url))
			continue
		}
		e.scrape(context.Background())
		_, err = e.Poll(context.Background())
		must.StrNotContains(t, fmt.Sprint(err, e.Note(), string(e.Offset())), "ter2", must.Sprint(url))
	}

	answers := []func(w http.ResponseWriter){
		func(w http.ResponseWriter) { w.WriteHeader(500) },
		func(w http.ResponseWriter) { w.Header().Set("Location", "/%zzhunter2"); w.WriteHeader(302) },
		func(w http.ResponseWriter) { w.Header().Set("Location", "/hunter2"); w.WriteHeader(302) },
		func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "Hunter2 hunter2/\"hunter2\"; hunter2")
			w.WriteHeader(200)
		},
		func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html; hunter2=hunter2")
			w.WriteHeader(200)
		},
		func(w http.ResponseWriter) { io.WriteString(w, "<hunter2>") },
		func(w http.ResponseWriter) { panic(http.ErrAbortHandler) },
		func(w http.ResponseWriter) {
			c, _, _ := w.(http.Hijacker).Hijack()
			io.WriteString(c, "hunter2 says hello\r\n\r\n")
			c.Close()
		},
		func(w http.ResponseWriter) {
			c, _, _ := w.(http.Hijacker).Hijack()
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: hunter2\r\n\r\n")
			c.Close()
		},
		func(w http.ResponseWriter) { time.Sleep(300 * time.Millisecond) },
	}
	for i, answer := range answers {
		var auth atomic.Bool
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user, password, _ := r.BasicAuth()
			auth.Store(user == "user" && password == "hunter2" && r.URL.RawQuery == "token=hunter2")
			answer(w)
		}))
		e, err := near(strings.Replace(server.URL, "//", "//user:hunter2@", 1)+"/metrics?token=hunter2#hunter2", progress.Config{Metric: "a"}, Options{Timeout: 100 * time.Millisecond})
		must.NoError(t, err)
		for range maxTimeouts {
			e.scrape(context.Background())
		}
		must.True(t, auth.Load(), must.Sprint(i))
		_, err = e.Poll(context.Background())
		must.StrNotContains(t, strings.ToLower(fmt.Sprint(err, e.Note())), "hunter2", must.Sprint(i))
		must.StrContains(t, e.Note(), server.URL+"/metrics")
		server.Close()
	}
}

func TestGauge(t *testing.T) {
	f := serve(t, "train_loss", Options{})
	must.StrHasPrefix(t, "waiting for http://127.0.0.1:", f.Note())
	must.Eq(t, progress.GoalMin, f.Goal())
	f.want("")
	must.StrContains(t, f.Note(), `has no metric "train_loss" yet`)
	f.want("# TYPE go_threads gauge\ngo_threads 7\n# TYPE other gauge\nother 7\n")
	must.StrHasSuffix(t, `has no metric "train_loss" yet; it has other`, f.Note())

	const text = "# HELP train_loss The loss.\n# TYPE train_loss gauge\ntrain_loss %s\ntrain_step 7\n"
	f.want(fmt.Sprintf(text, "NaN")) // not set yet
	f.want(fmt.Sprintf(text, "0.5"), "train_loss=0.5")
	must.Eq(t, "", f.Note())
	for range repeatOnce - 1 {
		f.want(fmt.Sprintf(text, "0.5"))
	}
	f.want(fmt.Sprintf(text, "0.5"), "train_loss=0.5")
	f.want(fmt.Sprintf(text, "5e-1"))
	f.want(fmt.Sprintf(text, "0.25 1700000000000"), "train_loss=0.25")
	f.want(fmt.Sprintf(text, "NaN"), "train_loss=NaN") // diverged
	f.want(fmt.Sprintf(text, "NaN"))
	f.want(fmt.Sprintf(text, "+Inf"), "train_loss=+Inf")
	must.Eq(t, 5, f.Stats().Reports)
	must.Positive(t, f.Stats().Bytes)
	must.Positive(t, f.Stats().Lines)
	must.Eq(t, "{}", string(f.Offset()))

	f.want("# EOF\n")
	must.StrContains(t, f.Note(), "has no metric")
	f.want(fmt.Sprintf(text, "0.125"), "train_loss=0.125")

	o := f.Offset()
	g := serve(t, "train_loss", Options{})
	g.SetOffset(o)
	g.want(fmt.Sprintf(text, "0.125"))
	must.Eq(t, string(o), string(g.Offset()))
	g.want(fmt.Sprintf(text, "0.0625"), "train_loss=0.0625")
	g.SetOffset(o) // too late
	g.want(fmt.Sprintf(text, "0.0625"))
	for _, bad := range []string{"", "null", "[]", `{"value":"x"}`, "{}"} {
		g = serve(t, "train_loss", Options{})
		g.SetOffset(json.RawMessage(bad))
		g.want(fmt.Sprintf(text, "0.125"), "train_loss=0.125")
	}

	// Exact names; without a type.
	f = serve(t, "a", Options{})
	f.want("a_b 1\nb_a 2\nA 3\n")
	f.want("a 1\n", "a=1")
	must.StrContains(t, f.Note(), `the name "a" does not say`)
	f = serve(t, "a", Options{})
	e, err := near(f.url, progress.Config{Metric: "a", Goal: progress.GoalMax}, Options{})
	must.NoError(t, err)
	must.Eq(t, progress.GoalMax, e.Goal())
}

func TestSteps(t *testing.T) {
	f := serve(t, "loss", Options{Step: "step", Total: "steps"})
	f.want("loss 0.5\n", "loss=0.5")
	f.want("loss 0.5\nstep 1\nstep 2\nsteps -1\n", "1/NaN loss=0.5")
	f.want("loss 0.5\nstep 1\nsteps 10\n")
	f.want("loss 0.5\nstep 2\nsteps 10\n", "2/10 loss=0.5")
	g := serve(t, "loss", Options{Step: "step", Total: "steps"})
	g.SetOffset(f.Offset())
	g.want("loss 0.5\nstep 2\n")
	g.want("loss 0.5\nstep 3\n", "3/NaN loss=0.5")
}

// Without a metric, new steps are reports.
func TestStepsAlone(t *testing.T) {
	f := serve(t, "", Options{Step: "step", Total: "steps"})
	f.want("# TYPE loss gauge\nloss 0.5\n")
	must.StrContains(t, f.Note(), `has no metric "step" yet; it has loss`)
	f.want("loss 0.5\nstep 1\nsteps 10\n", "1/10 =NaN")
	f.want("loss 0.4\nstep 1\nsteps 10\n")
	f.want("loss 0.4\nstep 2\n", "2/NaN =NaN")
	must.True(t, f.last.StepOnly())
	must.Eq(t, "", f.Goal())
	must.Eq(t, "", f.Note())
	g := serve(t, "", Options{Step: "step", Labels: map[string]string{"rank": "0"}})
	g.SetOffset(f.Offset())
	g.want("step{rank=\"1\"} 7\nstep{rank=\"0\"} 2\n")
	g.want("step{rank=\"1\"} 7\nstep{rank=\"0\"} 3\n", "3/NaN =NaN")
	g.SetOffset(json.RawMessage(`{"value": 1}`)) // a metric's
	must.Eq(t, 3, g.last.Step)
}

func TestCounterAndLabels(t *testing.T) {
	f := serve(t, "reward_total", Options{})
	f.want("# TYPE reward_total counter\nreward_total{a=\"1\"} 1\nreward_total{a=\"2\"} 2\n", "reward_total=3")
	f = serve(t, "reward", Options{})
	f.want("# TYPE reward counter\nreward_total 1\nreward_created 7\n# EOF\n", "reward=1")
	f = serve(t, "reward", Options{})
	f.want("reward_total 1\n", "reward=1")

	const text = `loss{set="train",job="a b"} 0.5
loss{set="val", job="a b",} 0.25
loss{job="a \"b\"\\\n"} 0.125
`
	f = serve(t, "loss", Options{})
	f.wantError(text, `has 3 series of "loss": set labels so that they choose one`)
	f.want("loss{x=\"y\"} 1\n", "loss=1")
	f = serve(t, "loss", Options{Labels: map[string]string{"set": "val"}})
	f.want(text, "loss=0.25")
	f = serve(t, "loss", Options{Labels: map[string]string{"set": ""}})
	f.want(text, "loss=0.125")
	f = serve(t, "loss", Options{Labels: map[string]string{"job": "a \"b\"\\\n"}})
	f.want(text, "loss=0.125")
	f = serve(t, "loss", Options{Labels: map[string]string{"set": "test", "a": "b"}})
	f.want(text)
	must.StrContains(t, f.Note(), `has "loss", but with other labels than {a="b", set="test"}`)
}

func TestSummary(t *testing.T) {
	const text = `# TYPE rt summary
rt{quantile="0.5"} 0.1
rt{quantile="0.95"} %s
rt_sum 7
rt_count %d
`
	f := serve(t, "rt", Options{})
	f.want(fmt.Sprintf(text, "NaN", 0))
	f.want(fmt.Sprintf(text, "0.25", 10), "rt=0.25")
	must.Eq(t, "", f.Note())
	f.want(fmt.Sprintf(text, "0.25", 10))
	f.want(fmt.Sprintf(text, "0.25", 11), "rt=0.25")
	f.want(fmt.Sprintf(text, "NaN", 12))
	f.want(fmt.Sprintf(text, "0.5", 1), "rt=0.5")
	must.Eq(t, 1, f.Stats().Truncated)

	f = serve(t, "rt", Options{Quantile: 0.5})
	f.want(fmt.Sprintf(text, "1", 7), "rt=0.1")
	f = serve(t, "rt", Options{Quantile: 0.99})
	f.wantError(fmt.Sprintf(text, "1", 7), `has "rt" as a summary without the quantile 0.99; it has 0.5, 0.95`)
	f = serve(t, "rt", Options{})
	f.wantError("# TYPE rt summary\nrt_sum 7\nrt_count 1\n", `has "rt" as a summary without quantiles`)
	f = serve(t, "rt", Options{Quantile: 0.5})
	f.wantError("# TYPE rt summary\nrt{quantile=\"0.5\",a=\"1\"} 1\nrt{quantile=\"0.5\",a=\"2\"} 1\nrt{quantile=\"x\"} 7\n", `has 2 series of "rt"`)
	f.want("rt{quantile=\"0.5\",a=\"1\"} 1\n", "rt=1") // no type, no count
	f = serve(t, "rt", Options{Quantile: 0.5, Labels: map[string]string{"a": "2"}})
	f.want("# TYPE rt summary\nrt{quantile=\"0.5\",a=\"1\"} 1\nrt{quantile=\"0.5\",a=\"2\"} 2\nrt_count{a=\"1\"} 1\nrt_count{a=\"2\"} 1\n", "rt=2")
	f.want("# TYPE rt summary\nrt{quantile=\"0.5\",a=\"1\"} 1\nrt{quantile=\"0.5\",a=\"2\"} 2\nrt_count{a=\"1\"} 2\nrt_count{a=\"2\"} 1\n")
}

// histogramText writes a histogram with the bounds 0.1, 0.2 and 0.4.
func histogramText(labels string, le01, le02, le04, inf int) string {
	comma := ""
	if labels != "" {
		comma = ","
	}
	return fmt.Sprintf(`# TYPE rt histogram
rt_bucket{%[1]s%[2]sle="0.1"} %[3]d
rt_bucket{%[1]s%[2]sle="0.2"} %[4]d
rt_bucket{%[1]s%[2]sle="0.4"} %[5]d
rt_bucket{%[1]s%[2]sle="+Inf"} %[6]d
rt_sum{%[1]s} 7
rt_count{%[1]s} %[6]d
`, labels, comma, le01, le02, le04, inf)
}

func TestHistogram(t *testing.T) {
	f := serve(t, "rt", Options{Quantile: 0.5})
	f.want(histogramText("", 100, 100, 100, 100)) // starts the count
	f.want(histogramText("", 100, 100, 100, 100))
	f.want(histogramText("", 100, 110, 110, 110), "rt=0.15") // ten of 0.1 to 0.2
	f.want(histogramText("", 100, 110, 110, 110))
	f.want(histogramText("", 110, 120, 120, 120), "rt=0.05") // ten below 0.1
	f.want(histogramText("", 110, 120, 120, 130), "rt=0.4")  // ten above 0.4
	must.Eq(t, 0, f.Stats().Truncated)
	f.want(histogramText("", 0, 4, 4, 4), "rt=0.15") // restarted
	must.Eq(t, 1, f.Stats().Truncated)
	f.want(histogramText("", 0, 0, 0, 0))
	must.Eq(t, 2, f.Stats().Truncated)
	must.Eq(t, "", f.Note())

	f.want(histogramText("", 0, 10, 7, 10), "rt=0.15")

	// It appears late: all is new. Likewise when it reappears.
	f = serve(t, "rt", Options{Quantile: 0.5})
	f.want("other 1\n")
	f.want(histogramText("", 0, 4, 4, 4), "rt=0.15")
	f.want("other 1\n")
	f.want(histogramText("", 8, 8, 8, 8), "rt=0.05")

	f = serve(t, "rt", Options{Quantile: 0.5})
	f.want(histogramText("", 0, 4, 4, 4))
	f.want("rt_bucket{le=\"1\"} 10\nrt_bucket{le=\"+Inf\"} 10\n", "rt=0.5")
	must.Eq(t, 1, f.Stats().Truncated)
	f.want("rt_bucket{le=\"2\"} 20\nrt_bucket{le=\"+Inf\"} 20\n", "rt=1")

	// Series are summed, unless labels choose; a later one is new.
	two := histogramText("path=\"/a\"", 0, 4, 4, 4) + histogramText("path=\"/b\"", 0, 0, 0, 0)
	f = serve(t, "rt", Options{Quantile: 1})
	f.want(histogramText("path=\"/a\"", 0, 0, 0, 0))
	f.want(two, "rt=0.2")
	f.want(histogramText("path=\"/a\"", 0, 8, 8, 8)+histogramText("path=\"/b\"", 0, 0, 4, 4), "rt=0.4")
	f = serve(t, "rt", Options{Quantile: 1, Labels: map[string]string{"path": "/b"}})
	f.want(two)
	f.want(histogramText("path=\"/a\"", 0, 8, 8, 8) + histogramText("path=\"/b\"", 0, 0, 0, 0))
	f.want(histogramText("path=\"/a\"", 0, 8, 8, 8)+histogramText("path=\"/b\"", 1, 1, 1, 1), "rt=0.1")

	f = serve(t, "rt", Options{})
	f.want("x 1\n")
	f.want(histogramText("", 0, 100, 100, 100), "rt=0.195")

	f = serve(t, "rt", Options{})
	f.wantError("# TYPE rt histogram\nrt_bucket{le=\"+Inf\"} 4\nrt_sum 1\nrt_count 4\n", `has "rt" as a histogram without buckets`)
	f = serve(t, "rt", Options{})
	f.wantError("# TYPE rt histogram\nrt_sum 1\nrt_count 4\n", `has "rt" as a histogram without buckets`)
	f = serve(t, "rt", Options{})
	f.wantError("rt_bucket{le=\"x\"} 4\nrt_bucket{le=\"NaN\"} 4\nrt_bucket{le=\"-Inf\"} 4\nrt_bucket{le=\"1\"} NaN\nrt_bucket{le=\"1\"} -1\nrt_bucket{le=\"1\"} +Inf\nrt_bucket{le=\"1\"} 1\n", "without buckets")
	f.want("# TYPE rt histogram\nrt_bucket{le=\"1\"} 0\nrt_count 0\n") // the count for the last bucket
	f.want("# TYPE rt histogram\nrt_bucket{le=\"1\"} 4\nrt_count 4\n", "rt=0.95")
	f.want("# TYPE rt histogram\n")
	must.StrContains(t, f.Note(), "has no metric")
	f = serve(t, "rt_count", Options{})
	f.want(histogramText("", 1, 2, 3, 4), "rt_count=4")
}

// TestQuantile has the values of PromQL's histogram_quantile.
func TestQuantile(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		b    buckets
		q    float64
		want float64
	}{
		{buckets{0.1: 5, 0.2: 10, inf: 10}, 0.5, 0.1},
		{buckets{0.1: 5, 0.2: 10, inf: 10}, 0.25, 0.05},
		{buckets{0.1: 5, 0.2: 10, inf: 10}, 0.75, 0.15},
		{buckets{0.1: 5, 0.2: 10, inf: 10}, 1, 0.2},
		{buckets{0.1: 0, 0.2: 10, inf: 10}, 0.5, 0.15},
		{buckets{0.1: 0, 0.2: 0, inf: 10}, 0.5, 0.2},
		{buckets{-1: 5, 0: 10, inf: 10}, 0.25, -1},
		{buckets{-1: 5, 0: 10, inf: 10}, 0.75, -0.5},
		{buckets{0: 5, 1: 10, inf: 10}, 0.25, 0},
		{buckets{1: 0.5, inf: 0.5}, 0.5, 0.5},
	} {
		got, ok := c.b.quantile(c.q)
		must.True(t, ok)
		must.InDelta(t, c.want, got, 1e-12)
	}
	for _, b := range []buckets{{}, {inf: 4}, {1: 4}, {1: 4, 2: 4}, {1: 0, inf: 0}} {
		_, ok := b.quantile(0.5)
		must.False(t, ok)
	}
}

func TestAnswers(t *testing.T) {
	const good = "loss 0.5\n"
	for _, c := range []struct {
		name    string
		answer  func(w http.ResponseWriter, r *http.Request)
		want    string // a report
		problem string // an error
		note    string
	}{
		{"without a type", func(w http.ResponseWriter, r *http.Request) {
			w.Header()["Content-Type"] = nil
			io.WriteString(w, good)
		}, "loss=0.5", "", ""},
		{"OpenMetrics", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
			io.WriteString(w, "# TYPE loss gauge\n# UNIT loss \nloss 0.5 1700000000.123\n# TYPE a info\na_info{b=\"c\"} 1\n# EOF\n")
		}, "loss=0.5", "", ""},
		{"gzip", func(w http.ResponseWriter, r *http.Request) {
			must.Eq(t, "", r.Header.Get("Accept-Encoding"))
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Encoding", "gzip")
			io.WriteString(w, good)
		}, "", "answers in an encoding that was not requested", ""},
		{"500", func(w http.ResponseWriter, r *http.Request) { http.Error(w, good, http.StatusInternalServerError) }, "", "answers with status 500", ""},
		{"404", func(w http.ResponseWriter, r *http.Request) { http.Error(w, good, http.StatusNotFound) }, "", "answers with status 404", ""},
		{"503", func(w http.ResponseWriter, r *http.Request) { http.Error(w, good, http.StatusServiceUnavailable) }, "", "", "which is not ready (status 503)"},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			must.Eq(t, "/metrics", r.URL.Path)
			http.Redirect(w, r, "/other", http.StatusFound)
		}, "", "answers with status 302, and redirects are not followed", ""},
		{"HTML", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<html>"+good)
		}, "", "answers text/html, not metrics in Prometheus' text format", ""},
		{"HTML as text", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, "<html>\n<body>\n</body>\n")
		}, "", "answers text that is not metrics", ""},
		{"protobuf", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.google.protobuf")
			io.WriteString(w, good)
		}, "", "answers application/vnd.google.protobuf, not", ""},
		{"JSON", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, `{"loss": 0.5}`)
		}, "", "answers text that is not metrics", ""},
		{"huge", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			for range 100_000 {
				io.WriteString(w, strings.Repeat("#", 99)+"\n")
			}
			io.WriteString(w, good)
		}, "", "answers more than 4 MiB", ""},
		{"many series", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			for i := range maxSamples + 1 {
				fmt.Fprintf(w, "loss{a=\"%d\"} 1\n", i)
			}
		}, "", "has more than 20000 samples of \"loss\"", ""},
		{"cut", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, good)
		}, "", "", "which ends the connection before its answer is complete"},
		{"no HTTP", func(w http.ResponseWriter, r *http.Request) {
			c, _, _ := w.(http.Hijacker).Hijack()
			io.WriteString(c, "SSH-2.0-OpenSSH\r\n")
			c.Close()
		}, "", "does not answer as http", ""},
		{"a line is bad", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, good+"x y z\n")
		}, "", "answers text that is not metrics", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(c.answer))
			defer server.Close()
			e, err := near(server.URL+"/metrics", progress.Config{Metric: "loss"}, Options{Timeout: time.Minute})
			must.NoError(t, err)
			e.scrape(context.Background())
			e.scrape(context.Background())
			reports, err := e.Poll(context.Background())
			if c.want == "" {
				must.SliceEmpty(t, reports)
			} else {
				must.Eq(t, []string{c.want}, show(reports))
				must.Eq(t, "", e.Note())
			}
			if c.problem == "" {
				must.NoError(t, err)
			} else {
				must.ErrorContains(t, err, c.problem)
				must.ErrorContains(t, err, server.URL+"/metrics ")
				must.Eq(t, 1, strings.Count(err.Error(), "metrics endpoint"))
				must.StrContains(t, e.Note(), c.problem)
			}
			must.StrContains(t, e.Note(), c.note)
		})
	}
}

func TestTLS(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "loss 0.5\n") }))
	defer server.Close()
	server.Config.ErrorLog = nil
	e, err := near(server.URL, progress.Config{Metric: "loss"}, Options{Timeout: time.Minute})
	must.NoError(t, err)
	e.scrape(context.Background())
	_, err = e.Poll(context.Background())
	must.ErrorContains(t, err, "has a certificate that is not trusted")
	e, err = near(server.URL, progress.Config{Metric: "loss"}, Options{Timeout: time.Minute})
	must.NoError(t, err)
	e.client.Transport.(*http.Transport).TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig
	e.scrape(context.Background())
	reports, err := e.Poll(context.Background())
	must.NoError(t, err)
	must.Eq(t, []string{"loss=0.5"}, show(reports))
}

// TestHangs checks that a hanging endpoint blocks neither Poll nor Close, and becomes
// an error after three timeouts.
func TestHangs(t *testing.T) {
	stop := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, "loss 0.5\n")
		w.(http.Flusher).Flush()
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(stop)
	e, err := near(server.URL, progress.Config{Metric: "loss"}, Options{Timeout: 20 * time.Millisecond})
	must.NoError(t, err)
	for i := range 2 * maxTimeouts {
		e.scrape(context.Background())
		reports, err := e.Poll(context.Background())
		must.SliceEmpty(t, reports)
		if i == maxTimeouts-1 {
			must.ErrorContains(t, err, "does not answer within 20ms")
		} else {
			must.NoError(t, err)
		}
		must.StrContains(t, e.Note(), "does not answer within 20ms")
	}

	e, err = Open(server.URL, progress.Config{Metric: "loss"}, Options{Reach: reachOf(server.URL), Timeout: time.Hour})
	must.NoError(t, err)
	_, err = e.Poll(context.Background())
	must.NoError(t, err)
	must.NoError(t, e.Close()) // does not wait for an hour
	must.NoError(t, e.Close())
	_, err = e.Poll(context.Background())
	must.ErrorIs(t, err, ErrClosed)
	must.Eq(t, "{}", string(e.Offset()))
}

func TestLate(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	address := l.Addr().String()
	must.NoError(t, l.Close())
	e, err := Open("http://"+strings.Replace(address, "127.0.0.1", "localhost", 1), progress.Config{Metric: "loss"}, Options{Reach: reachOf("http://" + address), Interval: 10 * time.Millisecond})
	must.NoError(t, err)
	defer e.Close()
	eventually := func(what string, ok func() bool) {
		t.Helper()
		must.Wait(t, wait.InitialSuccess(wait.BoolFunc(ok), wait.Timeout(30*time.Second), wait.Gap(5*time.Millisecond)), must.Sprint(what))
	}
	poll := func() []string {
		reports, err := e.Poll(context.Background())
		must.NoError(t, err)
		return show(reports)
	}
	eventually("it is awaited", func() bool { return strings.Contains(e.Note(), "which cannot be reached: connection refused") })
	must.SliceEmpty(t, poll())

	start := func(value string) *http.Server {
		l, err := net.Listen("tcp", address)
		must.NoError(t, err)
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "loss "+value+"\n") })}
		go s.Serve(l)
		return s
	}
	s := start("0.5")
	var got []string
	eventually("it is there", func() bool { got = append(got, poll()...); return len(got) > 0 })
	must.Eq(t, "loss=0.5", got[0])
	must.NoError(t, s.Close())
	eventually("it is gone", func() bool { return strings.Contains(e.Note(), "cannot be reached") })
	poll()
	s = start("0.25")
	defer s.Close()
	got = nil
	eventually("it is back", func() bool { got = append(got, poll()...); return len(got) > 0 })
	must.Eq(t, "loss=0.25", got[0])

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = e.Poll(ctx)
	must.ErrorIs(t, err, context.Canceled)
	must.Positive(t, e.Stats().Reports)
}

func TestQueue(t *testing.T) {
	f := serve(t, "loss", Options{})
	for i := range maxQueue + 10 {
		f.push(progress.Report{Value: float64(i)})
	}
	reports, err := f.Poll(context.Background())
	must.NoError(t, err)
	must.Len(t, maxQueue, reports)
	must.Eq(t, 10, reports[0].Value)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f.text = "loss 0.5\n"
	f.scrape(ctx)
	reports, err = f.Poll(context.Background())
	must.NoError(t, err)
	must.SliceEmpty(t, reports)
}

// TestClient reads what Prometheus' own library serves.
func TestClient(t *testing.T) {
	registry := prometheus.NewRegistry()
	loss := prometheus.NewGauge(prometheus.GaugeOpts{Name: "train_loss", Help: "a \"b\"\n\\c"})
	rt := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "rt_seconds", Buckets: []float64{0.1, 0.2, 0.4}, NativeHistogramBucketFactor: 1.1}, []string{"path"})
	native := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "native_seconds", NativeHistogramBucketFactor: 1.1})
	summary := prometheus.NewSummary(prometheus.SummaryOpts{Name: "summary_seconds", Objectives: map[float64]float64{0.5: 0.01, 0.95: 0.01}})
	registry.MustRegister(loss, rt, native, summary)
	for _, open := range []bool{false, true} {
		server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: open}))
		defer server.Close()
		var all []*Endpoint
		for _, m := range []string{"train_loss", "rt_seconds", "native_seconds", "summary_seconds"} {
			e, err := near(server.URL, progress.Config{Metric: m}, Options{})
			must.NoError(t, err)
			e.scrape(context.Background())
			all = append(all, e)
		}
		loss.Set(0.5 + loss0(open))
		rt.WithLabelValues("/a\"\n").(prometheus.ExemplarObserver).ObserveWithExemplar(0.15, prometheus.Labels{"trace": "x # y"})
		native.Observe(0.3)
		summary.Observe(0.25)
		for i, want := range []float64{0.5 + loss0(open), 0.195, -1, 0.25} {
			all[i].scrape(context.Background())
			reports, err := all[i].Poll(context.Background())
			if want < 0 {
				must.ErrorContains(t, err, "native")
				must.SliceEmpty(t, reports)
				continue
			}
			must.NoError(t, err)
			must.SliceNotEmpty(t, reports)
			must.InDelta(t, want, reports[len(reports)-1].Value, 1e-9)
		}
	}
}

func loss0(open bool) float64 {
	if open {
		return 1
	}
	return 0
}
