// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package app

import (
	"encoding/csv"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/trainer/train"
)

// bestOf returns the best step and value of a column in the run's record.
func bestOf(t *testing.T, curve string, column int, sign float64, until int) (step int, value float64) {
	rows, err := csv.NewReader(strings.NewReader(readFile(t, curve))).ReadAll()
	must.NoError(t, err)
	for i, row := range rows[1:] {
		at, err := strconv.Atoi(row[0])
		must.NoError(t, err)
		v, err := strconv.ParseFloat(row[column], 64)
		must.NoError(t, err)
		if at <= until && (i == 0 || sign*v < sign*value) {
			step, value = at, v
		}
	}
	return step, value
}

func TestSaveBest(t *testing.T) {
	for _, metric := range []struct {
		name   string
		column int
		sign   float64
		kept   string
	}{{"loss", 3, 1, "loss"}, {"both", 3, 1, "loss"}, {"accuracy", 4, -1, "accuracy"}} {
		t.Run(metric.name, func(t *testing.T) {
			dir := t.TempDir()
			best, curve := filepath.Join(dir, "best"), filepath.Join(dir, "curve")
			args := with("-steps", "90", "-lr", "0.3", "-decay", "0", "-metric", metric.name, "-save-best", best, "-curve", curve)
			code, _, err := runWith(t, 5, syscall.SIGUSR1, args...)
			must.Eq(t, 0, code)
			must.Eq(t, 2, strings.Count(err, "Saved best parameters "+best+": "+metric.kept)) // on the signal, and at the end
			at, _ := bestOf(t, curve, metric.column, metric.sign, 15)
			must.StrContains(t, err, " at step "+strconv.Itoa(at)+"\n")

			c, loadErr := train.Load(best)
			must.NoError(t, loadErr)
			step, value := bestOf(t, curve, metric.column, metric.sign, 90)
			must.Eq(t, step, c.Step)
			must.Eq(t, metric.kept, c.Metric)
			must.InDelta(t, value, c.Value, 1e-5)

			// the parameters are that step's: the same value results
			o, _, parseErr := parse(args)
			must.NoError(t, parseErr)
			again := train.New(train.Config{Spec: o.spec, Seed: o.seed, Threads: 1})
			defer again.Close()
			must.NoError(t, again.Restore(c.State))
			loss, accuracy := again.Evaluate()
			if metric.kept == "accuracy" {
				loss = accuracy
			}
			must.Eq(t, c.Value, loss)
		})
	}
}

func TestSaveBestWhenStopped(t *testing.T) {
	dir := t.TempDir()
	best, last := filepath.Join(dir, "best"), filepath.Join(dir, "last")
	args := with("-steps", "30", "-checkpoint", last, "-save-best", best, "-resume", "-term-exit", "143")
	code, _, err := runWith(t, 4, syscall.SIGTERM, args...)
	must.Eq(t, 143, code)
	must.StrContains(t, err, "Saved checkpoint "+last+" at step 12\n")
	must.StrContains(t, err, "Saved best parameters "+best)
	first, loadErr := train.Load(best)
	must.NoError(t, loadErr)

	// another process continues, and does not keep anything worse
	code, _, _ = runWith(t, 0, nil, args...)
	must.Eq(t, 0, code)
	second, loadErr := train.Load(best)
	must.NoError(t, loadErr)
	must.LessEq(t, first.Value, second.Value)

	// it is kept if the rest is worse
	second.Value, second.Step = -1, 2
	must.NoError(t, train.Save(best, second))
	code, _, err = runWith(t, 0, nil, append(args, "-steps", "33")...)
	must.Eq(t, 0, code)
	must.StrContains(t, err, ": loss -1 at step 2\n")

	// of another run or metric, or not a record
	code, _, err = runWith(t, 0, nil, append(args, "-steps", "40", "-metric", "accuracy")...)
	must.Eq(t, exitUsage, code)
	must.StrContains(t, err, "-metric: it was kept for its loss, this run keeps accuracy")
	second.Seed++
	must.NoError(t, train.Save(best, second))
	code, _, err = runWith(t, 0, nil, append(args, "-steps", "40")...)
	must.Eq(t, exitUsage, code)
	must.StrContains(t, err, "cannot continue with -save-best "+best)
	must.NoError(t, os.WriteFile(best, []byte("something else"), 0o600))
	code, _, err = runWith(t, 0, nil, append(args, "-steps", "40")...)
	must.Eq(t, exitFailed, code)
	must.StrContains(t, err, train.ErrDamaged.Error())
	must.NoError(t, os.Remove(best))
	code, _, _ = runWith(t, 0, nil, append(args, "-steps", "40")...)
	must.Eq(t, 0, code)

	code, _, err = runWith(t, 0, nil, with("-steps", "3", "-save-best", filepath.Join(dir, "none", "b"))...)
	must.Eq(t, exitFailed, code)
	must.StrContains(t, err, "-save-best: failed to save checkpoint")
}

