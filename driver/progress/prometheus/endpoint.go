// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package prometheus reads a job's progress, or a service's response time, from its
// Prometheus endpoint.
//
// A goroutine scrapes at an interval, so a hanging endpoint blocks nothing else.
// Answers are untrusted: bounded in size and time, without redirects, and never quoted
// in errors.
//
// # Reports
//
//   - Gauges, counters and untyped metrics: a changed value, or an unchanged one after ten
//     intervals, because a scrape is not a measurement: a target that needs three reports
//     must not be reached by reading one value three times. NaN means "not measured"
//     before the first number and divergence after. Counters are summed; several gauges
//     are an error unless labels choose one.
//   - Summaries: the value of the configured quantile, when the count has risen.
//   - Histograms: the quantile of the observations since the last scrape, as by PromQL's
//     histogram_quantile; no report without new ones. The first scrape starts the count; a
//     count that falls means a restarted process. The series chosen by labels are summed.
//
// The metric's name is that of its TYPE line, exactly. A missing label equals an empty
// one, as in Prometheus. Without a metric, each new value of the steps done is a step
// report.
//
// # Errors
//
// Poll returns each kind of error once; Note lasts as long as the cause: an answer that
// is no metrics text, a status other than 200, an answer too large, an unusable metric,
// three consecutive timeouts. A refused connection, an unready service (502, 503, 504)
// and a missing metric are no errors: the job may be starting or gone.
package prometheus

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"mime"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ebbtide/ebbtide/driver/progress"
)

const (
	DefaultInterval = 2 * time.Second
	DefaultTimeout  = 2 * time.Second
)

const (
	maxBody     = 4 << 20
	maxQueue    = 1024 // unpolled reports
	maxURL      = 2048 // bytes
	maxTimeouts = 3    // consecutive timeouts before an error
	repeatOnce  = 10   // intervals before an unchanged value is reported again
)

// ErrClosed is returned by Poll after Close.
var ErrClosed = errors.New("metrics endpoint: closed")

// Options configure the scrapes. The zero value is valid.
type Options struct {
	// Reach limits the endpoint's address; nil allows none.
	Reach *Reach
	// Interval between scrapes, Timeout of each; zero means 2 s.
	Interval, Timeout time.Duration
	// Quantile, in (0, 1], of histograms and summaries; zero means
	// progress.DefaultQuantile.
	Quantile float64
	// Labels choose among the metric's series.
	Labels map[string]string
	// Step and Total name metrics of steps done and in total; "" means none.
	Step, Total string
}

// Endpoint is a progress.Source that scrapes an endpoint. It is used by one goroutine,
// besides its own.
type Endpoint struct {
	url    string // with secrets
	name   string // without secrets
	client *http.Client
	opts   Options
	metric string
	goal   string
	parser *progress.Parser // for what follows from the metric's name
	now    func() time.Time
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended

	mu            sync.Mutex
	queue         []progress.Report
	stats         progress.Stats
	reportedKinds map[string]bool // kinds of errors
	newErrors     []error         // not yet returned by Poll
	trouble       string          // current error, or ""
	note          string          // what is missing now
	timeouts      int             // consecutive timeouts
	answers       int64           // successful scrapes
	latency       bool            // the metric is a histogram or a summary
	closed        bool

	last    *progress.Report   // last reported value
	repeats int                // scrapes with that value
	before  map[string]buckets // at the last scrape; nil = none
	series  string             // of the summary
	count   float64            // its observations at the last scrape
	polled  *progress.Report   // last report returned by Poll
}

var _ progress.Source = (*Endpoint)(nil)

