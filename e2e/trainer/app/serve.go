// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/ebbtide/ebbtide/e2e/trainer/model"
	"github.com/ebbtide/ebbtide/e2e/trainer/serve"
	"github.com/ebbtide/ebbtide/e2e/trainer/train"
)

const (
	maxQueue        = 1 << 16
	defaultTraining = 200
)

type serveOptions struct {
	spec       model.Spec
	named      bool // -model was given
	seed       uint64
	threads    int
	trainSteps *int
	checkpoint string
	listen     string
	metrics    string
	batch      int
	work       float64
	queue      int
	report     time.Duration
	grace      time.Duration
	exitCode   int
	quiet      bool
	// Given sizes of the model.
	dim, hidden, trainBatch, size *int
}

func parseServe(args []string) (serveOptions, string, error) {
	o := serveOptions{
		seed: 1, threads: runtime.GOMAXPROCS(0), batch: 100, work: 1, queue: 64, report: 2 * time.Second, grace: 2 * time.Second,
	}
	o.spec, _ = model.ByName("mlp")
	fs := newFlags("trainer serve")
	fs.Func("model", "`name` of the model: "+model.Names()+" (default mlp, or the checkpoint's)", func(text string) (err error) {
		o.spec, err = model.ByName(text)
		o.named = true
		return err
	})
	fs.whole("dim", "`width` of the input: features, pixels (a square number) or symbols; the default is the model's, as is that of the next ones", 1, maxDim, optional(&o.dim))
	fs.whole("hidden", "`width` of the hidden layers", 1, maxHidden, optional(&o.hidden))
	fs.whole("train-batch", "`rows` of a training step", 1, maxBatch, optional(&o.trainBatch))
	fs.whole("size", "`rows` of the data set that is trained with", 1, maxSize, optional(&o.size))
	fs.seed("whole `number` that data and start values follow from (default 1)", &o.seed)
	fs.whole("threads", "`CPUs` to use at the same time (default what Go finds usable at the start)", 1, maxThreads, func(v int) { o.threads = v })
	fs.whole("train-steps", fmt.Sprintf("`steps` to train before serving (default %d; with -checkpoint 0)", defaultTraining), 0, math.MaxInt32, optional(&o.trainSteps))
	fs.StringVar(&o.checkpoint, "checkpoint", "", "`file` with the model to serve, as -checkpoint and -save-best of a training run write it; model, sizes and seed are the checkpoint's")
	fs.address("listen", "`address` to serve at, e.g. 127.0.0.1:8000 (required)", &o.listen)
	fs.address("metrics", "another `address` to serve /metrics at (default -listen only)", &o.metrics)
	fs.whole("batch", "`rows` of a batch (default 100)", 1, maxBatch, func(v int) { o.batch = v })
	fs.number("work", "`times` that a batch's cost is multiplied by: so many batches' rows are evaluated for one (default 1)", 1, serve.MaxWork, &o.work)
	fs.whole("queue", "`requests` that may wait; more are refused with status 503 (default 64)", 0, maxQueue, func(v int) { o.queue = v })
	fs.duration("report", "`time` between two lines on the output (default 2s)", time.Millisecond, &o.report)
	fs.duration("grace", "`time` that the batch in progress gets on SIGTERM (default 2s)", 0, &o.grace)
	fs.exitCode(&o.exitCode)
	fs.BoolVar(&o.quiet, "silent", false, "print nothing but errors")
	if help, err := fs.parse(args); err != nil {
		return o, help, err
	}

	var bad []string
	fail := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	if o.listen == "" {
		fail("-listen: must be given, e.g. 127.0.0.1:8000")
	}
	if o.checkpoint != "" {
		for name, p := range map[string]*int{"dim": o.dim, "hidden": o.hidden, "train-batch": o.trainBatch, "size": o.size} {
			if p != nil {
				fail("invalid value \"%d\" for flag -%s: must be left out with -checkpoint, which knows it", *p, name)
			}
		}
	}
	given(o.dim, &o.spec.Dim)
	given(o.hidden, &o.spec.Hidden)
	given(o.trainBatch, &o.spec.Batch)
	given(o.size, &o.spec.Size)
	checkSizes(&o.spec, o.hidden, fail)
	if o.spec.Size < o.spec.Batch {
		fail("invalid value \"%d\" for flag -size: must be at least -train-batch, %d", o.spec.Size, o.spec.Batch)
	}
	if len(bad) > 0 {
		return o, "", &usageError{strings.Join(bad, "\n")}
	}
	return o, "", nil
}