func TestNothingToKeep(t *testing.T) {
	best := filepath.Join(t.TempDir(), "best")
	s := &session{options: options{best: best}}
	must.NoError(t, s.saveBest())
	_, err := os.Stat(best)
	must.ErrorIs(t, err, os.ErrNotExist)

	// a diverging run keeps its earlier best
	code, _, _ := runWith(t, 0, nil, with("-steps", "30", "-diverge-at", "10", "-save-best", best)...)
	must.Eq(t, 0, code)
	c, err := train.Load(best)
	must.NoError(t, err)
	must.Less(t, 12, c.Step)
	must.Greater(t, 0, c.Value)
}

func TestProgressFile(t *testing.T) {
	dir := t.TempDir()
	jsonl := filepath.Join(dir, "p.jsonl")
	code, out, _ := runWith(t, 0, nil, with("-steps", "12", "-style", "json", "-progress-file", jsonl)...)
	must.Eq(t, 0, code)
	must.Eq(t, out, readFile(t, jsonl))

	table, last := filepath.Join(dir, "p.csv"), filepath.Join(dir, "last")
	args := with("-steps", "12", "-style", "none", "-progress-file", table, "-metric", "both", "-checkpoint", last, "-resume")
	code, out, err := runWith(t, 0, nil, args...)
	must.Eq(t, 0, code)
	must.Eq(t, "", out+err)
	code, _, _ = runWith(t, 0, nil, append(args, "-steps", "15")...)
	must.Eq(t, 0, code)
	rows, csvErr := csv.NewReader(strings.NewReader(readFile(t, table))).ReadAll()
	must.NoError(t, csvErr)
	must.SliceLen(t, 6, rows) // one header, five reports
	must.Eq(t, "15", rows[5][0])

	runs := filepath.Join(dir, "runs")
	code, _, _ = runWith(t, 0, nil, with("-steps", "12", "-style", "none", "-progress-file", runs, "-progress-format", "tensorboard-tensor")...)
	must.Eq(t, 0, code)
	files, globErr := filepath.Glob(filepath.Join(runs, "*tfevents*"))
	must.NoError(t, globErr)
	must.SliceLen(t, 1, files)

	code, _, err = runWith(t, 0, nil, with("-steps", "12", "-progress-file", filepath.Join(dir, "none", "p.csv"))...)
	must.Eq(t, exitFailed, code)
	must.StrContains(t, err, "failed to open -progress-file")
}

func TestProgressFileThatFills(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no /dev/full")
	}
	code, out, err := runWith(t, 0, nil, with("-steps", "12", "-progress-file", "/dev/full", "-progress-format", "jsonl")...)
	must.Eq(t, 0, code)
	must.Eq(t, 4, strings.Count(out, "\n"))
	must.Eq(t, 1, strings.Count(err, "failed to write -progress-file")) // reported once
}

func TestMetrics(t *testing.T) {
	o, _, err := parse(with("-steps", "0", "-metric", "both", "-metrics", "127.0.0.1:0"))
	must.NoError(t, err)
	c := startCommand(func(stdout, stderr io.Writer, signals <-chan os.Signal) int { return run(o, stdout, stderr, signals) })
	url := c.err.find(t, `Serving metrics at (http://\S+/metrics)\n`)
	c.out.find(t, `(?m)^step=6 `)
	text := get(t, url)
	for _, name := range []string{"train_loss", "train_accuracy", "train_step", "train_epoch", "train_learning_rate"} {
		must.StrContains(t, text, "\n"+name+" ")
	}
	must.StrNotContains(t, text, "train_total_steps") // there is no end
	must.Eq(t, 0, c.end(syscall.SIGTERM))

	// no value instead of 0 before the first report
	o, _, err = parse(with("-steps", "100000", "-every", "100000", "-wait", "100ms", "-metrics", "127.0.0.1:0"))
	must.NoError(t, err)
	c = startCommand(func(stdout, stderr io.Writer, signals <-chan os.Signal) int { return run(o, stdout, stderr, signals) })
	text = get(t, c.err.find(t, `Serving metrics at (http://\S+/metrics)\n`))
	must.StrContains(t, text, "train_total_steps 100000")
	must.StrNotContains(t, text, "train_loss")
	must.Eq(t, 0, c.end(syscall.SIGTERM))

	code, _, text := runWith(t, 0, nil, with("-steps", "3", "-metrics", "256.0.0.1:0")...)
	must.Eq(t, exitFailed, code)
	must.StrContains(t, text, "failed to serve -metrics")
}
