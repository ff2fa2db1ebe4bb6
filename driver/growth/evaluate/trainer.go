// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/remaining"
)

// runs are command lines of the project's trainer, with about a tenth of its usual
// work.
var runs = []struct {
	name string
	args []string // %d: steps
}{
	{"plain", []string{"-steps", "%d"}},
	{"plain, -epochs assumed", []string{"-style", "plain", "-epochs", "10", "-steps", "0"}},
	{"plain, per epoch", []string{"-steps", "%d", "-per-epoch"}},
	{"json", []string{"-steps", "%d", "-style", "json"}},
	{"huggingface", []string{"-steps", "%d", "-style", "huggingface"}},
	{"keras", []string{"-steps", "%d", "-style", "keras"}},
	{"lightning", []string{"-steps", "%d", "-style", "lightning"}},
	{"plain, resumed", []string{"-steps", "%d", "-checkpoint", "%c", "-resume"}},
}

// models with the steps of a run and the rows of an epoch, for ten epochs.
var models = []struct{ name, steps, rows string }{
	{"logreg", "1280", "65536"}, {"mlp", "1280", "16384"}, {"vae", "640", "4096"}, {"gru", "640", "2048"},
}

func realTrainers(path string, seeds uint64, progressTo io.Writer) ([]*errorRow, error) {
	dir, err := os.MkdirTemp("", "ebbtide-evaluate-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for checkpoints: %w", err)
	}
	defer os.RemoveAll(dir)
	var rows []*errorRow
	for _, k := range runs {
		w := &errorRow{name: k.name}
		rows = append(rows, w)
		for _, m := range models {
			for seed := range seeds {
				fmt.Fprintf(progressTo, "\r%-60s", fmt.Sprintf("%s, %s, seed %d of %d", k.name, m.name, seed+1, seeds))
				checkpoint := filepath.Join(dir, fmt.Sprint(m.name, seed))
				args := []string{"-model", m.name, "-size", m.rows, "-seed", fmt.Sprint(seed + 1), "-threads", "1"}
				for _, a := range k.args {
					args = append(args, strings.NewReplacer("%d", m.steps, "%c", checkpoint).Replace(a))
				}
				if strings.Contains(k.name, "resumed") { // from 40 % of the steps
					steps, _ := strconv.Atoi(m.steps)
					first := append([]string{"-steps", fmt.Sprint(steps * 2 / 5)}, args[:6]...)
					if out, err := exec.Command(path, append(first, "-checkpoint", checkpoint)...).CombinedOutput(); err != nil {
						return nil, fmt.Errorf("running %s: %w: %s", path, err, out)
					}
				}
				points, total, err := follow(path, args)
				if err != nil {
					return nil, err
				}
				// As the driver would assume from the command line.
				e := remaining.New(remaining.Declared{Assumed: remaining.Assume(args, nil)}, remaining.State{})
				i := 0
				for part, x := range parts {
					now := x * total
					for ; i < len(points) && points[i].CPU <= now; i++ {
						e.Add(points[i])
					}
					w.note(part, e.Estimate(now, remaining.Curve{}).CPUS, total-now)
				}
			}
		}
	}
	fmt.Fprintf(progressTo, "\r%-60s\r", "")
	return rows, nil
}

func follow(path string, args []string) ([]remaining.Point, float64, error) {
	parser, err := progress.NewParser(progress.Config{})
	if err != nil {
		return nil, 0, err
	}
	cmd := exec.Command(path, args...)
	out, in, err := os.Pipe() // both streams: bars go to one, metrics to the other
	if err != nil {
		return nil, 0, fmt.Errorf("running %s: %w", path, err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = in, in
	err = cmd.Start()
	_ = in.Close()
	if err != nil {
		return nil, 0, fmt.Errorf("running %s: %w", path, err)
	}
	var points []remaining.Point
	reports := progress.NewReader(out, parser)
	for {
		r, err := reports.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, 0, fmt.Errorf("reading the output of %s: %w", path, err)
		}
		points = append(points, remaining.Point{CPU: used(cmd.Process.Pid), Step: r.Step, Total: r.Total, PerEpoch: r.PerEpoch, StepOnly: r.StepOnly(), Bar: r.Bar})
	}
	if err := cmd.Wait(); err != nil {
		return nil, 0, fmt.Errorf("running %s %s: %w", path, strings.Join(args, " "), err)
	}
	return points, (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), nil
}

func used(pid int) float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, ok := strings.Cut(string(data), ") ")
	f := strings.Fields(after)
	if err != nil || !ok || len(f) < 13 {
		return math.NaN()
	}
	user, err1 := strconv.ParseFloat(f[11], 64)
	system, err2 := strconv.ParseFloat(f[12], 64)
	if err1 != nil || err2 != nil {
		return math.NaN()
	}
	const ticks = 100 // per second, on Linux
	return (user + system) / ticks
}