// Open returns a source for an endpoint and starts scraping. Of cfg only Metric
// (required without opts.Step) and Goal apply. Errors are *progress.FieldErrors, joined.
func Open(address string, cfg progress.Config, opts Options) (*Endpoint, error) {
	e, err := newEndpoint(address, cfg, opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	e.cancel = cancel
	go e.run(ctx)
	return e, nil
}

func newEndpoint(address string, cfg progress.Config, opts Options) (*Endpoint, error) {
	var errs []error
	bad := func(field, value, format string, args ...any) {
		if len(value) > 200 {
			value = strings.ToValidUTF8(value[:200], "") + "…"
		}
		errs = append(errs, &progress.FieldError{Field: field, Value: value, Problem: fmt.Sprintf(format, args...)})
	}
	if opts.Reach == nil {
		opts.Reach = &Reach{}
	}
	u, name := parseURL(address, opts.Reach, bad)
	if cfg.Pattern != "" {
		bad("pattern", cfg.Pattern, "applies only to log lines: a metric of an endpoint is chosen with metric")
	}
	switch cfg.Preset {
	case "", progress.PresetAuto:
	default:
		bad("preset", cfg.Preset, "applies only to log lines: remove it")
	}
	// The caller has used the rest of cfg to find the endpoint.
	cfg = progress.Config{Metric: cfg.Metric, Goal: cfg.Goal}
	if cfg.Metric == "" && opts.Step == "" {
		bad("metric", "", "must name the metric of the endpoint, as in its TYPE line (or step that of the steps done)")
	}
	parser, err := progress.NewParser(cfg)
	if err != nil {
		errs = append(errs, err)
	}

	defaults := func(field string, d *time.Duration, fallback time.Duration) {
		if *d < 0 {
			bad(field, d.String(), "must not be negative")
		}
		if *d == 0 {
			*d = fallback
		}
	}
	defaults("interval", &opts.Interval, DefaultInterval)
	defaults("timeout", &opts.Timeout, DefaultTimeout)
	if opts.Quantile == 0 {
		opts.Quantile = progress.DefaultQuantile
	}
	if !(opts.Quantile > 0 && opts.Quantile <= 1) {
		bad("quantile", fmt.Sprint(opts.Quantile), "must be greater than 0 and at most 1")
	}
	for _, l := range slices.Sorted(maps.Keys(opts.Labels)) {
		switch {
		case l == "":
			bad("labels", l, "must not have an empty name")
		case l == "__name__":
			bad("labels", l, "cannot choose the metric: set metric")
		case l == "quantile" || l == "le":
			bad("labels", l, "is no label to choose by: set quantile")
		}
	}
	opts.Labels = maps.Clone(opts.Labels)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}

	e := &Endpoint{
		url: u.String(), name: name, client: newClient(opts), opts: opts,
		metric: cfg.Metric, goal: cfg.Goal, parser: parser, now: time.Now,
		cancel: func() {}, done: make(chan struct{}),
		reportedKinds: map[string]bool{},
		note:          "waiting for " + name,
	}
	return e, nil
}

// parseURL validates an address and returns a form for display, without user, query and
// fragment, which may be secret.
func parseURL(address string, reach *Reach, bad func(field, value, format string, args ...any)) (*url.URL, string) {
	const example = "such as http://127.0.0.1:9090/metrics"
	if address == "" {
		bad("prometheus", "", "must be an address, %s", example)
		return nil, ""
	}
	// Parse's error may quote any part of the address.
	u, err := url.Parse(address)
	if err != nil || len(address) > maxURL || u.Opaque != "" || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		shown := ""
		if err == nil && u.Scheme != "" && u.Opaque == "" && !strings.Contains(u.Host+u.Path, "@") {
			shown = u.Scheme + "://" + u.Host
		}
		bad("prometheus", shown, "must be an http or https address of at most %d bytes, %s", maxURL, example)
		return nil, ""
	}
	name := u.Scheme + "://" + u.Host
	if !strings.Contains(u.Path, "@") { // the end of a password with a slash
		name += u.EscapedPath()
	}
	u.Fragment = ""
	if len(name) > 200 {
		name = strings.ToValidUTF8(name[:200], "") + "…"
	}
	if err := reach.Check(u); err != nil {
		bad("prometheus", u.Scheme+"://"+u.Host, "%s", err)
	}
	return u, name
}

