// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package app

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/e2e/trainer/model"
	"github.com/ebbtide/ebbtide/e2e/trainer/train"
)

// tiny is fast under the race detector.
var tiny = []string{"-size", "80", "-batch", "8", "-hidden", "4", "-dim", "6", "-every", "3", "-threads", "2"}

func with(more ...string) []string { return append(append([]string(nil), tiny...), more...) }

// after sends a signal after a number of writes.
type after struct {
	buffer  bytes.Buffer // not embedded, which would promote WriteString
	writes  int
	signal  os.Signal
	signals chan os.Signal
}

func (a *after) Write(p []byte) (int, error) {
	if a.writes--; a.writes == 0 {
		a.signals <- a.signal
	}
	return a.buffer.Write(p)
}

// runWith runs a command line, with a signal during the n-th write to stdout if n > 0.
func runWith(t *testing.T, n int, signal os.Signal, args ...string) (code int, stdout, stderr string) {
	o, _, err := parse(args)
	must.NoError(t, err)
	signals := make(chan os.Signal, 1)
	out := &after{writes: n, signal: signal, signals: signals}
	var errOut bytes.Buffer
	code = run(o, out, &errOut, signals)
	return code, out.buffer.String(), errOut.String()
}

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"-model rnn", []string{`invalid value "rnn" for flag -model: must be one of logreg, mlp, vae, gru`}},
		{"-size x", []string{`invalid value "x" for flag -size: must be a whole number from 1 to 2147483647`}},
		{"-size 0", []string{`invalid value "0" for flag -size`}},
		{"-size 10 -batch 20", []string{`invalid value "10" for flag -size: must be at least the batch, 20`}},
		{"-batch 100000", []string{`"100000" for flag -batch: must be a whole number from 1 to 65536`}},
		{"-dim -1", []string{`"-1" for flag -dim: must be a whole number from 1 to 4096`}},
		{"-model vae -dim 200", []string{`"200" for flag -dim: must be a square number for vae, e.g. 196`}},
		{"-model gru -dim 65", []string{`"65" for flag -dim: must be from 2 to 64 for gru`}},
		{"-model logreg -hidden 3", []string{`"3" for flag -hidden: logreg has no hidden layer, leave it out`}},
		{"-steps -1", []string{`"-1" for flag -steps: must be a whole number ≥ 0`}},
		{"-epochs 1.5", []string{`"1.5" for flag -epochs: must be a whole number from 0`}},
		{"-lr 0", []string{`"0" for flag -lr: must be a number > 0`}},
		{"-lr nan", []string{`"nan" for flag -lr`}},
		{"-lr inf", []string{`"inf" for flag -lr`}},
		{"-threads 0", []string{`"0" for flag -threads: must be a whole number from 1 to 1024`}},
		{"-seed -1", []string{`"-1" for flag -seed: must be a whole number from 0`}},
		{"-style tf", []string{`"tf" for flag -style: must be one of huggingface, huggingface-old, json, keras`}},
		{"-every 0", []string{`"0" for flag -every: must be a whole number ≥ 1`}},
		{"-metric f1", []string{`"f1" for flag -metric: must be one of loss, accuracy, both`}},
		{"-model vae -metric accuracy", []string{`"accuracy" for flag -metric: must be loss for vae`}},
		{"-checkpoint-signal SIGFOO", []string{`"SIGFOO" for flag -checkpoint-signal: must be none or the name of a signal`}},
		{"-checkpoint-signal kill", []string{`"kill" for flag -checkpoint-signal: must be a signal that can be caught`}},
		{"-exit-code 256", []string{`"256" for flag -exit-code: must be a whole number from 0 to 255`}},
		{"-wait 5", []string{`"5" for flag -wait: must be a duration`}},
		{"-resume -checkpoint-every 5", []string{`"5" for flag -checkpoint-every: needs -checkpoint FILE`, `"true" for flag -resume: needs -checkpoint FILE`}},
		{"-linger -steps 5 -epochs 2", []string{`"5" for flag -steps: must be 0 or left out with -linger`, `"2" for flag -epochs: must be 0`}},
		{"-step 5", []string{"flag provided but not defined: -step"}},
		{"mlp", []string{`unexpected argument "mlp"`}},
	} {
		t.Run(c.args, func(t *testing.T) {
			var out, err bytes.Buffer
			must.Eq(t, exitUsage, Main(strings.Fields(c.args), &out, &err))
			must.Eq(t, "", out.String())
			for _, w := range c.want {
				must.StrContains(t, err.String(), w)
			}
		})
	}
}

