// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/ebbtide/ebbtide/e2e/trainer/model"
	"github.com/ebbtide/ebbtide/e2e/trainer/train"
)

func config(t testing.TB, name string) Config {
	spec, err := model.ByName(name)
	must.NoError(t, err)
	spec.Dim, spec.Hidden, spec.Batch, spec.Size, spec.HeldOut = 16, 12, 20, 400, 40
	spec.Rate *= 3
	params := make([]float64, spec.New(1).Len())
	spec.New(1).Init(params)
	return Config{Spec: spec, Seed: 1, Params: params, Threads: 1, Batch: 25, Work: 1, Queue: 4, Registry: prometheus.NewRegistry()}
}

func start(t testing.TB, c Config) *Server {
	s, err := New(c)
	must.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func ask(s *Server, body string) (int, string) {
	return askWith(context.Background(), s, body)
}

func askWith(ctx context.Context, s *Server, body string) (int, string) {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/predict", strings.NewReader(body)))
	return w.Code, w.Body.String()
}

func answer(t testing.TB, s *Server, body string) Answer {
	code, text := ask(s, body)
	must.Eq(t, http.StatusOK, code, must.Sprint(text))
	var a Answer
	must.NoError(t, json.Unmarshal([]byte(text), &a))
	return a
}

func TestAnswers(t *testing.T) {
	for _, spec := range model.Specs() {
		t.Run(spec.Name, func(t *testing.T) {
			c := config(t, spec.Name)
			c.Threads = 3
			m := c.Spec.New(c.Seed)
			s := start(t, c)
			a := answer(t, s, "")
			must.Eq(t, spec.Name, a.Model)
			must.Eq(t, 25, a.Rows)
			must.Eq(t, 25*m.Targets(), a.Targets)
			must.Eq(t, FirstInput, a.First)
			must.Greater(t, 0, a.ResponseS)
			must.Greater(t, 0, a.Loss)
			if m.Classes() > 0 {
				sum := int64(0)
				for _, n := range a.Classes {
					sum += n
				}
				must.Eq(t, int64(a.Targets), sum)
				must.Between(t, 1/float64(m.Classes()), *a.Confidence, 1) // logreg starts with zeros
				must.Between(t, 0, *a.Accuracy, 1)
			} else {
				must.SliceEmpty(t, a.Classes)
				must.Nil(t, a.Confidence)
			}

			b := answer(t, s, `{"work": 2.5}`)
			must.Eq(t, 63, b.Rows)
			must.Eq(t, FirstInput+25, b.First)
			again := answer(t, s, fmt.Sprintf(`{"work": 2.5, "first": %d}`, b.First))
			must.Eq(t, b.Classes, again.Classes)
			must.Less(t, 1e-9, math.Abs(b.Loss/again.Loss-1)) // the threads' sums are added in any order
		})
	}
}

// The model that responds is the trained one.
func TestTrained(t *testing.T) {
	c := config(t, "mlp")
	c.Batch = 400
	before := answer(t, start(t, c), "")
	trainer := train.New(train.Config{Spec: c.Spec, Seed: c.Seed, Threads: 1})
	defer trainer.Close()
	for range 300 {
		trainer.Step()
	}
	c.Params, c.Registry = trainer.State().Params, prometheus.NewRegistry()
	after := answer(t, start(t, c), "")
	must.Less(t, 0.9*before.Loss, after.Loss)
	must.Greater(t, *before.Accuracy, *after.Accuracy)
}

func TestCostIsProportionalToWork(t *testing.T) {
	c := config(t, "mlp")
	spec, _ := model.ByName("mlp")
	c.Spec, c.Params = spec, make([]float64, spec.New(1).Len())
	once := start(t, c)
	c.Work, c.Registry = 5, prometheus.NewRegistry()
	fiveTimes := start(t, c)
	// The machine's speed varies, so each ratio is of requests next to each other.
	var byRequest, byConfig []float64
	for range 41 {
		few := answer(t, once, `{"work": 8}`).CPUS
		byRequest = append(byRequest, answer(t, once, `{"work": 40}`).CPUS/few)
		byConfig = append(byConfig, answer(t, fiveTimes, `{"work": 8}`).CPUS/few)
	}
	for _, ratios := range [][]float64{byRequest, byConfig} {
		slices.Sort(ratios)
		must.Between(t, 3.5, ratios[len(ratios)/2], 7)
	}
}

// Queued batches run sequentially: the last one waits for the others' CPU time.
func TestOneAfterTheOther(t *testing.T) {
	s := start(t, config(t, "mlp"))
	ctx, cancel := context.WithCancel(context.Background())
	first := busy(t, ctx, s)
	var requests sync.WaitGroup
	answers := make(chan Answer, 3)
	for range 3 {
		requests.Go(func() { answers <- answer(t, s, `{"work": 400}`) })
	}
	until(t, "three wait", func() bool { return queued(s) == 3 })
	cancel()
	<-first
	requests.Wait()
	close(answers)
	longest, cpu := 0.0, 0.0
	for a := range answers {
		longest, cpu = max(longest, a.ResponseS), cpu+a.CPUS
	}
	must.Greater(t, 0.8*cpu, longest)
}

func TestBadRequests(t *testing.T) {
	c := config(t, "mlp")
	c.Work = 10
	s := start(t, c)
	for body, want := range map[string]string{
		`{"work": 0.5}`:             "work: must be a number from 1 to 100000, got 0.5",
		`{"work": -1}`:              "work: must be",
		`{"work": 100001}`:          "got 100001",
		`{"work": "much"}`:          "the body must be empty or JSON",
		`{"wrok": 2}`:               `unknown field "wrok"`,
		`{} {}`:                     "a single JSON object",
		`{`:                         "the body must be",
		strings.Repeat(" ", 1<<13):  "too large",
		`{"first": -1}`:             "the body must be",
		`{"work": 1e999}`:           "the body must be",
		"--boundary\r\nno JSON\r\n": "the body must be",
	} {
		code, text := ask(s, body)
		must.Eq(t, http.StatusBadRequest, code)
		must.StrContains(t, text, want)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/predict", nil))
	must.Eq(t, http.StatusMethodNotAllowed, w.Code)
	w = httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	must.Eq(t, "ok\n", w.Body.String())
	must.Eq(t, int64(11), s.Take().Failed)
}

func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(f), wait.Timeout(30*time.Second), wait.Gap(time.Millisecond)), must.Sprint(what))
}

