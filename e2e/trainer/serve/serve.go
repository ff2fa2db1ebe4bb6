// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package serve answers requests with a trained model. A request is a batch of generated inputs that is really
// evaluated; batches are evaluated one after the other, in the order of their arrival, each by all threads. With
// one request at a time the response time is the CPU time of a batch divided by the CPUs that the service gets.
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
	pieceRows = 10      // rows evaluated as one piece of work, between which a batch can be given up
	maxBody   = 1 << 12 // bytes of a request

	// FirstInput is the index of the first input made up here; no training run reaches it.
	FirstInput = 1 << 41

	// MaxWork bounds by how much the work of server and request together multiply a batch's cost.
	MaxWork = 1e6
)

// Config is what a server serves.
type Config struct {
	Spec    model.Spec
	Seed    uint64
	Params  []float64 // of the trained model; read only
	Threads int
	Batch   int     // rows of a batch
	Work    float64 // batches evaluated for one, ≥ 1
	Queue   int     // batches that may wait
	// Registry gets the server's metrics.
	Registry prometheus.Registerer
}

// Request is the body of POST /predict. An empty body asks for the defaults.
type Request struct {
	// Work multiplies the batch's cost, and its rows; 0 = 1.
	Work float64 `json:"work"`
	// First is the index of the first input, so that an answer can be had twice; 0 = inputs not seen before.
	First uint64 `json:"first"`
}

// Answer is what a batch gave.
type Answer struct {
	Model      string   `json:"model"`
	First      uint64   `json:"first"` // index of the first input
	Rows       int      `json:"rows"`
	Targets    int      `json:"targets"`              // predictions: a row has several where the model reads sequences
	Loss       float64  `json:"loss"`                 // mean over the targets
	Classes    []int64  `json:"classes,omitempty"`    // how often each class was predicted
	Confidence *float64 `json:"confidence,omitempty"` // mean probability of what was predicted
	Accuracy   *float64 `json:"accuracy,omitempty"`
	ResponseS  float64  `json:"response_s"` // from the arrival of the request to the end of its batch
	CPUS       float64  `json:"cpu_s"`      // CPU time of this process while the batch was evaluated
}

// Period is what came to pass between two reports.
type Period struct {
	Batches   int64 // answered, since the start
	Responses latency.Digest
	Rejected  int64 // requests refused because too many waited
	Failed    int64 // requests that were bad, given up by the client, or cut off by the end
}

var (
	errFull = errors.New("too many requests wait already")
	errEnd  = errors.New("the service is shutting down")
	errNaN  = errors.New("the model has diverged: its loss is no number")
)

// Server is an http.Handler. Close ends it.
type Server struct {
	config  Config
	model   model.Model
	pool    *nn.Pool
	threads []thread
	mux     *http.ServeMux
	jobs    chan *job
	worker  sync.WaitGroup
	next    atomic.Uint64 // index of the first input not yet handed out

	draining  chan struct{} // closed: what waits is refused
	aborted   atomic.Bool   // the batch in progress, too
	drainOnce sync.Once
	closeOnce sync.Once
	busy      atomic.Int32 // batches being evaluated: 0 or 1

	mu     sync.Mutex // of period, and of sending to jobs
	period Period

	response prometheus.Histogram
	requests *prometheus.CounterVec
}

// thread is a worker's room and sums.
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

// New starts a server for a model.
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
			// Fine, since a target is compared with a quantile, which is interpolated within a bucket; up to 15 minutes.
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

// Handle adds a handler, such as one for metrics.
func (s *Server) Handle(pattern string, h http.Handler) { s.mux.Handle(pattern, h) }

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Drain refuses all requests from now on, also those that wait. The batch in progress goes on.
func (s *Server) Drain() { s.drainOnce.Do(func() { close(s.draining) }) }

// Abort drains, and gives up the batch in progress.
func (s *Server) Abort() {
	s.Drain()
	s.aborted.Store(true)
}

// Close aborts, and waits until nothing runs. No request may arrive any more.
func (s *Server) Close() {
	s.Abort()
	s.closeOnce.Do(func() {
		s.mu.Lock()
		close(s.jobs) // nobody sends who has seen draining, under this lock
		s.mu.Unlock()
		s.worker.Wait()
		s.pool.Close()
	})
}

// Take returns what came to pass since the last call.
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
	_ = json.NewEncoder(w).Encode(j.answer) // the client's trouble if it does not read
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

// work evaluates one batch after the other.
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

// cpuSeconds is the CPU time of this process.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return math.NaN()
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
