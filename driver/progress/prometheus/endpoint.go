// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package prometheus reads the progress of a job, or the response time of a service,
// from the metrics that it serves for Prometheus.
//
// The endpoint is asked at an interval, by a goroutine of its own, so that one that
// hangs hinders nobody. What it answers is not trusted: bounded in size and time, not
// followed elsewhere, and none of it is repeated in an error.
//
// # What is reported
//
//   - A gauge, a counter and an untyped metric: its value, when it has changed; one
//     that stays the same is reported again after ten intervals only. A scrape is not
//     a measurement: a target that has to be reached in three reports must not be
//     reached by one that was read three times. NaN before the first number means
//     that nothing was measured yet, and later that the training diverged. Of several
//     counters the sum is taken; several gauges are an error, and labels choose one.
//   - A summary: the value with the quantile label that is asked for, when its count
//     has risen.
//   - A histogram: the quantile, estimated as PromQL's histogram_quantile does, of the
//     observations since the last scrape. Without new ones there is no report. The
//     first scrape is where counting begins; a count that falls is that of a process
//     that was started again, so all it counted is new. The series that the labels
//     choose are added up.
//
// The name of the metric is the one in its TYPE line, and exact. Labels are compared
// as Prometheus does, so one that is not there equals the empty one.
//
// # What is an error
//
// Poll tells each kind of trouble once, and Note for as long as it lasts: an answer
// that is no metrics text, a status that is not 200, one that is too large, a metric
// that cannot be read as asked for, three scrapes in a row without an answer in time.
// That nothing listens, or the service is not ready (502, 503, 504), is none: the job
// may be slow to start, or be gone. Neither is a metric that is not there yet.
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

// Defaults of Options.
const (
	DefaultInterval = 2 * time.Second
	DefaultTimeout  = 2 * time.Second
)

const (
	maxBody    = 4 << 20
	maxQueue   = 1024 // reports that nobody has polled
	maxURL     = 2048 // bytes
	patience   = 3    // answers in a row that do not come in time
	repeatOnce = 10   // intervals before a value that stays the same is reported again
)

// ErrClosed is returned by Poll after Close.
var ErrClosed = errors.New("metrics endpoint: closed")

// Options say how an endpoint is asked. The zero value is fine.
type Options struct {
	// Reach is where the endpoint may be; nil is nowhere.
	Reach *Reach
	// Interval is the time between two scrapes, Timeout that for one of them; zero
	// means 2 s each.
	Interval, Timeout time.Duration
	// Quantile, in (0, 1], is what is reported of histograms and summaries; zero
	// means progress.DefaultQuantile.
	Quantile float64
	// Labels choose among the series of the metric.
	Labels map[string]string
	// Step and Total name metrics with the steps that are done and that there will
	// be; empty means that there are none.
	Step, Total string
}

// Endpoint is a progress.Source that asks a metrics endpoint. It is used by one
// goroutine, besides its own.
type Endpoint struct {
	url    string // as it is asked
	name   string // as it is shown
	client *http.Client
	opts   Options
	metric string
	goal   string
	parser *progress.Parser // for what follows from the metric's name
	now    func() time.Time
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended

	mu      sync.Mutex
	queue   []progress.Report
	stats   progress.Stats
	told    map[string]bool // kinds of errors
	fresh   []error         // that Poll has not returned yet
	trouble string          // what is wrong now, "" if nothing
	note    string          // what is awaited now
	slow    int             // scrapes in a row without an answer in time
	answers int64           // that were read
	latency bool            // the metric is a histogram or a summary
	closed  bool

	last    *progress.Report   // what was reported last, of a value
	repeats int                // scrapes since that had the same
	before  map[string]buckets // at the last scrape; nil = there was none
	series  string             // of the summary
	count   float64            // its observations at the last scrape
	polled  *progress.Report   // what Poll returned last
}

var _ progress.Source = (*Endpoint)(nil)

// Open returns a source that asks an endpoint, and begins to. cfg names the metric,
// which is needed, and its goal; nothing else of it is used. The errors are those of the configuration, all of them, each a
// *progress.FieldError: of "prometheus" for the address, "quantile", "labels",
// "interval", "timeout", "step", "total", and the fields of cfg.
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
		bad("pattern", cfg.Pattern, "is for lines of a log: a metric of an endpoint is chosen with metric")
	}
	switch cfg.Preset {
	case "", progress.PresetAuto:
	default:
		bad("preset", cfg.Preset, "is for lines of a log: leave it out")
	}
	// The rest of cfg says where the endpoint is, which the caller knows.
	cfg = progress.Config{Metric: cfg.Metric, Goal: cfg.Goal}
	if cfg.Metric == "" {
		bad("metric", "", "must name the metric of the endpoint, as in its TYPE line")
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
		told: map[string]bool{},
		note: "waits for " + name,
	}
	return e, nil
}