func newClient(opts Options) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            opts.Reach.Dial,
			DisableCompression:     true, // the endpoint is local
			MaxIdleConns:           1,
			IdleConnTimeout:        10 * opts.Interval,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (e *Endpoint) run(ctx context.Context) {
	defer close(e.done)
	defer e.client.CloseIdleConnections()
	tick := time.NewTicker(e.opts.Interval)
	defer tick.Stop()
	for {
		e.scrape(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

type failure struct {
	kind string // reported once
	text string // follows the name of the endpoint
	wait bool   // it may be starting: in Note, but no error
}

func (e *Endpoint) scrape(ctx context.Context) {
	body, openMetrics, t := e.get(ctx)
	if ctx.Err() != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats.Bytes += int64(len(body))
	e.note = ""
	if t != nil && t.kind == "slow" {
		e.timeouts++
		t.wait = e.timeouts < maxTimeouts
	} else {
		e.timeouts = 0
	}
	if t == nil {
		t = e.take(body, openMetrics)
	}
	switch {
	case t == nil:
		e.trouble = ""
	case t.wait:
		e.trouble, e.note = "", e.name+" "+t.text
		if e.answers == 0 {
			e.note = "waiting for " + e.name + ", which " + t.text
		}
	default:
		e.trouble = e.name + " " + t.text
		if !e.reportedKinds[t.kind] {
			e.reportedKinds[t.kind] = true
			e.newErrors = append(e.newErrors, errors.New("metrics endpoint "+e.trouble))
		}
	}
}

const openMetricsType = "application/openmetrics-text"

func (e *Endpoint) get(ctx context.Context) (body []byte, openMetrics bool, t *failure) {
	ctx, cancel := context.WithTimeout(ctx, e.opts.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url, nil)
	if err != nil {
		return nil, false, &failure{kind: "request", text: "cannot be scraped"} // unreachable: the URL was parsed
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4, "+openMetricsType+";version=1.0.0;q=0.5")
	req.Header.Set("User-Agent", "ebbtide")
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, false, e.failed(err)
	}
	defer resp.Body.Close()

	switch code := resp.StatusCode; {
	case code == http.StatusOK:
	case code >= 300 && code < 400:
		return nil, false, &failure{kind: "redirect", text: fmt.Sprintf("answers with status %d, and redirects are not followed", code)}
	case code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout:
		return nil, false, &failure{kind: "ready", text: fmt.Sprintf("is not ready (status %d)", code), wait: true}
	default:
		return nil, false, &failure{kind: fmt.Sprint("status ", code), text: fmt.Sprintf("answers with status %d", code)}
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case err != nil || kind == "" || kind == "text/plain" || kind == openMetricsType || kind == "application/octet-stream":
	default:
		if !plain(kind) {
			kind = "something"
		}
		return nil, false, &failure{kind: "type", text: "answers " + kind + ", not metrics in Prometheus' text format"}
	}

	if coding := resp.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return nil, false, &failure{kind: "encoding", text: "answers in an encoding that was not requested"}
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, false, e.failed(err)
	case len(body) > maxBody:
		return nil, false, &failure{kind: "large", text: fmt.Sprintf("answers more than %d MiB", maxBody>>20)}
	}
	return body, kind == openMetricsType, nil
}

func plain(kind string) bool {
	return len(kind) <= 80 && !strings.ContainsFunc(kind, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '/' || r == '-' || r == '.' || r == '+')
	})
}

