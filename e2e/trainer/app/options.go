// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package app is the trainer's command line: options, training loop, reports, checkpoints and
// signals.
package app

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/e2e/trainer/model"
	"github.com/ebbtide/ebbtide/e2e/trainer/record"
	"github.com/ebbtide/ebbtide/e2e/trainer/style"
)

// Bounds that keep typos from exhausting memory.
const (
	maxSize    = math.MaxInt32
	maxBatch   = 1 << 16
	maxDim     = 1 << 12
	maxSymbols = 64 // gru: its data source has symbols³ numbers
	maxHidden  = 1 << 12
	maxThreads = 1024
)

// options is a valid command line.
type options struct {
	spec            model.Spec // with the requested sizes
	steps           int        // total; 0 for no end
	threads         int
	seed            uint64
	style           string
	every           int
	perEpoch        bool
	metric          style.Metric
	checkpoint      string
	checkpointEvery int
	signal          os.Signal // may be nil
	resume          bool
	exitCode        int
	divergeAt       int
	wait            time.Duration
	best            string
	progress        string
	progressFormat  string
	metrics         string
	quality, curve  string
	list            bool
}

func parse(args []string) (options, string, error) {
	o := options{threads: runtime.GOMAXPROCS(0), seed: 1, style: "plain", metric: style.Loss, signal: syscall.SIGUSR1}
	o.spec, _ = model.ByName("mlp")
	var dim, hidden, batch, size, epochs, steps, every, decay *int
	var rate *float64
	var linger, quiet bool

	fs := newFlags("trainer")
	whole := fs.whole

	fs.Func("model", "`name` of the model: "+model.Names()+" (default mlp)", func(text string) (err error) {
		o.spec, err = model.ByName(text)
		return err
	})
	whole("size", "`rows` of the data set, that is of an epoch; the default is the model's, as is that of the next ones", 1, maxSize, optional(&size))
	whole("dim", "`width` of the input: features, pixels (a square number) or symbols", 1, maxDim, optional(&dim))
	whole("hidden", "`width` of the hidden layers", 1, maxHidden, optional(&hidden))
	whole("batch", "`rows` of a step", 1, maxBatch, optional(&batch))
	whole("steps", "`steps` of the run; 0 = train on until stopped", 0, math.MaxInt, optional(&steps))
	whole("epochs", "`epochs` of the run; with -steps, whichever ends first", 0, math.MaxInt32, optional(&epochs))
	fs.Func("lr", "learning `rate` at the start", func(text string) error {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || !(v > 0) || math.IsInf(v, 0) {
			return errors.New("must be a number > 0")
		}
		rate = &v
		return nil
	})
	whole("decay", "`steps` after which the learning rate has halved (lr/(1+step/decay)); 0 = constant", 0, math.MaxInt, optional(&decay))
	whole("threads", "`CPUs` to use at the same time (default what Go finds usable at the start)", 1, maxThreads, func(v int) { o.threads = v })
	fs.seed("whole `number` that data, start values and noise follow from (default 1)", &o.seed)
	fs.Func("style", "`name` of the output style: "+style.Names()+" (default plain)", func(text string) error {
		o.style = text
		return style.Valid(text)
	})
	whole("every", "`steps` between two reports", 1, math.MaxInt, optional(&every))
	fs.BoolVar(&o.perEpoch, "per-epoch", false, "report at the end of each epoch only")
	fs.Func("metric", "what is reported: loss, accuracy or both, of the held-out part (default loss)", func(text string) error {
		o.metric = style.Metric(text)
		if !slices.Contains([]style.Metric{style.Loss, style.Accuracy, style.Both}, o.metric) {
			return errors.New("must be one of loss, accuracy, both")
		}
		return nil
	})
	fs.StringVar(&o.checkpoint, "checkpoint", "", "`file` to save the state to, at the end and on -checkpoint-signal")
	whole("checkpoint-every", "`steps` between two checkpoints; 0 = none (default 0)", 0, math.MaxInt, func(v int) { o.checkpointEvery = v })
	fs.Func("checkpoint-signal", "`signal` that saves a checkpoint and the best parameters, e.g. SIGUSR1 (default), or none; SIGTERM and SIGINT save and exit in any case",
		func(text string) (err error) {
			o.signal, err = parseSignal(text)
			return err
		})
	fs.exitCode(&o.exitCode)
	fs.BoolVar(&o.resume, "resume", false, "resume from -checkpoint if it exists, and from the best of -save-best")
	fs.StringVar(&o.best, "save-best", "", "`file` for the parameters with the best reported value so far, with value and step; written at -checkpoint-signal and at the end. "+
		"It is a checkpoint: to resume from, and for trainer serve")
	fs.BoolVar(&linger, "linger", false, "train without end, as -steps 0")
	whole("diverge-at", "`step` from which the learning rate explodes, so that the loss becomes NaN; 0 = never (default 0)", 0, math.MaxInt, func(v int) { o.divergeAt = v })
	fs.duration("wait", "`time` to sleep after each step, as a trainer does that waits for data, e.g. 5ms (default 0)", 0, &o.wait)
	fs.BoolVar(&quiet, "silent", false, "print nothing but errors, as -style silent")
	fs.StringVar(&o.progress, "progress-file", "", "`file`, or directory for TensorBoard, to write the reports to, as well as to the output; with -style none only there. A resumed run appends")
	fs.Func("progress-format", "`format` of -progress-file: "+record.Names()+" (default by its ending: .jsonl, .csv, none for tensorboard)", func(text string) error {
		o.progressFormat = text
		return record.Valid(text)
	})
	fs.address("metrics", "`address` to serve gauges for Prometheus at, path /metrics, e.g. 127.0.0.1:9100: train_loss or train_accuracy, train_step, train_total_steps, train_epoch, train_learning_rate", &o.metrics)
	fs.StringVar(&o.quality, "quality-file", "", "`file` to write a summary of the run to (JSON), whatever its end")
	fs.StringVar(&o.curve, "curve", "", "`file` to write every evaluation to (CSV: step, wall_s, cpu_s, loss, accuracy)")
	fs.BoolVar(&o.list, "list", false, "print the models and their defaults")

	if help, err := fs.parse(args); err != nil {
		return o, help, err
	}

	s := &o.spec
	given(dim, &s.Dim)
	given(hidden, &s.Hidden)
	given(batch, &s.Batch)
	given(size, &s.Size)
	given(decay, &s.HalfSteps)
	given(every, &s.Every)
	if rate != nil {
		s.Rate = *rate
	}
	o.every = s.Every
	if quiet {
		o.style = "silent"
	}

	var bad []string
	fail := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	checkSizes(s, hidden, fail)
	if s.Size < s.Batch {
		fail("invalid value \"%d\" for flag -size: must be at least the batch, %d", s.Size, s.Batch)
	}
	if o.metric != style.Loss && !s.Classifies {
		fail("invalid value %q for flag -metric: must be loss for %s, which does not classify", o.metric, s.Name)
	}
	if o.checkpoint == "" {
		if o.checkpointEvery > 0 {
			fail("invalid value \"%d\" for flag -checkpoint-every: needs -checkpoint FILE", o.checkpointEvery)
		}
		if o.resume {
			fail("invalid value \"true\" for flag -resume: needs -checkpoint FILE")
		}
	}
	if o.progress != "" && o.progressFormat == "" {
		if o.progressFormat = record.ByEnding(o.progress); o.progressFormat == "" {
			fail("invalid value %q for flag -progress-file: its ending says no format, give -progress-format: %s", o.progress, record.Names())
		}
	}
	if o.progress == "" && o.progressFormat != "" {
		fail("invalid value %q for flag -progress-format: needs -progress-file FILE", o.progressFormat)
	}
	if o.best != "" && o.best == o.checkpoint {
		fail("invalid value %q for flag -save-best: must be another file than -checkpoint", o.best)
	}
	if linger && steps != nil && *steps > 0 {
		fail("invalid value \"%d\" for flag -steps: must be 0 or left out with -linger", *steps)
	}
	if linger && epochs != nil && *epochs > 0 {
		fail("invalid value \"%d\" for flag -epochs: must be 0 or left out with -linger", *epochs)
	}
	if len(bad) > 0 {
		return o, "", &usageError{strings.Join(bad, "\n")}
	}

	perEpoch := max(1, s.Size/s.Batch)
	o.steps = s.Steps
	if epochs != nil {
		o.steps = *epochs * perEpoch
	}
	if steps != nil && (epochs == nil || *epochs == 0 || (*steps > 0 && *steps < o.steps)) {
		o.steps = *steps
	}
	if linger {
		o.steps = 0
	}
	return o, "", nil
}

func parseSignal(text string) (os.Signal, error) {
	if text == "none" {
		return nil, nil
	}
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	switch s := unix.SignalNum(name); s {
	case 0:
		return nil, errors.New("must be none or the name of a signal, such as SIGUSR1")
	case unix.SIGKILL, unix.SIGSTOP:
		return nil, errors.New("must be a signal that can be caught")
	default:
		return s, nil
	}
}

func list(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "model\tdim\thidden\tbatch\tsize\tsteps\tevery\tlr\tdecay\toptimiser\twhat it is")
	for _, s := range model.Specs() {
		hidden := "-"
		if s.HasHidden {
			hidden = strconv.Itoa(s.Hidden)
		}
		_, _ = fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%d\t%d\t%d\t%g\t%d\t%s\t%s\n",
			s.Name, s.Dim, hidden, s.Batch, s.Size, s.Steps, s.Every, s.Rate, s.HalfSteps, s.Rule, s.About)
	}
	_ = t.Flush()
}