// parseURL checks an address, and returns how it may be shown: without its user, its
// query and its fragment, which may hold what is secret.
func parseURL(address string, reach *Reach, bad func(field, value, format string, args ...any)) (*url.URL, string) {
	const example = "such as http://127.0.0.1:9090/metrics"
	if address == "" {
		bad("prometheus", "", "must be an address, %s", example)
		return nil, ""
	}
	// An error of Parse may repeat any part of the address.
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
	if !strings.Contains(u.Path, "@") { // the end of a password that had a slash
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

// newClient returns a client that goes where it is told and nowhere else: it knows no
// proxy and follows no redirect.
func newClient(opts Options) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            opts.Reach.Dial,
			DisableCompression:     true, // the way is short
			MaxIdleConns:           1,
			IdleConnTimeout:        10 * opts.Interval,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// run asks until the context ends.
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

// trouble is what hinders a scrape. An error of it tells.
type trouble struct {
	kind string // told once
	text string // follows the name of the endpoint
	wait bool   // it may be slow to start: Note tells, Poll does not
}

// scrape asks once and takes what is new.
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
		e.slow++
		t.wait = e.slow < patience
	} else {
		e.slow = 0
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
			e.note = "waits for " + e.name + ", which " + t.text
		}
	default:
		e.trouble = e.name + " " + t.text
		if !e.told[t.kind] {
			e.told[t.kind] = true
			e.fresh = append(e.fresh, errors.New("metrics endpoint "+e.trouble))
		}
	}
}

const openMetricsType = "application/openmetrics-text"

// get asks for the text, which may be in OpenMetrics' format.
func (e *Endpoint) get(ctx context.Context) (body []byte, openMetrics bool, t *trouble) {
	ctx, cancel := context.WithTimeout(ctx, e.opts.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url, nil)
	if err != nil {
		return nil, false, &trouble{kind: "request", text: "cannot be asked"} // it was parsed before
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
		return nil, false, &trouble{kind: "redirect", text: fmt.Sprintf("answers with status %d, and redirects are not followed", code)}
	case code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout:
		return nil, false, &trouble{kind: "ready", text: fmt.Sprintf("is not ready (status %d)", code), wait: true}
	default:
		return nil, false, &trouble{kind: fmt.Sprint("status ", code), text: fmt.Sprintf("answers with status %d", code)}
	}
	kind, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case err != nil || kind == "" || kind == "text/plain" || kind == openMetricsType || kind == "application/octet-stream":
	default:
		if !plain(kind) {
			kind = "something"
		}
		return nil, false, &trouble{kind: "type", text: "answers " + kind + ", not metrics in Prometheus' text format"}
	}

	if coding := resp.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return nil, false, &trouble{kind: "encoding", text: "answers in an encoding that was not asked for"}
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return nil, false, e.failed(err)
	case len(body) > maxBody:
		return nil, false, &trouble{kind: "large", text: fmt.Sprintf("answers more than %d MiB", maxBody>>20)}
	}
	return body, kind == openMetricsType, nil
}

// plain says whether a media type is one that people use, and no text of its own.
func plain(kind string) bool {
	return len(kind) <= 80 && !strings.ContainsFunc(kind, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '/' || r == '-' || r == '.' || r == '+')
	})
}

// failed says why a request failed, in words of its own: an error of the client may
// hold the address or what was answered.
func (e *Endpoint) failed(err error) *trouble {
	var timeout interface{ Timeout() bool }
	var op *net.OpError
	var cert *tls.CertificateVerificationError
	var code syscall.Errno
	var refused refusal
	switch {
	case errors.As(err, &refused):
		return &trouble{kind: "refused", text: "is not asked: " + refused.Error()}
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return &trouble{kind: "slow", text: fmt.Sprintf("does not answer within %v", e.opts.Timeout)}
	case errors.As(err, &cert):
		return &trouble{kind: "tls", text: "has a certificate that is not trusted"}
	case errors.As(err, &op) && op.Op == "dial":
		text := "cannot be reached"
		if errors.As(err, &code) {
			text += ": " + code.Error()
		}
		return &trouble{kind: "dial", text: text, wait: true}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return &trouble{kind: "cut", text: "ends the connection before its answer is complete", wait: true}
	}
	return &trouble{kind: "http", text: "does not answer as " + e.url[:strings.IndexByte(e.url, ':')]}
}

// wants says which names in the text are of interest.
func (e *Endpoint) wants(name string) bool {
	if rest, ok := strings.CutPrefix(name, e.metric); ok {
		switch rest {
		case "", "_bucket", "_count", "_sum", "_total":
			return true
		}
	}
	return name != "" && (name == e.opts.Step || name == e.opts.Total)
}