// failed explains a failed request in its own words: the client's error may contain the
// address or the answer.
func (e *Endpoint) failed(err error) *failure {
	var timeout interface{ Timeout() bool }
	var op *net.OpError
	var cert *tls.CertificateVerificationError
	var code syscall.Errno
	var refused refusal
	switch {
	case errors.As(err, &refused):
		return &failure{kind: "refused", text: "is not scraped: " + refused.Error()}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return &failure{kind: "slow", text: fmt.Sprintf("does not answer within %v", e.opts.Timeout)}
	case errors.As(err, &cert):
		return &failure{kind: "tls", text: "has a certificate that is not trusted"}
	case errors.As(err, &op) && op.Op == "dial":
		text := "cannot be reached"
		if errors.As(err, &code) {
			text += ": " + code.Error()
		}
		return &failure{kind: "dial", text: text, wait: true}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return &failure{kind: "cut", text: "ends the connection before its answer is complete", wait: true}
	}
	return &failure{kind: "http", text: "does not answer as " + e.url[:strings.IndexByte(e.url, ':')]}
}

func (e *Endpoint) wants(name string) bool {
	if rest, ok := strings.CutPrefix(name, e.metric); ok && e.metric != "" {
		switch rest {
		case "", "_bucket", "_count", "_sum", "_total":
			return true
		}
	}
	return name != "" && (name == e.opts.Step || name == e.opts.Total)
}

func (e *Endpoint) take(body []byte, openMetrics bool) *failure {
	p, err := parse(body, openMetrics, e.wants)
	e.stats.Lines += p.lines
	if err != nil {
		return &failure{kind: "text", text: "answers text that is not metrics in Prometheus' format"}
	}
	if p.full {
		return &failure{kind: "many", text: fmt.Sprintf("has more than %d samples of %q", maxSamples, e.metric)}
	}
	e.answers++
	if e.metric == "" {
		return e.stepOnly(&p)
	}

	var values, totals, summary, histogram []sample
	chosen := 0 // of the metric, before label selection
	for _, s := range p.samples {
		rest, ok := strings.CutPrefix(s.name, e.metric)
		if !ok {
			continue
		}
		var to *[]sample
		switch {
		case rest == "" && (p.types[e.metric] == "summary" || s.label("quantile") != "" && p.types[e.metric] == ""):
			to = &summary
		case rest == "" && p.types[e.metric] != "histogram":
			to = &values
		case rest == "_total":
			to = &totals
		case rest == "_bucket" && (p.types[e.metric] == "histogram" || p.types[e.metric] == ""):
			to = &histogram
		case rest == "_count" && p.types[e.metric] == "histogram":
			to = &histogram
		default:
			continue
		}
		chosen++
		if e.matches(&s) {
			*to = append(*to, s)
		}
	}
	kind := p.types[e.metric]
	switch {
	case len(histogram) > 0:
		return e.histogram(&p, histogram)
	case len(summary) > 0:
		return e.summary(&p, summary)
	case len(values) == 0 && kind != "histogram" && kind != "summary":
		values, kind = totals, "counter" // OpenMetrics names a counter name_total
	}
	if len(values) > 0 {
		return e.value(&p, values, kind)
	}
	e.before = map[string]buckets{} // whatever it counts later is new
	switch {
	case chosen > 0:
		return &failure{kind: "labels", text: fmt.Sprintf("has %q, but with other labels than %s", e.metric, e.labels()), wait: true}
	case kind == "summary":
		return &failure{kind: "summary", text: fmt.Sprintf("has %q as a summary without quantiles: use a histogram or a gauge", e.metric)}
	}
	text := fmt.Sprintf("has no metric %q yet", e.metric)
	if others := e.others(&p); others != "" {
		text += "; it has " + others
	}
	return &failure{kind: "metric", text: text, wait: true}
}

