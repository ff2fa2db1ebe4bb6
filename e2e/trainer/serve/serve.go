// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package serve serves predictions of a trained model. Each request evaluates a batch of generated
// inputs; batches run sequentially on all threads. With requests in sequence the response time is a
// batch's CPU time divided by the service's CPUs.
package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebbtide/ebbtide/e2e/trainer/latency"
	"github.com/ebbtide/ebbtide/e2e/trainer/model"
	"github.com/ebbtide/ebbtide/e2e/trainer/nn"
)

const (
	pieceRows = 10      // rows per piece of work, between which a batch can be aborted
	maxBody   = 1 << 12 // bytes of a request

	// FirstInput is the first generated input, beyond any training run's.
	FirstInput = 1 << 41

	// MaxWork bounds a batch's cost factor of server and request together.
	MaxWork = 1e6
)

type Config struct {
	Spec     model.Spec
	Seed     uint64
	Params   []float64 // of the trained model; read only
	Threads  int
	Batch    int     // rows
	Work     float64 // evaluations per batch, ≥ 1
	Queue    int     // waiting batches
	Registry prometheus.Registerer
}

// Request is the body of POST /predict. An empty body means defaults.
type Request struct {
	// Work multiplies the batch's cost; 0 for 1.
	Work float64 `json:"work"`
	// First is the first input's index, for reproducible responses; 0 for new inputs.
	First uint64 `json:"first"`
}

type Answer struct {
	Model      string   `json:"model"`
	First      uint64   `json:"first"` // of the first input
	Rows       int      `json:"rows"`
	Targets    int      `json:"targets"`              // predictions; several per row for sequences
	Loss       float64  `json:"loss"`                 // mean
	Classes    []int64  `json:"classes,omitempty"`    // predictions by class
	Confidence *float64 `json:"confidence,omitempty"` // mean probability of the predictions
	Accuracy   *float64 `json:"accuracy,omitempty"`
	ResponseS  float64  `json:"response_s"` // from arrival to completion
	CPUS       float64  `json:"cpu_s"`      // of this process during the batch
}

// Period is the time between two reports.
type Period struct {
	Batches   int64 // answered, since the start
	Responses latency.Digest
	Rejected  int64 // rejected by a full queue
	Failed    int64 // bad, cancelled, or cut off by the end
}

var (
	errFull = errors.New("too many requests wait already")
	errEnd  = errors.New("the service is shutting down")
	errNaN  = errors.New("the model has diverged: its loss is no number")
)

// Server is an http.Handler. Close it.
type Server struct {
	config  Config
	model   model.Model
	pool    *nn.Pool
	threads []thread
	mux     *http.ServeMux
	jobs    chan *job
	worker  sync.WaitGroup
	next    atomic.Uint64 // index of the next new input

	draining  chan struct{} // closed: queued requests are rejected
	aborted   atomic.Bool   // the running batch, too
	drainOnce sync.Once
	closeOnce sync.Once
	busy      atomic.Int32 // 0 or 1

	mu     sync.Mutex // for period, and for sending to jobs
	period Period

	response prometheus.Histogram
	requests *prometheus.CounterVec
}

type thread struct {
	batch      model.Batch
	sums       model.Sums
	counts     []int64
	confidence float64
}

type job struct {
	ctx    context.Context
	first  uint64
	rows   int
	answer Answer
	done   chan error
}

func New(c Config) (*Server, error) {
	m := c.Spec.New(c.Seed)
	if len(c.Params) != m.Len() {
		return nil, fmt.Errorf("the model has %d parameters, not %d", m.Len(), len(c.Params))
	}
	s := &Server{
		config: c, model: m, pool: nn.NewPool(c.Threads), mux: http.NewServeMux(),
		jobs: make(chan *job, c.Queue), draining: make(chan struct{}),
		response: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "response_seconds", Help: "Time from the arrival of a request to the end of its batch.",
			// Fine, as quantiles are interpolated within buckets; up to 15 minutes.
			Buckets: prometheus.ExponentialBuckets(0.0005, 1.2, 80),
		}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "requests_total", Help: "Requests by what became of them.",
		}, []string{"result"}),
	}
	s.next.Store(FirstInput)
	for range s.pool.Threads() {
		s.threads = append(s.threads, thread{batch: m.NewBatch(pieceRows), counts: make([]int64, m.Classes())})
	}
	for _, result := range []string{"ok", "rejected", "failed"} {
		s.requests.WithLabelValues(result)
	}
	queued := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "queued_requests", Help: "Requests that wait.",
	}, func() float64 { return float64(len(s.jobs)) })
	busy := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "busy", Help: "1 while a batch is evaluated.",
	}, func() float64 { return float64(s.busy.Load()) })
	for _, collector := range []prometheus.Collector{s.response, s.requests, queued, busy} {
		if err := c.Registry.Register(collector); err != nil {
			s.pool.Close()
			return nil, fmt.Errorf("failed to register metrics: %w", err)
		}
	}
	s.mux.HandleFunc("POST /predict", s.predict)
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	s.worker.Go(s.work)
	return s, nil
}

func (s *Server) Handle(pattern string, h http.Handler) { s.mux.Handle(pattern, h) }

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Drain rejects all new and queued requests. The running batch continues.
func (s *Server) Drain() { s.drainOnce.Do(func() { close(s.draining) }) }