// take reads a text, and reports what is new in it.
func (e *Endpoint) take(body []byte, openMetrics bool) *trouble {
	p, err := parse(body, openMetrics, e.wants)
	e.stats.Lines += p.lines
	if err != nil {
		return &trouble{kind: "text", text: "answers text that is not metrics in Prometheus' format"}
	}
	if p.full {
		return &trouble{kind: "many", text: fmt.Sprintf("has more than %d samples of %q", maxSamples, e.metric)}
	}
	e.answers++

	var values, totals, summary, histogram []sample
	chosen := 0 // of the metric, before the labels choose
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
		values, kind = totals, "counter" // OpenMetrics writes the counter name as name_total
	}
	if len(values) > 0 {
		return e.value(&p, values, kind)
	}
	e.before = map[string]buckets{} // whatever it will have counted then is new
	switch {
	case chosen > 0:
		return &trouble{kind: "labels", text: fmt.Sprintf("has %q, but with other labels than %s", e.metric, e.labels()), wait: true}
	case kind == "summary":
		return &trouble{kind: "summary", text: fmt.Sprintf("has %q as a summary without quantiles: use a histogram or a gauge", e.metric)}
	}
	text := fmt.Sprintf("has no metric %q yet", e.metric)
	if others := e.others(&p); others != "" {
		text += "; it has " + others
	}
	return &trouble{kind: "metric", text: text, wait: true}
}

// others lists other metrics, without those of the language's run time.
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

// labels shows the selector.
func (e *Endpoint) labels() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(e.opts.Labels)) {
		all = append(all, fmt.Sprintf("%s=%q", name, e.opts.Labels[name]))
	}
	return "{" + strings.Join(all, ", ") + "}"
}

// report queues a report of a value, with the steps that the text tells.
func (e *Endpoint) report(p *page, value float64) {
	r := progress.Report{Time: e.now(), Metric: e.metric, Value: value, Step: math.NaN(), Total: math.NaN()}
	e.steps(p, &r)
	e.push(r)
}

// steps reads the metrics that count steps.
func (e *Endpoint) steps(p *page, r *progress.Report) {
	for _, s := range p.samples {
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

// value takes a gauge, a counter or an untyped metric.
func (e *Endpoint) value(p *page, values []sample, kind string) *trouble {
	v := values[0].value
	for _, s := range values[1:] {
		if kind != "counter" {
			return &trouble{kind: "series", text: fmt.Sprintf("has %d series of %q: set labels so that they choose one", len(values), e.metric)}
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

// summary takes a quantile that the job has computed.
func (e *Endpoint) summary(p *page, samples []sample) *trouble {
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
		return &trouble{kind: "quantile", text: fmt.Sprintf("has %q as a summary without the quantile %v; it has %s", e.metric, e.opts.Quantile, strings.Join(have, ", "))}
	case len(found) > 1:
		return &trouble{kind: "series", text: fmt.Sprintf("has %d series of %q: set labels so that they choose one", len(found), e.metric)}
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
			return nil // nothing was observed
		}
	}
	if v := found[0].value; !math.IsNaN(v) {
		e.report(p, v)
	}
	return nil
}

// histogram takes the observations since the last scrape.
func (e *Endpoint) histogram(p *page, samples []sample) *trouble {
	e.latency = true
	all := histograms(samples, e.metric)
	bounds := 0
	for _, b := range all {
		bounds = max(bounds, len(b))
	}
	if bounds < 2 {
		return &trouble{kind: "buckets", text: fmt.Sprintf("has %q as a histogram without buckets (a native one?): serve it with buckets", e.metric)}
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

// Poll returns the reports of the scrapes since the last call, and what went wrong in
// them and was not told before. It does not wait for a scrape.
func (e *Endpoint) Poll(ctx context.Context) ([]progress.Report, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	reports, errs := e.queue, e.fresh
	e.queue, e.fresh = nil, nil
	if n := len(reports); n > 0 {
		e.polled = &reports[n-1]
	}
	return reports, errors.Join(errs...)
}

// Goal returns the configured goal, or the one that follows from the metric's name.
func (e *Endpoint) Goal() string {
	if e.goal != "" {
		return e.goal
	}
	return e.parser.Goal()
}

// Note returns a sentence about what is awaited, what is wrong, or what is assumed;
// or nothing.
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

// Stats returns what was read so far. Truncated counts how often a histogram or a
// summary began to count anew.
func (e *Endpoint) Stats() progress.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

// offset is what a later process must know: the value that was reported last, so that
// it is not taken for another measurement.
type offset struct {
	Value *float64 `json:"value,omitempty"`
	Step  *float64 `json:"step,omitempty"`
}

// Offset returns what was reported last. There is no position in an endpoint.
func (e *Endpoint) Offset() json.RawMessage {
	e.mu.Lock()
	defer e.mu.Unlock()
	var o offset
	if e.polled != nil && !math.IsNaN(e.polled.Value) && !math.IsInf(e.polled.Value, 0) {
		o.Value = &e.polled.Value
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

// SetOffset says what an earlier process has reported last.
func (e *Endpoint) SetOffset(data json.RawMessage) {
	var o offset
	if json.Unmarshal(data, &o) != nil || o.Value == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last != nil {
		return
	}
	e.last = &progress.Report{Metric: e.metric, Value: *o.Value, Step: math.NaN(), Total: math.NaN()}
	if o.Step != nil {
		e.last.Step = *o.Step
	}
	if e.polled == nil {
		r := *e.last
		e.polled = &r
	}
}

// Close ends the scrapes, and waits for the one that runs to give up.
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
