// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package record writes reports to files as trainers do: JSON lines, CSV, and TensorBoard's event
// files.
package record

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/progress/tensorboard/event"
	"github.com/ebbtide/ebbtide/e2e/trainer/style"
)

// writer encodes a file.
type writer interface {
	begin() []byte
	report(style.Report) []byte
}

var formats = map[string]func(style.Run) writer{
	"jsonl": newJSONL,
	"csv":   func(run style.Run) writer { return csv{run} },
	// Scalars as written by TensorFlow 1 and PyTorch, and by TensorFlow 2.
	"tensorboard":        func(run style.Run) writer { return tensorboard{run: run} },
	"tensorboard-tensor": func(run style.Run) writer { return tensorboard{run: run, tensor: true} },
}

func Names() string { return strings.Join(slices.Sorted(maps.Keys(formats)), ", ") }

func Valid(format string) error {
	if formats[format] == nil {
		return fmt.Errorf("must be one of %s", Names())
	}
	return nil
}

// ByEnding returns the format of a path: none means a directory for TensorBoard; "" is unknown.
func ByEnding(path string) string {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".jsonl", ".ndjson", ".json":
		return "jsonl"
	case ".csv":
		return "csv"
	case "":
		return "tensorboard"
	}
	return ""
}

type File struct {
	f *os.File
	w writer
}

// Open opens a file of a valid format. A resumed run appends, others truncate. For TensorBoard
// the path is a directory, created if necessary, with a file per process.
func Open(path, format string, run style.Run, resumed bool) (*File, error) {
	w := formats[format](run)
	if _, ok := w.(tensorboard); ok {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, err
		}
		host, _ := os.Hostname()
		path = filepath.Join(path, event.FileName(time.Now(), cmp.Or(host, "localhost"), os.Getpid()))
	}
	mode := os.O_TRUNC
	if resumed {
		mode = os.O_APPEND
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|mode, 0o644)
	if err != nil {
		return nil, err
	}
	file := &File{f: f, w: w}
	if at, err := f.Seek(0, io.SeekEnd); err != nil || at == 0 { // unseekable files are new
		if b := w.begin(); len(b) > 0 {
			if _, err := f.Write(b); err != nil {
				return nil, errors.Join(err, f.Close())
			}
		}
	}
	return file, nil
}

func (f *File) Report(r style.Report) error {
	_, err := f.f.Write(f.w.report(r))
	return err
}

func (f *File) Close() error {
	if err := f.f.Close(); !errors.Is(err, fs.ErrClosed) {
		return err
	}
	return nil
}

// jsonl is style json's output.
type jsonl struct {
	printer style.Printer
	line    *bytes.Buffer
}

func newJSONL(run style.Run) writer {
	var line bytes.Buffer
	return jsonl{printer: style.New("json", run, &line, io.Discard), line: &line}
}

func (jsonl) begin() []byte { return nil }

func (j jsonl) report(r style.Report) []byte {
	j.line.Reset()
	j.printer.Report(r)
	return j.line.Bytes()
}

// csv has a header, and Python's "nan".
type csv struct{ run style.Run }

func (c csv) begin() []byte {
	columns := []string{"step"}
	if c.run.Steps > 0 {
		columns = append(columns, "total_steps")
	}
	columns = append(columns, "epoch")
	if c.run.Metric != style.Accuracy {
		columns = append(columns, "loss")
	}
	if c.run.Metric != style.Loss {
		columns = append(columns, "accuracy")
	}
	return []byte(strings.Join(append(columns, "learning_rate", "elapsed_s"), ",") + "\n")
}

func (c csv) report(r style.Report) []byte {
	b := strconv.AppendInt(nil, int64(r.Step), 10)
	number := func(v float64) {
		b = append(b, ',')
		if math.IsNaN(v) || math.IsInf(v, 0) {
			b = append(b, strings.ToLower(strings.TrimPrefix(fmt.Sprint(v), "+"))...)
			return
		}
		b = strconv.AppendFloat(b, v, 'g', 8, 64)
	}
	if c.run.Steps > 0 {
		number(float64(c.run.Steps))
	}
	number(float64(r.Step) / float64(c.run.PerEpoch))
	if c.run.Metric != style.Accuracy {
		number(r.Loss)
	}
	if c.run.Metric != style.Loss {
		number(r.Accuracy)
	}
	number(r.Rate)
	number(r.Elapsed.Seconds())
	return append(b, '\n')
}

// tensorboard uses the tags of transformers' Trainer.
type tensorboard struct {
	run    style.Run
	tensor bool
}

func (t tensorboard) begin() []byte {
	return event.AppendRecord(nil, event.EncodeVersion(seconds(time.Now())))
}

func (t tensorboard) report(r style.Report) []byte {
	var b []byte
	wall := seconds(time.Now())
	scalar := func(tag string, v float64) {
		s := event.Scalar{Tag: tag, Step: int64(r.Step), Wall: wall, Value: v}
		data := event.EncodeSimple(s)
		if t.tensor {
			data = event.EncodeTensor(s)
		}
		b = event.AppendRecord(b, data)
	}
	if t.run.Metric != style.Accuracy {
		scalar("train/loss", r.Loss)
	}
	if t.run.Metric != style.Loss {
		scalar("eval/accuracy", r.Accuracy)
	}
	scalar("train/learning_rate", r.Rate)
	scalar("train/epoch", float64(r.Step)/float64(t.run.PerEpoch))
	return b
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