func TestSteps(t *testing.T) {
	for args, want := range map[string]int{
		"":                        8192,
		"-steps 7":                7,
		"-steps 0":                0,
		"-linger":                 0,
		"-epochs 2":               20,
		"-epochs 2 -steps 7":      7,
		"-epochs 2 -steps 70":     20,
		"-epochs 2 -steps 0":      20,
		"-epochs 0":               0,
		"-epochs 0 -steps 7":      7,
		"-linger -steps 0":        0,
		"-linger -epochs 0":       0,
		"-steps 7 -silent -every": -1,
	} {
		o, _, err := parse(strings.Fields("-size 80 -batch 8 " + args))
		if want < 0 {
			must.Error(t, err)
			continue
		}
		must.NoError(t, err)
		must.Eq(t, want, o.steps, must.Sprint(args))
	}
}

func TestHelpAndList(t *testing.T) {
	var out, err bytes.Buffer
	must.Eq(t, 0, Main([]string{"-h"}, &out, &err))
	for _, f := range []string{"-checkpoint-signal signal", "-diverge-at step", "-metric"} {
		must.StrContains(t, out.String(), f)
	}
	out.Reset()
	must.Eq(t, 0, Main([]string{"-list"}, &out, &err))
	for _, s := range model.Specs() {
		must.StrContains(t, out.String(), s.About)
	}
	must.Eq(t, "", err.String())
}

func TestMainKeepsThreads(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	var out, err bytes.Buffer
	must.Eq(t, 0, Main(with("-steps", "4", "-threads", strconv.Itoa(before+3)), &out, &err))
	must.Eq(t, before, runtime.GOMAXPROCS(0))
	must.StrHasPrefix(t, "step=3 total_steps=4 epoch=0.30 loss=", out.String())
	must.Eq(t, 2, strings.Count(out.String(), "\n"))
}

func TestReports(t *testing.T) {
	for _, c := range []struct {
		style, count string
		want         int
	}{
		{"plain", "loss=", 4},
		{"keras", " - loss: ", 5}, // the first epoch ends at step 10, between two reports
		{"keras", " - val_loss: ", 2},
		{"silent", "", 1}, // strings.Count of ""
	} {
		code, out, err := runWith(t, 0, nil, with("-steps", "12", "-style", c.style)...)
		must.Eq(t, 0, code)
		must.Eq(t, "", err)
		must.Eq(t, c.want, strings.Count(out, c.count))
	}
	_, out, _ := runWith(t, 0, nil, with("-steps", "12", "-per-epoch", "-metric", "accuracy")...)
	must.Eq(t, 2, strings.Count(out, "accuracy="))
	must.StrContains(t, out, "step=10 ")
	must.StrNotContains(t, out, "loss")
}

func TestResumePrintsTheSame(t *testing.T) {
	for _, s := range model.Specs() {
		t.Run(s.Name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "c")
			args := with("-model", s.Name, "-dim", "9", "-steps", "30")
			if s.Name == "logreg" {
				args = []string{"-model", "logreg", "-size", "80", "-batch", "8", "-every", "3", "-steps", "30"}
			}
			code, want, _ := runWith(t, 0, nil, args...)
			must.Eq(t, 0, code)

			saved := append(args, "-checkpoint", file, "-resume", "-exit-code", "3", "-curve", filepath.Join(dir, "curve"), "-quality-file", filepath.Join(dir, "q"))
			code, first, err := runWith(t, 4, syscall.SIGTERM, saved...)
			must.Eq(t, 3, code)
			must.StrContains(t, err, "Saved checkpoint "+file+" at step 12")
			q := quality(t, filepath.Join(dir, "q"))
			must.Eq(t, "terminated", q.Stopped)
			must.Eq(t, 12, q.Step)

			code, second, err := runWith(t, 0, nil, saved...)
			must.Eq(t, 0, code)
			must.StrContains(t, err, "Resuming from checkpoint "+file+" at step 12")
			must.Eq(t, want, first+second)
			q = quality(t, filepath.Join(dir, "q"))
			must.Eq(t, 30, q.Step)
			must.Eq(t, 12, q.ResumedFrom)
			must.Eq(t, "", q.Stopped)
			must.NotNil(t, q.Loss)

			f, openErr := os.Open(filepath.Join(dir, "curve"))
			must.NoError(t, openErr)
			defer f.Close()
			rows, csvErr := csv.NewReader(f).ReadAll()
			must.NoError(t, csvErr)
			must.Eq(t, []string{"step", "wall_s", "cpu_s", "loss", "accuracy"}, rows[0])
			must.SliceLen(t, 1+1+10+1, rows) // header, initial value, ten reports, resumption

			// a complete run has nothing left to do
			code, third, _ := runWith(t, 0, nil, saved...)
			must.Eq(t, 0, code)
			must.Eq(t, "", third)
		})
	}
}

