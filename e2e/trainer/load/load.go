// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package load requests batches from a service and measures response times, in a closed loop of
// clients that wait for each response, or in an open one at a given rate.
package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/e2e/trainer/latency"
)

const (
	maxAnswer  = 1 << 20 // bytes read of an answer
	firstPause = 20 * time.Millisecond
	maxPause   = time.Second
)

type Config struct {
	Target      *url.URL
	Concurrency int           // closed loop's clients; 0 for an open loop
	Rate        float64       // requests per second of an open loop
	Even        bool          // equidistant requests instead of a Poisson process
	Open        int           // maximum concurrent requests of an open loop; others are dropped
	Seed        uint64        // of the Poisson process
	Requests    int64         // number of requests; 0 for no end
	Work        float64       // relative cost of batches; 0 for the service's
	Timeout     time.Duration // per request
	// Each is called after each request, not concurrently.
	Each func(Result)
}

// Result is one request. Its response time counts from when it was due, so an open loop's
// delays are the service's.
type Result struct {
	At      time.Time
	Seconds float64
	Error   string // kind; "" for none
}

// Kinds of errors other than an HTTP status ("status 503").
const (
	ErrorConnect = "connect" // no or a broken connection
	ErrorTimeout = "timeout"
	ErrorAnswer  = "answer"  // invalid or truncated HTTP
	ErrorDropped = "dropped" // not sent, as too many were in progress
)

// Count is a load's statistics.
type Count struct {
	Responses latency.Digest   // of answered requests
	Errors    map[string]int64 // of others
}

func (c *Count) Failed() (n int64) {
	for _, v := range c.Errors {
		n += v
	}
	return n
}

func (c *Count) add(r Result) {
	if r.Error == "" {
		c.Responses.Add(r.Seconds)
		return
	}
	if c.Errors == nil {
		c.Errors = map[string]int64{}
	}
	c.Errors[r.Error]++
}

type Load struct {
	config Config
	client *http.Client
	body   []byte

	mu            sync.Mutex
	period, total Count
	sent          int64
}

// New returns an idle load. A target without a path means /predict.
func New(c Config) *Load {
	if c.Target.Path == "" || c.Target.Path == "/" {
		c.Target = c.Target.JoinPath("/predict")
	}
	l := &Load{config: c}
	if c.Work > 0 {
		l.body = strconv.AppendFloat([]byte(`{"work": `), c.Work, 'g', -1, 64)
		l.body = append(l.body, '}')
	}
	connections := max(c.Concurrency, c.Open)
	l.client = &http.Client{
		Transport: &http.Transport{ // no proxy
			DialContext:  (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			MaxIdleConns: connections, MaxIdleConnsPerHost: connections, IdleConnTimeout: time.Minute, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return l
}

var ErrNotUp = errors.New("the target is not up")

// Wait waits until /healthz responds with anything but unavailable.
func (l *Load) Wait(ctx context.Context, limit time.Duration) error {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	health := *l.config.Target
	health.Path, health.RawPath, health.RawQuery = "/healthz", "", ""
	var last error
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := l.probe(bounded, health.String())
		if err == nil {
			return nil
		}
		if last == nil || bounded.Err() == nil { // the end of the wait explains nothing
			last = err
		}
		select {
		case <-time.After(pause):
		case <-bounded.Done():
			if err := ctx.Err(); err != nil {
				return err
			}
			return fmt.Errorf("%w: %s after %v: %w", ErrNotUp, l.config.Target.Redacted(), limit, last)
		}
	}
}

func (l *Load) probe(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	answer, err := l.client.Do(r)
	if err != nil {
		var wrapped *url.Error // its text repeats the address
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer))
	if answer.StatusCode == http.StatusServiceUnavailable {
		return errors.New(answer.Status)
	}
	return nil
}

// Run sends requests until ctx ends or all are sent. Those in progress at the end are not
// counted.
func (l *Load) Run(ctx context.Context) {
	defer l.client.CloseIdleConnections()
	if l.config.Concurrency > 0 {
		l.closed(ctx)
	} else {
		l.open(ctx)
	}
}

// take reports whether to send another request.
func (l *Load) take() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.config.Requests > 0 && l.sent == l.config.Requests {
		return false
	}
	l.sent++
	return true
}