// restore takes the options from the checkpoint.
func (o *serveOptions) restore() (train.State, error) {
	c, err := train.Load(o.checkpoint)
	if err != nil {
		return train.State{}, err
	}
	spec, err := model.ByName(c.Model)
	if err != nil {
		return train.State{}, fmt.Errorf("%s: model %q: %w", o.checkpoint, c.Model, err)
	}
	if o.named && o.spec.Name != spec.Name {
		return train.State{}, &usageError{fmt.Sprintf("-model: the checkpoint %s was made with %s, not %s", o.checkpoint, spec.Name, o.spec.Name)}
	}
	spec.Dim, spec.Hidden, spec.Batch, spec.Size = c.Dim, c.Hidden, c.Batch, c.Size
	o.spec, o.seed = spec, c.Seed
	return c.State, nil
}

func serveRun(o serveOptions, stdout, stderr io.Writer, signals <-chan os.Signal) int {
	failed := func(err error) int {
		_, _ = fmt.Fprintf(stderr, "trainer serve: %v\n", err)
		var usage *usageError
		var mismatch *train.MismatchError
		if errors.As(err, &usage) || errors.As(err, &mismatch) {
			return exitUsage
		}
		return exitFailed
	}
	message := func(format string, args ...any) {
		if !o.quiet {
			_, _ = fmt.Fprintf(stderr, format+"\n", args...)
		}
	}

	params, step, stopped, err := trained(&o, signals)
	switch {
	case err != nil:
		return failed(err)
	case stopped:
		return o.exitCode
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	server, err := serve.New(serve.Config{
		Spec: o.spec, Seed: o.seed, Params: params, Threads: o.threads, Batch: o.batch, Work: o.work, Queue: o.queue, Registry: registry,
	})
	if err != nil {
		return failed(err)
	}
	defer server.Close()
	metrics := metricsHandler(registry)
	server.Handle("GET /metrics", metrics)
	main, err := startSite(o.listen, server)
	if err != nil {
		return failed(fmt.Errorf("failed to serve -listen: %w", err))
	}
	defer main.close() // before server.Close, when requests have ended
	if o.metrics != "" {
		other, err := startSite(o.metrics, metrics)
		if err != nil {
			return failed(fmt.Errorf("failed to serve -metrics: %w", err))
		}
		defer other.close()
		message("Serving metrics at http://%s/metrics", other.address)
	}
	message("Serving %s after %d steps at http://%s/predict, %d rows a batch", o.spec.Name, step, main.address, o.batch)

	report := func() {
		if p := server.Take(); !o.quiet && (p.Responses.Count() > 0 || p.Rejected+p.Failed > 0) {
			_, _ = io.WriteString(stdout, reportLine("batches", p.Batches, &p.Responses, fmt.Sprintf("rejected=%d failed=%d", p.Rejected, p.Failed)))
		}
	}
	ticker := time.NewTicker(o.report)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			report()
		case err := <-main.ended:
			main.ended <- err
			return failed(fmt.Errorf("the server ended: %w", err))
		case sig := <-signals:
			server.Drain()
			grace := time.AfterFunc(o.grace, server.Abort)
			ctx, cancel := context.WithTimeout(context.Background(), o.grace+time.Second)
			_ = main.server.Shutdown(ctx) // cut off remaining requests
			cancel()
			grace.Stop()
			report()
			message("Ended by %v", sig)
			return o.exitCode
		}
	}
}

// trained returns the parameters to serve, and their steps.
func trained(o *serveOptions, signals <-chan os.Signal) (params []float64, step int, stopped bool, err error) {
	steps := defaultTraining
	var state *train.State
	if o.checkpoint != "" {
		saved, err := o.restore()
		if err != nil {
			return nil, 0, false, err
		}
		state, steps = &saved, 0
	}
	given(o.trainSteps, &steps)
	t := train.New(train.Config{Spec: o.spec, Seed: o.seed, Threads: o.threads})
	defer t.Close()
	if state != nil {
		if err := t.Restore(*state); err != nil {
			return nil, 0, false, fmt.Errorf("cannot serve %s: %w", o.checkpoint, err)
		}
	}
	for range steps {
		select {
		case <-signals:
			return nil, t.Done(), true, nil
		default:
			t.Step()
		}
	}
	return t.State().Clone().Params, t.Done(), false, nil
}