func quality(t *testing.T, path string) Summary {
	data, err := os.ReadFile(path)
	must.NoError(t, err)
	var s Summary
	must.NoError(t, json.Unmarshal(data, &s))
	return s
}

func TestSignalSavesAndGoesOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c")
	code, out, err := runWith(t, 2, syscall.SIGUSR1, with("-steps", "12", "-checkpoint", file, "-checkpoint-every", "4")...)
	must.Eq(t, 0, code)
	must.Eq(t, 4, strings.Count(out, "\n"))
	for _, step := range []string{"4", "6", "8", "12"} {
		must.Eq(t, 1, strings.Count(err, "Saved checkpoint "+file+" at step "+step+"\n"))
	}
	must.Eq(t, 4, strings.Count(err, "Saved"))

	code, _, err = runWith(t, 2, syscall.SIGUSR1, with("-steps", "12")...) // nowhere to save to
	must.Eq(t, 0, code)
	must.Eq(t, "", err)
}

func TestWithoutEndUntilStopped(t *testing.T) {
	code, out, _ := runWith(t, 40, syscall.SIGINT, with("-linger")...)
	must.Eq(t, 0, code)
	must.Eq(t, 40, strings.Count(out, "\n"))
	must.StrNotContains(t, out, "total_steps")
}

func TestDivergence(t *testing.T) {
	q := filepath.Join(t.TempDir(), "q")
	code, out, _ := runWith(t, 0, nil, with("-steps", "30", "-diverge-at", "10", "-quality-file", q)...)
	must.Eq(t, 0, code)
	must.Greater(t, 4, strings.Count(out, "loss=nan"))
	s := quality(t, q)
	must.True(t, s.Diverged)
	must.Nil(t, s.Loss)
	must.NotNil(t, s.BestLoss)
}

func TestFilesThatFail(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "none", "c")
	// a failed intermediate checkpoint does not stop training, a failed last one fails the run
	code, out, err := runWith(t, 0, nil, with("-steps", "12", "-checkpoint", missing, "-checkpoint-every", "6")...)
	must.Eq(t, exitFailed, code)
	must.Eq(t, 4, strings.Count(out, "\n"))
	must.Eq(t, 2, strings.Count(err, "failed to save checkpoint "+missing))

	code, _, err = runWith(t, 1, syscall.SIGTERM, with("-steps", "12", "-checkpoint", missing)...)
	must.Eq(t, exitFailed, code)
	must.StrContains(t, err, "failed to save checkpoint")

	code, _, err = runWith(t, 0, nil, with("-curve", missing)...)
	must.Eq(t, exitFailed, code)
	must.StrContains(t, err, "failed to open -curve")
	code, _, err = runWith(t, 0, nil, with("-steps", "2", "-quality-file", missing)...)
	must.Eq(t, exitFailed, code)
	must.StrContains(t, err, "failed to write -quality-file")

	file := filepath.Join(dir, "c")
	must.NoError(t, os.WriteFile(file, []byte("something else"), 0o600))
	code, _, err = runWith(t, 0, nil, with("-checkpoint", file, "-resume")...)
	must.Eq(t, exitFailed, code)
	must.StrContains(t, err, train.ErrDamaged.Error())

	code, _, _ = runWith(t, 0, nil, with("-steps", "2", "-checkpoint", file)...)
	must.Eq(t, 0, code)
	code, _, err = runWith(t, 0, nil, with("-checkpoint", file, "-resume", "-seed", "9")...)
	must.Eq(t, exitUsage, code)
	must.StrContains(t, err, "-seed: the checkpoint was made with 1, this run has 9")
}