func (l *Load) closed(ctx context.Context) {
	var clients sync.WaitGroup
	for range l.config.Concurrency {
		clients.Go(func() {
			pause := firstPause
			for ctx.Err() == nil && l.take() {
				if l.send(ctx, time.Now()) {
					pause = firstPause
					continue
				}
				// Back off from a service that rejects requests.
				sleep(ctx, pause)
				pause = min(2*pause, maxPause)
			}
		})
	}
	clients.Wait()
}

func (l *Load) open(ctx context.Context) {
	var requests sync.WaitGroup
	defer requests.Wait()
	random := rand.New(rand.NewPCG(l.config.Seed, 0))
	under := make(chan struct{}, l.config.Open)
	for next := time.Now(); ; {
		distance := 1.0
		if !l.config.Even {
			distance = random.ExpFloat64()
		}
		next = next.Add(time.Duration(distance / l.config.Rate * float64(time.Second)))
		if !sleep(ctx, time.Until(next)) || !l.take() {
			return
		}
		select {
		case under <- struct{}{}:
			due := next
			requests.Go(func() {
				l.send(ctx, due)
				<-under
			})
		default:
			l.count(Result{At: next, Error: ErrorDropped})
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// send reports whether there was a response.
func (l *Load) send(ctx context.Context, due time.Time) bool {
	kind := l.ask(ctx)
	if kind != "" && ctx.Err() != nil {
		return false // the end of this load is not the service's error
	}
	l.count(Result{At: due, Seconds: time.Since(due).Seconds(), Error: kind})
	return kind == ""
}

func (l *Load) ask(ctx context.Context) (kind string) {
	ctx, cancel := context.WithTimeout(ctx, l.config.Timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.config.Target.String(), bytes.NewReader(l.body))
	if err != nil {
		return ErrorConnect
	}
	if len(l.body) > 0 {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := l.client.Do(r)
	if err != nil {
		return classify(ctx, err)
	}
	defer func() { _ = answer.Body.Close() }()
	n, err := io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return classify(ctx, err)
	case answer.StatusCode != http.StatusOK:
		return "status " + strconv.Itoa(answer.StatusCode)
	case n > maxAnswer:
		return ErrorAnswer
	}
	return ""
}

func classify(ctx context.Context, err error) string {
	var broken *net.OpError
	switch {
	case ctx.Err() != nil:
		return ErrorTimeout
	case errors.As(err, &broken), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return ErrorConnect
	}
	return ErrorAnswer
}

func (l *Load) count(r Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.period.add(r)
	l.total.add(r)
	if l.config.Each != nil {
		l.config.Each(r)
	}
}

// Take returns the counts since the last call.
func (l *Load) Take() Count {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.period
	l.period = Count{}
	return c
}

// Total returns all counts once the load has ended.
func (l *Load) Total() *Count {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &l.total
}

// Summary is printed as JSON; missing numbers are null.
type Summary struct {
	Target     string           `json:"target"`
	DurationS  float64          `json:"duration_s"`
	Answered   int64            `json:"answered"`
	Failed     int64            `json:"failed"`
	Errors     map[string]int64 `json:"errors"` // by kind
	PerSecond  float64          `json:"per_second"`
	ResponseS  *float64         `json:"response_s"` // mean
	P50S       *float64         `json:"p50_s"`
	P95S       *float64         `json:"p95_s"`
	P99S       *float64         `json:"p99_s"`
	LongestS   *float64         `json:"longest_s"`
	Terminated string           `json:"terminated"` // the signal that ended the load, or ""
}

func (l *Load) Summary(took time.Duration) Summary {
	c := l.Total()
	d := &c.Responses
	s := Summary{
		Target: l.config.Target.Redacted(), DurationS: took.Seconds(), Answered: d.Count(), Failed: c.Failed(), Errors: c.Errors,
		ResponseS: finite(d.Mean()), P50S: finite(d.Quantile(0.5)), P95S: finite(d.Quantile(0.95)), P99S: finite(d.Quantile(0.99)),
	}
	if s.Errors == nil {
		s.Errors = map[string]int64{}
	}
	if took > 0 {
		s.PerSecond = float64(s.Answered) / took.Seconds()
	}
	if s.Answered > 0 {
		longest := d.Max()
		s.LongestS = &longest
	}
	return s
}

func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
