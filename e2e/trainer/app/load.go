// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/e2e/trainer/latency"
	"github.com/ebbtide/ebbtide/e2e/trainer/load"
	"github.com/ebbtide/ebbtide/e2e/trainer/serve"
)

const (
	maxConcurrency = 1 << 12
	maxRate        = 1e5
)

type loadOptions struct {
	load.Config
	length   time.Duration
	wait     time.Duration
	report   time.Duration
	summary  string
	record   string
	exitCode int
	quiet    bool
}

func parseLoad(args []string) (loadOptions, string, error) {
	o := loadOptions{
		Config: load.Config{Open: 256, Seed: 1, Timeout: 5 * time.Minute},
		wait:   time.Minute, report: 2 * time.Second,
	}
	var concurrency *int
	fs := newFlags("trainer load")
	fs.Func("target", "`URL` of the service, e.g. http://127.0.0.1:8000 (required); without a path /predict is asked for", func(text string) (err error) {
		o.Target, err = url.Parse(text)
		if err != nil || o.Target.Scheme != "http" && o.Target.Scheme != "https" || o.Target.Host == "" {
			return errors.New("must be a URL such as http://127.0.0.1:8000")
		}
		return nil
	})
	fs.whole("concurrency", "`clients` of a closed loop (default 1, without -rate)", 1, maxConcurrency, optional(&concurrency))
	fs.number("rate", "`requests` a second of an open loop", 1e-3, maxRate, &o.Rate)
	fs.BoolVar(&o.Even, "even", false, "equidistant requests in an open loop, instead of a Poisson process")
	fs.seed("whole `number` that the random distances follow from (default 1)", &o.Seed)
	fs.whole("open", "`requests` of an open loop that may be under way; more are dropped and count as errors (default 256)", 1, maxConcurrency, func(v int) { o.Open = v })
	fs.duration("duration", "`time` after which the load ends (default never)", time.Millisecond, &o.length)
	fs.whole("requests", "`requests` after which the load ends; 0 = never (default 0)", 0, math.MaxInt, func(v int) { o.Requests = int64(v) })
	fs.number("work", "`times` that a batch's cost is multiplied by (default 1)", 1, serve.MaxWork, &o.Work)
	fs.duration("timeout", "`time` that an answer may take (default 5m)", time.Millisecond, &o.Timeout)
	fs.duration("wait", "`time` to wait for the service to come up (default 60s)", 0, &o.wait)
	fs.duration("report", "`time` between two lines on the output (default 2s)", time.Millisecond, &o.report)
	fs.StringVar(&o.summary, "summary-file", "", "`file` to write the summary to (JSON)")
	fs.StringVar(&o.record, "record", "", "`file` to write every request to (CSV: t_s, when it was due; response_s; error)")
	fs.exitCode(&o.exitCode)
	fs.BoolVar(&o.quiet, "silent", false, "print nothing but errors")
	if help, err := fs.parse(args); err != nil {
		return o, help, err
	}

	var bad []string
	if o.Target == nil {
		bad = append(bad, "-target: must be given, e.g. http://127.0.0.1:8000")
	}
	if concurrency != nil && o.Rate > 0 {
		bad = append(bad, fmt.Sprintf("invalid value \"%d\" for flag -concurrency: must be left out with -rate", *concurrency))
	}
	if o.Rate == 0 {
		o.Concurrency = 1
		given(concurrency, &o.Concurrency)
		if o.Even {
			bad = append(bad, "invalid value \"true\" for flag -even: needs -rate")
		}
	}
	if len(bad) > 0 {
		return o, "", &usageError{strings.Join(bad, "\n")}
	}
	return o, "", nil
}

func loadRun(o loadOptions, stdout, stderr io.Writer, signals <-chan os.Signal) int {
	complain := func(err error) { _, _ = fmt.Fprintf(stderr, "trainer load: %v\n", err) }
	say := func(line string) {
		if !o.quiet {
			_, _ = io.WriteString(stdout, line)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	terminated := make(chan string, 1)
	go func() {
		select {
		case sig := <-signals:
			terminated <- sig.String()
			cancel()
		case <-ctx.Done():
		}
	}()

	var record *os.File
	if o.record != "" {
		f, err := os.Create(o.record)
		if err != nil {
			complain(fmt.Errorf("failed to open -record: %w", err))
			return exitFailed
		}
		defer func() { _ = f.Close() }()
		record = f
		_, _ = fmt.Fprintln(f, "t_s,response_s,error")
	}
	var began time.Time
	o.Each = func(r load.Result) {
		if record != nil {
			_, _ = fmt.Fprintf(record, "%.6f,%.6f,%s\n", r.At.Sub(began).Seconds(), r.Seconds, r.Error)
		}
	}
	l := load.New(o.Config)
	if err := l.Wait(ctx, o.wait); err != nil {
		if ctx.Err() != nil {
			return o.exitCode
		}
		complain(err)
		return exitFailed
	}

	running := ctx
	if o.length > 0 {
		var stop context.CancelFunc
		running, stop = context.WithTimeout(ctx, o.length)
		defer stop()
	}
	began = time.Now()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(running)
	}()
	answered := int64(0)
	report := func() {
		c := l.Take()
		answered += c.Responses.Count()
		if failed := c.Failed(); c.Responses.Count()+failed > 0 {
			say(reportLine("requests", answered, &c.Responses, fmt.Sprintf("errors=%d", failed)))
		}
	}
	ticker := time.NewTicker(o.report)
	defer ticker.Stop()
	for over := false; !over; {
		select {
		case <-ticker.C:
			report()
		case <-ended:
			over = true
		}
	}
	report()

	s := l.Summary(time.Since(began))
	code := exitOK
	select {
	case s.Terminated = <-terminated:
		code = o.exitCode
	default:
	}
	say(summaryLine(s))
	if o.summary != "" {
		text, err := json.MarshalIndent(s, "", "  ")
		if err == nil {
			err = os.WriteFile(o.summary, append(text, '\n'), 0o644)
		}
		if err != nil {
			complain(fmt.Errorf("failed to write -summary-file: %w", err))
			return exitFailed
		}
	}
	if s.Answered == 0 && s.Failed > 0 {
		complain(fmt.Errorf("%s answered none of %d requests", s.Target, s.Failed))
		return exitFailed
	}
	return code
}

// reportLine returns a period's line of serve and load: total count, and the period's responses.
func reportLine(what string, count int64, d *latency.Digest, rest string) string {
	line := fmt.Sprintf("%s=%d", what, count)
	if d.Count() > 0 {
		line += fmt.Sprintf(" response_s=%.6g answered=%d p95_s=%.6g longest_s=%.6g", d.Mean(), d.Count(), d.Quantile(0.95), d.Max())
	}
	return line + " " + rest + "\n"
}

func summaryLine(s load.Summary) string {
	line := fmt.Sprintf("summary: answered=%d failed=%d duration_s=%.3f per_second=%.6g", s.Answered, s.Failed, s.DurationS, s.PerSecond)
	for _, v := range []struct {
		name  string
		value *float64
	}{{"mean_s", s.ResponseS}, {"p50_s", s.P50S}, {"p95_s", s.P95S}, {"p99_s", s.P99S}, {"longest_s", s.LongestS}} {
		if v.value != nil {
			line += fmt.Sprintf(" %s=%.6g", v.name, *v.value)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(s.Errors)) {
		line += fmt.Sprintf(" %s=%d", strings.ReplaceAll(kind, " ", "_"), s.Errors[kind])
	}
	return line + "\n"
}
