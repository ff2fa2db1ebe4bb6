// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package record

import (
	"bytes"
	stdcsv "encoding/csv"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/progress/tensorboard/event"
	"github.com/ebbtide/ebbtide/e2e/trainer/style"
)

var both = style.Run{Steps: 60, PerEpoch: 32, Metric: style.Both}

func reports() []style.Report {
	return []style.Report{
		{Step: 16, Loss: 1.625, Accuracy: 0.25, Rate: 0.002, Elapsed: time.Second},
		{Step: 32, Loss: math.NaN(), Accuracy: 0.5, Rate: 0.001, Elapsed: 1500 * time.Millisecond},
	}
}

func write(t *testing.T, path, format string, run style.Run, resumed bool) {
	f, err := Open(path, format, run, resumed)
	must.NoError(t, err)
	for _, r := range reports() {
		must.NoError(t, f.Report(r))
	}
	must.NoError(t, f.Close())
	must.NoError(t, f.Close())
	must.ErrorIs(t, f.Report(style.Report{}), os.ErrClosed)
}

func read(t *testing.T, path string) string {
	data, err := os.ReadFile(path)
	must.NoError(t, err)
	return string(data)
}

func TestJSONL(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.jsonl")
	write(t, path, "jsonl", both, true) // resumed without a file
	const want = `{"step": 16, "total_steps": 60, "epoch": 0.5, "loss": 1.625, "accuracy": 0.25, "learning_rate": 0.002, "elapsed_s": 1.0}
{"step": 32, "total_steps": 60, "epoch": 1.0, "loss": NaN, "accuracy": 0.5, "learning_rate": 0.001, "elapsed_s": 1.5}
`
	must.Eq(t, want, read(t, path))
	write(t, path, "jsonl", both, true)
	must.Eq(t, want+want, read(t, path))
	write(t, path, "jsonl", both, false)
	must.Eq(t, want, read(t, path))
}

func TestCSV(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.csv")
	write(t, path, "csv", both, false)
	write(t, path, "csv", both, true)
	rows, err := stdcsv.NewReader(strings.NewReader(read(t, path))).ReadAll()
	must.NoError(t, err)
	must.SliceLen(t, 5, rows)
	must.Eq(t, []string{"step", "total_steps", "epoch", "loss", "accuracy", "learning_rate", "elapsed_s"}, rows[0])
	must.Eq(t, []string{"16", "60", "0.5", "1.625", "0.25", "0.002", "1"}, rows[1])
	must.Eq(t, []string{"32", "60", "1", "nan", "0.5", "0.001", "1.5"}, rows[2])
	must.Eq(t, rows[1], rows[3])

	run := both
	run.Steps, run.Metric = 0, style.Accuracy
	write(t, path, "csv", run, false)
	must.StrHasPrefix(t, "step,epoch,accuracy,learning_rate,elapsed_s\n16,0.5,0.25,", read(t, path))
	run.Metric = style.Loss
	write(t, path, "csv", run, false)
	must.StrHasPrefix(t, "step,epoch,loss,learning_rate,elapsed_s\n16,0.5,1.625,", read(t, path))
	must.Eq(t, "inf", strings.Split(string(csv{run}.report(style.Report{Loss: math.Inf(1)})), ",")[2])
	must.Eq(t, "-inf", strings.Split(string(csv{run}.report(style.Report{Loss: math.Inf(-1)})), ",")[2])
}

func TestTensorBoard(t *testing.T) {
	for _, format := range []string{"tensorboard", "tensorboard-tensor"} {
		t.Run(format, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "runs", "1")
			write(t, dir, format, both, false)
			files, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.*"))
			must.NoError(t, err)
			must.SliceLen(t, 1, files)
			left := []byte(read(t, files[0]))
			var events []event.Event
			for len(left) > 0 {
				data, n, err := event.ReadRecord(left)
				must.NoError(t, err)
				e, err := event.Decode(data)
				must.NoError(t, err)
				events, left = append(events, e), left[n:]
			}
			must.SliceLen(t, 9, events)
			must.Eq(t, event.Version, events[0].Version)
			var tags []string
			for _, e := range events[1:5] {
				must.SliceLen(t, 1, e.Scalars)
				must.Eq(t, int64(16), e.Step)
				must.Less(t, 60, math.Abs(float64(time.Now().Unix())-e.Wall))
				tags = append(tags, e.Scalars[0].Tag)
			}
			must.Eq(t, []string{"train/loss", "eval/accuracy", "train/learning_rate", "train/epoch"}, tags)
			must.Eq(t, 1.625, events[1].Scalars[0].Value)
			must.Eq(t, 0.25, events[2].Scalars[0].Value)
			must.True(t, math.IsNaN(events[5].Scalars[0].Value))
			must.Eq(t, bytes.Contains([]byte(read(t, files[0])), []byte("scalars")), format == "tensorboard-tensor")
		})
	}
}

func TestFilesThatFail(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(filepath.Join(dir, "none", "p.csv"), "csv", both, false)
	must.ErrorIs(t, err, os.ErrNotExist)
	must.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	_, err = Open(filepath.Join(dir, "file", "runs"), "tensorboard", both, false)
	must.Error(t, err)
	if _, err := os.Stat("/dev/full"); err == nil {
		_, err = Open("/dev/full", "csv", both, false)
		must.Error(t, err)
	}
}

func TestNames(t *testing.T) {
	must.Eq(t, "csv, jsonl, tensorboard, tensorboard-tensor", Names())
	must.NoError(t, Valid("csv"))
	must.ErrorContains(t, Valid("xml"), "must be one of csv, jsonl")
	for path, want := range map[string]string{
		"a.jsonl": "jsonl", "a.ndjson": "jsonl", "a.b.JSON": "jsonl", "/x/a.CSV": "csv", "runs": "tensorboard", "/a.b/runs": "tensorboard", "a.txt": "",
	} {
		must.Eq(t, want, ByEnding(path))
	}
}