func (e *Endpoint) others(p *page) string {
	const most = 8
	names := slices.DeleteFunc(slices.Clone(p.others), func(n string) bool {
		for _, prefix := range []string{"go_", "process_", "promhttp_", "python_"} {
			if strings.HasPrefix(n, prefix) {
				return true
			}
		}
		return strings.ContainsFunc(n, func(r rune) bool { return r < ' ' || r == 0x7f })
	})
	if more := len(names) - most; more > 0 {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(names, ", ")
}

func (e *Endpoint) matches(s *sample) bool {
	for name, value := range e.opts.Labels {
		if s.label(name) != value {
			return false
		}
	}
	return true
}

func (e *Endpoint) labels() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(e.opts.Labels)) {
		all = append(all, fmt.Sprintf("%s=%q", name, e.opts.Labels[name]))
	}
	return "{" + strings.Join(all, ", ") + "}"
}

func (e *Endpoint) report(p *page, value float64) {
	r := progress.Report{Time: e.now(), Metric: e.metric, Value: value, Step: math.NaN(), Total: math.NaN()}
	e.steps(p, &r)
	e.push(r)
}

// stepOnly handles an endpoint without a metric.
func (e *Endpoint) stepOnly(p *page) *failure {
	r := progress.Report{Time: e.now(), Value: math.NaN(), Step: math.NaN(), Total: math.NaN()}
	e.steps(p, &r)
	if math.IsNaN(r.Step) {
		text := fmt.Sprintf("has no metric %q yet", e.opts.Step)
		if others := e.others(p); others != "" {
			text += "; it has " + others
		}
		return &failure{kind: "metric", text: text, wait: true}
	}
	if e.last == nil || e.last.Step != r.Step {
		e.last = &r
		e.push(r)
	}
	return nil
}

func (e *Endpoint) steps(p *page, r *progress.Report) {
	for _, s := range p.samples {
		if e.metric == "" && !e.matches(&s) {
			continue // labels choose among the metric's series, if there is one
		}
		if !(s.value >= 0 && s.value < 1<<53) {
			continue
		}
		if s.name == e.opts.Step && math.IsNaN(r.Step) {
			r.Step = s.value
		}
		if s.name == e.opts.Total && math.IsNaN(r.Total) {
			r.Total = s.value
		}
	}
}

func (e *Endpoint) push(r progress.Report) {
	if len(e.queue) >= maxQueue {
		e.queue = slices.Delete(e.queue, 0, 1)
	}
	e.queue = append(e.queue, r)
	e.stats.Reports++
}

// value handles a gauge, a counter or an untyped metric.
func (e *Endpoint) value(p *page, values []sample, kind string) *failure {
	v := values[0].value
	for _, s := range values[1:] {
		if kind != "counter" {
			return &failure{kind: "series", text: fmt.Sprintf("has %d series of %q: set labels so that they choose one", len(values), e.metric)}
		}
		v += s.value
	}
	r := progress.Report{Time: e.now(), Metric: e.metric, Value: v, Step: math.NaN(), Total: math.NaN()}
	e.steps(p, &r)
	if e.last == nil && math.IsNaN(v) {
		return nil // not set yet
	}
	if l := e.last; l != nil && same(l.Value, v) && same(l.Step, r.Step) {
		if e.repeats++; e.repeats < repeatOnce {
			return nil
		}
	}
	e.last, e.repeats = &r, 0
	e.push(r)
	return nil
}

func same(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) }

func (e *Endpoint) summary(p *page, samples []sample) *failure {
	e.latency = true
	var found []sample
	var have []string
	for _, s := range samples {
		q, err := strconv.ParseFloat(s.label("quantile"), 64)
		if err != nil {
			continue
		}
		if math.Abs(q-e.opts.Quantile) < 1e-9 {
			found = append(found, s)
		}
		if text := fmt.Sprint(q); !slices.Contains(have, text) && len(have) < 16 {
			have = append(have, text)
		}
	}
	switch {
	case len(found) == 0:
		return &failure{kind: "quantile", text: fmt.Sprintf("has %q as a summary without the quantile %v; it has %s", e.metric, e.opts.Quantile, strings.Join(have, ", "))}
	case len(found) > 1:
		return &failure{kind: "series", text: fmt.Sprintf("has %d series of %q: set labels so that they choose one", len(found), e.metric)}
	}
	key := found[0].key("quantile")
	for i := range p.samples {
		s := &p.samples[i]
		if s.name != e.metric+"_count" || s.key("quantile") != key {
			continue
		}
		before := e.count
		if key != e.series {
			before = 0
		} else if s.value < before {
			e.stats.Truncated++
		}
		e.series, e.count = key, s.value
		if s.value == before {
			return nil // no observation
		}
	}
	if v := found[0].value; !math.IsNaN(v) {
		e.report(p, v)
	}
	return nil
}