func queued(s *Server) int { return len(s.jobs) }

// busy starts a long batch.
func busy(t *testing.T, ctx context.Context, s *Server) (ended <-chan string) {
	done := make(chan string, 1)
	go func() {
		code, text := askWith(ctx, s, `{"work": 1e5}`)
		done <- fmt.Sprint(code, " ", text)
	}()
	until(t, "taken", func() bool { return s.busy.Load() == 1 })
	return done
}

func TestQueue(t *testing.T) {
	c := config(t, "mlp")
	c.Queue = 2
	s := start(t, c)
	first := busy(t, context.Background(), s)
	codes := make(chan int, 2)
	for range 2 {
		go func() {
			code, _ := ask(s, "")
			codes <- code
		}()
	}
	until(t, "two wait", func() bool { return queued(s) == 2 })
	code, text := ask(s, "")
	must.Eq(t, http.StatusServiceUnavailable, code)
	must.StrContains(t, text, "too many requests wait already")
	must.Eq(t, int64(1), s.Take().Rejected)

	s.Drain()
	code, text = ask(s, "") // immediate, during a batch
	must.Eq(t, http.StatusServiceUnavailable, code)
	must.StrContains(t, text, "shutting down")
	s.Abort()
	must.StrContains(t, <-first, "503 the service is shutting down")
	must.Eq(t, 503, <-codes)
	must.Eq(t, 503, <-codes)
	s.Close()
	s.Close()
	code, _ = ask(s, "")
	must.Eq(t, 503, code)
	must.Eq(t, int64(0), s.Take().Batches)
}

func TestTheClientGivesUp(t *testing.T) {
	s := start(t, config(t, "mlp"))
	ctx, cancel := context.WithCancel(context.Background())
	first := busy(t, ctx, s)
	cancel()
	must.StrContains(t, <-first, "the client gave up")
	answer(t, s, "") // the next one is served
	p := s.Take()
	must.Eq(t, int64(1), p.Failed)
	must.Eq(t, int64(1), p.Batches)
}

func TestDiverged(t *testing.T) {
	c := config(t, "mlp")
	c.Params[0] = math.NaN()
	code, text := ask(start(t, c), "")
	must.Eq(t, http.StatusInternalServerError, code)
	must.StrContains(t, text, "diverged")
}

func TestBadConfig(t *testing.T) {
	c := config(t, "mlp")
	start(t, c)
	_, err := New(c) // the names are taken
	must.ErrorContains(t, err, "failed to register metrics")
	c.Params = c.Params[1:]
	_, err = New(c)
	must.ErrorContains(t, err, "parameters, not")
}

func TestPeriodsAndMetrics(t *testing.T) {
	c := config(t, "mlp")
	registry := prometheus.NewRegistry()
	c.Registry = registry
	s := start(t, c)
	s.Handle("GET /more", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "more") }))
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/more", nil))
	must.Eq(t, "more", w.Body.String())

	sum := 0.0
	for i := range 7 {
		sum += answer(t, s, "").ResponseS
		if i == 3 {
			p := s.Take()
			must.Eq(t, int64(4), p.Batches)
			must.Eq(t, int64(4), p.Responses.Count())
			must.Less(t, 1e-9, math.Abs(p.Responses.Mean()-sum/4))
		}
	}
	p := s.Take()
	must.Eq(t, int64(7), p.Batches) // since the start
	must.Eq(t, int64(3), p.Responses.Count())
	ask(s, "{")

	families, err := registry.Gather()
	must.NoError(t, err)
	byName := map[string]*dto.MetricFamily{}
	for _, f := range families {
		byName[f.GetName()] = f
	}
	h := byName["response_seconds"].GetMetric()[0].GetHistogram()
	must.Eq(t, uint64(7), h.GetSampleCount())
	must.Less(t, 1e-9, math.Abs(h.GetSampleSum()-sum))
	buckets := h.GetBucket()
	must.Greater(t, 600, buckets[len(buckets)-1].GetUpperBound())
	results := map[string]float64{}
	for _, m := range byName["requests_total"].GetMetric() {
		results[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	must.Eq(t, map[string]float64{"ok": 7, "rejected": 0, "failed": 1}, results)
	must.Eq(t, 0.0, byName["queued_requests"].GetMetric()[0].GetGauge().GetValue())
}