// Abort drains, and aborts the running batch.
func (s *Server) Abort() {
	s.Drain()
	s.aborted.Store(true)
}

// Close aborts and waits. The server must not receive further requests.
func (s *Server) Close() {
	s.Abort()
	s.closeOnce.Do(func() {
		s.mu.Lock()
		close(s.jobs) // senders check draining under this lock
		s.mu.Unlock()
		s.worker.Wait()
		s.pool.Close()
	})
}

// Take returns the period since the last call.
func (s *Server) Take() Period {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.period
	s.period = Period{Batches: p.Batches}
	return p
}

func (s *Server) predict(w http.ResponseWriter, r *http.Request) {
	arrival := time.Now()
	request, err := readRequest(w, r, MaxWork/s.config.Work)
	if err != nil {
		s.refuse(w, http.StatusBadRequest, err)
		return
	}
	rows := int(math.Round(float64(s.config.Batch) * s.config.Work * request.Work))
	j := &job{ctx: r.Context(), rows: rows, first: request.First, done: make(chan error, 1)}
	if j.first == 0 {
		j.first = s.next.Add(uint64(rows)) - uint64(rows)
	}
	if err := s.enqueue(j); err != nil {
		s.refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	switch err := <-j.done; {
	case errors.Is(err, errNaN):
		s.refuse(w, http.StatusInternalServerError, err)
		return
	case err != nil:
		s.refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	j.answer.ResponseS = time.Since(arrival).Seconds()
	s.response.Observe(j.answer.ResponseS)
	s.requests.WithLabelValues("ok").Inc()
	s.mu.Lock()
	s.period.Batches++
	s.period.Responses.Add(j.answer.ResponseS)
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(j.answer) // the client may not read it
}

func (s *Server) enqueue(j *job) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.draining:
		return errEnd
	default:
	}
	select {
	case s.jobs <- j:
		return nil
	default:
		return errFull
	}
}

func (s *Server) refuse(w http.ResponseWriter, status int, err error) {
	result := "failed"
	if errors.Is(err, errFull) {
		result = "rejected"
	}
	s.requests.WithLabelValues(result).Inc()
	s.mu.Lock()
	if result == "rejected" {
		s.period.Rejected++
	} else {
		s.period.Failed++
	}
	s.mu.Unlock()
	http.Error(w, err.Error(), status)
}

func readRequest(w http.ResponseWriter, r *http.Request, most float64) (Request, error) {
	request := Request{Work: 1}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	switch err := d.Decode(&request); {
	case errors.Is(err, io.EOF): // no body
	case err != nil:
		return request, fmt.Errorf("the body must be empty or JSON such as {\"work\": 2}: %w", err)
	case d.More():
		return request, errors.New("the body must be a single JSON object")
	}
	if request.Work == 0 {
		request.Work = 1
	}
	if !(request.Work >= 1 && request.Work <= most) {
		return request, fmt.Errorf("work: must be a number from 1 to %g, got %g", most, request.Work)
	}
	return request, nil
}

func (s *Server) work() {
	for j := range s.jobs {
		select {
		case <-s.draining:
			j.done <- errEnd
			continue
		default:
		}
		s.busy.Store(1)
		err := s.evaluate(j)
		s.busy.Store(0)
		j.done <- err
	}
}

func (s *Server) evaluate(j *job) error {
	cpu := cpuSeconds()
	for i := range s.threads {
		t := &s.threads[i]
		t.sums, t.confidence = model.Sums{}, 0
		clear(t.counts)
	}
	classes := s.model.Classes()
	s.pool.Do((j.rows+pieceRows-1)/pieceRows, func(worker, piece int) {
		if s.aborted.Load() || j.ctx.Err() != nil {
			return
		}
		t, rows := &s.threads[worker], min(pieceRows, j.rows-piece*pieceRows)
		for row := range rows {
			index := j.first + uint64(piece*pieceRows+row)
			t.batch.Load(row, index, 0)
		}
		sums := t.batch.Loss(s.config.Params, nil, rows)
		if classes > 0 {
			t.confidence += model.Predict(t.batch.Logits(rows), t.counts)
		}
		t.sums.Loss += sums.Loss
		t.sums.Correct += sums.Correct
		t.sums.Targets += sums.Targets
	})
	if s.aborted.Load() {
		return errEnd
	}
	if err := j.ctx.Err(); err != nil {
		return fmt.Errorf("the client gave up: %w", err)
	}

	a := Answer{Model: s.config.Spec.Name, First: j.first, Rows: j.rows}
	var loss, correct, confidence float64
	if classes > 0 {
		a.Classes = make([]int64, classes)
	}
	for i := range s.threads {
		t := &s.threads[i]
		a.Targets += t.sums.Targets
		loss += t.sums.Loss
		correct += float64(t.sums.Correct)
		confidence += t.confidence
		for class, n := range t.counts {
			a.Classes[class] += n
		}
	}
	n := float64(a.Targets)
	a.Loss = loss / n
	if math.IsNaN(a.Loss) || math.IsInf(a.Loss, 0) {
		return errNaN
	}
	if classes > 0 {
		accuracy, sure := correct/n, confidence/n
		a.Accuracy, a.Confidence = &accuracy, &sure
	}
	a.CPUS = cpuSeconds() - cpu
	j.answer = a
	return nil
}

func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return math.NaN()
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