// histogram handles the observations since the last scrape.
func (e *Endpoint) histogram(p *page, samples []sample) *failure {
	e.latency = true
	all := histograms(samples, e.metric)
	bounds := 0
	for _, b := range all {
		bounds = max(bounds, len(b))
	}
	if bounds < 2 {
		return &failure{kind: "buckets", text: fmt.Sprintf("has %q as a histogram without buckets (a native one?): serve it with buckets", e.metric)}
	}
	first := e.before == nil
	delta := buckets{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		d, reset := all[key].since(e.before[key])
		if reset && e.before[key] != nil {
			e.stats.Truncated++
		}
		delta.add(d)
	}
	e.before = all
	if first {
		return nil
	}
	if v, ok := delta.quantile(e.opts.Quantile); ok {
		e.report(p, v)
	}
	return nil
}

// Poll returns the reports and new errors since the last call, without waiting for a
// scrape.
func (e *Endpoint) Poll(ctx context.Context) ([]progress.Report, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	reports, errs := e.queue, e.newErrors
	e.queue, e.newErrors = nil, nil
	if n := len(reports); n > 0 {
		e.polled = &reports[n-1]
	}
	return reports, errors.Join(errs...)
}

func (e *Endpoint) Goal() string {
	if e.goal != "" || e.metric == "" {
		return e.goal
	}
	return e.parser.Goal()
}

func (e *Endpoint) Note() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.trouble != "":
		return e.trouble
	case e.note != "":
		return e.note
	case e.latency:
		return "" // it falls, whatever its name
	}
	return e.parser.Note()
}

// Stats counts what was read; Truncated counts restarts of a histogram or summary.
func (e *Endpoint) Stats() progress.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

// offset is the last reported value, so that a later process does not report it again.
type offset struct {
	Value *float64 `json:"value,omitempty"`
	Step  *float64 `json:"step,omitempty"`
}

// Offset returns the last report; an endpoint has no position.
func (e *Endpoint) Offset() json.RawMessage {
	e.mu.Lock()
	defer e.mu.Unlock()
	var o offset
	if e.polled != nil && (e.polled.StepOnly() || !math.IsNaN(e.polled.Value) && !math.IsInf(e.polled.Value, 0)) {
		if !e.polled.StepOnly() {
			o.Value = &e.polled.Value
		}
		if !math.IsNaN(e.polled.Step) {
			o.Step = &e.polled.Step
		}
	}
	data, err := json.Marshal(o)
	if err != nil {
		return nil // both are finite
	}
	return data
}

// SetOffset sets the last report of an earlier process.
func (e *Endpoint) SetOffset(data json.RawMessage) {
	var o offset
	if json.Unmarshal(data, &o) != nil || (o.Value == nil) != (e.metric == "") {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last != nil {
		return
	}
	e.last = &progress.Report{Metric: e.metric, Value: math.NaN(), Step: math.NaN(), Total: math.NaN()}
	if o.Value != nil {
		e.last.Value = *o.Value
	}
	if o.Step != nil {
		e.last.Step = *o.Step
	}
	if e.polled == nil {
		r := *e.last
		e.polled = &r
	}
}

// Close ends the scrapes and waits for the current one to stop.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	closed := e.closed
	e.closed = true
	e.mu.Unlock()
	if closed {
		return nil
	}
	e.cancel()
	<-e.done
	return nil
}
