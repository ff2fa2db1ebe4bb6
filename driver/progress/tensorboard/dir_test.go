// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tensorboard

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/progress/tensorboard/event"
	"github.com/ebbtide/ebbtide/driver/taskfs"
)

type job struct {
	t    *testing.T
	dir  string
	root *taskfs.Dir
	src  *Dir
	at   int64 // modification time, advances automatically
}

func newJob(t *testing.T, cfg progress.Config) *job {
	t.Helper()
	j := &job{t: t, dir: t.TempDir(), at: 1_700_000_000}
	root, err := taskfs.Open(j.dir, "")
	must.NoError(t, err)
	t.Cleanup(func() { must.NoError(t, root.Close()) })
	j.root = root
	j.open(cfg)
	return j
}

func (j *job) open(cfg progress.Config) {
	j.t.Helper()
	src, err := Open(j.root, "logs", cfg)
	must.NoError(j.t, err)
	src.now = func() time.Time { return time.Unix(j.at, 0) } // walks take no time
	j.t.Cleanup(func() { must.NoError(j.t, src.Close()) })
	j.src = src
}

func (j *job) restart(cfg progress.Config) {
	j.t.Helper()
	o := j.src.Offset()
	must.NoError(j.t, j.src.Close())
	must.Eq(j.t, string(o), string(j.src.Offset()))
	j.open(cfg)
	j.src.SetOffset(o)
}

func (j *job) bytes(name string, b []byte) {
	j.t.Helper()
	name = filepath.Join(j.dir, "logs", name)
	must.NoError(j.t, os.MkdirAll(filepath.Dir(name), 0o755))
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	must.NoError(j.t, err)
	_, err = f.Write(b)
	must.NoError(j.t, err)
	must.NoError(j.t, f.Close())
	j.at++
	must.NoError(j.t, os.Chtimes(name, time.Time{}, time.Unix(j.at, 0)))
}

func record(tag string, step int64, value float64) []byte {
	return event.AppendRecord(nil, event.EncodeSimple(event.Scalar{Tag: tag, Step: step, Wall: 1.7e9, Value: value}))
}

func begin() []byte { return event.AppendRecord(nil, event.EncodeVersion(1.7e9)) }

func (j *job) write(name, tag string, step int64, value float64) {
	j.t.Helper()
	j.bytes(name, record(tag, step, value))
}

func (j *job) poll() []string {
	j.t.Helper()
	out, err := j.try()
	must.NoError(j.t, err)
	return out
}

func (j *job) try() ([]string, error) {
	reports, err := j.src.Poll(context.Background())
	var out []string
	for _, r := range reports {
		out = append(out, fmt.Sprint(r.Metric, " ", r.Step, " ", r.Value))
		must.Eq(j.t, time.Unix(j.at, 0), r.Time)
		must.Positive(j.t, r.Line)
	}
	return out, err
}

const (
	first  = "events.out.tfevents.1700000001.node.1.0"
	second = "events.out.tfevents.1700000002.node.1.0"
)

func TestDir_grows(t *testing.T) {
	j := newJob(t, progress.Config{})
	must.Eq(t, "", j.src.Goal())
	must.SliceEmpty(t, j.poll())
	must.StrContains(t, j.src.Note(), "waiting for TensorBoard event files in logs")
	must.NoError(t, os.Mkdir(filepath.Join(j.dir, "logs"), 0o755))
	must.SliceEmpty(t, j.poll())
	must.StrContains(t, j.src.Note(), "waiting for TensorBoard")

	j.bytes(first, nil)
	must.SliceEmpty(t, j.poll())
	j.bytes(first, begin())
	must.SliceEmpty(t, j.poll())
	must.StrContains(t, j.src.Note(), "no scalars yet")
	j.write(first, "train/loss", 1, 0.5)
	must.Eq(t, []string{"train/loss 1 0.5"}, j.poll())
	must.SliceEmpty(t, j.poll())
	must.Eq(t, "min", j.src.Goal())
	must.Eq(t, "", j.src.Note())

	b := append(record("train/loss", 2, 0.3), record("train/loss", 3, 0.25)...)
	for i := range b {
		j.bytes(first, b[i:i+1])
		want := []string(nil)
		switch i {
		case len(b)/2 - 1:
			want = []string{"train/loss 2 0.3"} // float32, as printed
		case len(b) - 1:
			want = []string{"train/loss 3 0.25"}
		}
		must.Eq(t, want, j.poll())
	}
	st := j.src.Stats()
	must.Eq(t, 4, st.Lines)
	must.Eq(t, 3, st.Reports)
	must.False(t, st.More)
	must.Zero(t, st.Behind)

	// After a restart, a new file in the same directory: steps decrease.
	j.bytes(second, append(begin(), record("train/loss", 2, 0.28)...))
	must.Eq(t, []string{"train/loss 2 0.28"}, j.poll())
	must.Eq(t, "", j.src.Note())
	// Both may grow: there are two writers.
	j.write(first, "train/loss", 4, 0.2)
	j.write(second, "train/loss", 3, 0.24)
	must.Eq(t, []string{"train/loss 4 0.2", "train/loss 3 0.24"}, j.poll())
	must.NoError(t, j.src.Close())
	_, err := j.src.Poll(context.Background())
	must.ErrorContains(t, err, "closed")
}

func TestDir_encodings(t *testing.T) {
	j := newJob(t, progress.Config{})
	var all []byte
	for _, b := range [][]byte{
		event.EncodeVersion(1),
		event.EncodeSimple(event.Scalar{Tag: "loss", Step: 1, Value: 0.3}),
		event.EncodeTensor(event.Scalar{Tag: "loss", Step: 2, Value: 0.3}),
		event.EncodeSimple(event.Scalar{Tag: "loss", Step: 8, Value: math.NaN()}),
		event.EncodeSimple(event.Scalar{Tag: "loss", Step: 9, Value: math.Inf(1)}),
		event.EncodeSimple(event.Scalar{Tag: "loss", Step: 10, Value: math.Inf(-1)}),
		event.EncodeSimple(event.Scalar{Tag: "loss", Step: 11, Value: 1e-20}),
		event.EncodeSimple(event.Scalar{Tag: "loss", Step: -1, Value: -2}),
		event.EncodeSimple(event.Scalar{Tag: "loss", Step: math.MaxInt64, Value: 0}),
	} {
		all = event.AppendRecord(all, b)
	}
	j.bytes(first, all)
	must.Eq(t, []string{"loss 1 0.3", "loss 2 0.3", "loss 8 NaN", "loss 9 +Inf", "loss 10 -Inf", "loss 11 1e-20", "loss NaN -2", "loss 9.223372036854776e+18 0"}, j.poll())
}

func TestDir_metric(t *testing.T) {
	tags := []string{"learning_rate", "epoch", "train/epoch", "val/accuracy", "eval/loss", "Loss/train", "hparam/loss", "_hparams_/loss",
		`odd "loss"`, `it's "odd"`, "tab\tend\\", strings.Repeat("x", 300), "größe", "loss/" + strings.Repeat("y", 70)}
	cases := []struct {
		metric string
		want   string // the tag, or ""
		note   string
	}{
		{"", "Loss/train", ""},
		{"eval/loss", "eval/loss", ""},
		{"EVAL/Loss", "eval/loss", ""},
		{"learning_rate", "learning_rate", "learning_rate"}, // its goal is unknown
		{"hparam/loss", "hparam/loss", ""},
		{`odd "loss"`, `odd "loss"`, ""},
		{"größe", "größe", "größe"},
		{"loss/" + strings.Repeat("y", 70), "loss/" + strings.Repeat("y", 70), "min assumed"},
		{"loss", "", `but not "loss"`},
	}
	for _, tc := range cases {
		t.Run(tc.metric, func(t *testing.T) {
			j := newJob(t, progress.Config{Metric: tc.metric})
			var all []byte
			for step := range 3 {
				for _, tag := range tags {
					all = append(all, record(tag, int64(10*step), 0.5)...)
				}
			}
			j.bytes(first, all)
			got := j.poll()
			if tc.want == "" {
				must.SliceEmpty(t, got)
			} else {
				must.Eq(t, []string{tc.want + " 0 0.5", tc.want + " 10 0.5", tc.want + " 20 0.5"}, got[max(0, len(got)-3):])
			}
			must.StrContains(t, j.src.Note(), tc.note)
			if tc.note == "" {
				must.Eq(t, "", j.src.Note())
			}
		})
	}

	j := newJob(t, progress.Config{Goal: "max"})
	must.Eq(t, "max", j.src.Goal())
	j.write(first, "lr\x01", 1, 0.5)
	must.Eq(t, []string{" 1 NaN"}, j.poll(), must.Sprint("a step report"))
	must.StrContains(t, j.src.Note(), "scalars (lr?), none that is known")
	for i := range 20 {
		j.write(first, fmt.Sprint("lr", i), 1, 0.5)
	}
	must.Len(t, 20, j.poll())
	must.StrContains(t, j.src.Note(), "lr6, …)")
}

// Without a known metric the steps alone are reported, by scalar, until there is one.
func TestDir_stepsAlone(t *testing.T) {
	j := newJob(t, progress.Config{})
	j.write(first, "lr", 1, 0.5)
	j.write(first, "lr", 2, 0.5)
	reports, err := j.src.Poll(t.Context())
	must.NoError(t, err)
	must.Len(t, 2, reports)
	must.True(t, reports[1].StepOnly())
	must.Eq(t, "lr", reports[1].Bar)
	must.Eq(t, 2, reports[1].Step)
	must.Eq(t, "", j.src.Goal())
	j.write(first, "loss", 3, 0.5)
	j.write(first, "lr", 3, 0.5)
	must.Eq(t, []string{"loss 3 0.5"}, j.poll())

	j = newJob(t, progress.Config{Metric: "loss"})
	j.write(first, "lr", 1, 0.5)
	must.SliceEmpty(t, j.poll(), must.Sprint("the configured metric may come yet"))
}

// Keras writes the same tag in train/ and validation/, which is one run.
func TestDir_split(t *testing.T) {
	for metric, want := range map[string][]string{
		"":                      {"epoch_loss 0 0.9", "epoch_loss 1 0.8"},
		"epoch_loss":            {"epoch_loss 0 0.9", "epoch_loss 1 0.8"},
		"train/epoch_loss":      {"train/epoch_loss 0 0.9", "train/epoch_loss 1 0.8"},
		"validation/epoch_loss": {"validation/epoch_loss 0 0.95", "validation/epoch_loss 1 0.85"},
	} {
		j := newJob(t, progress.Config{Metric: metric})
		var got []string
		for epoch := range int64(2) {
			j.write("train/"+second, "epoch_loss", epoch, 0.9-0.1*float64(epoch))
			got = append(got, j.poll()...)
			j.write("validation/"+first, "epoch_loss", epoch, 0.95-0.1*float64(epoch))
			got = append(got, j.poll()...)
		}
		must.Eq(t, want, got, must.Sprint(metric))
		must.Eq(t, "", j.src.Note())
	}
}

func TestPlace(t *testing.T) {
	for file, want := range map[string][2]string{
		"f":                        {".", ""},
		"run/f":                    {"run", ""},
		"a/run/f":                  {"a/run", ""},
		"train/f":                  {".", "train"},
		"run/validation/f":         {"run", "validation"},
		"run/eval_heldout/f":       {"run", "eval"},
		"run/Loss_Validation/f":    {"run", "validation"},
		"run/Loss_train/f":         {"run", "train"},
		"run/train_big_1/f":        {"run/train_big_1", ""},
		"run/my_test_of/f":         {"run/my_test_of", ""},
		"lightning_logs/version_0": {"lightning_logs", ""},
	} {
		run, data := place(file)
		must.Eq(t, want, [2]string{run, data}, must.Sprint(file))
	}
}

func TestDir_runs(t *testing.T) {
	j := newJob(t, progress.Config{})
	j.write("a/"+first, "loss", 1, 0.9)
	j.write("c/"+first, "loss", 1, 0.7)
	j.write("b/"+first, "loss", 1, 0.8) // the newest
	must.Eq(t, []string{"loss 1 0.8"}, j.poll())
	must.StrContains(t, j.src.Note(), "follows the run logs/b, one of 3")

	// A run that grew once, or alternates with the current one, does not take over.
	for step := range int64(5) {
		j.write("a/"+first, "loss", 2+step, 0.9)
		must.SliceEmpty(t, j.poll())
		j.write("b/"+first, "loss", 2+step, 0.8)
		must.Eq(t, []string{fmt.Sprint("loss ", 2+step, " 0.8")}, j.poll())
	}

	// A new one does once it holds a metric.
	j.bytes("d/"+first, begin())
	must.SliceEmpty(t, j.poll())
	j.write("d/"+first, "lr", 1, 0.1)
	j.write("b/"+first, "loss", 10, 0.7)
	must.Eq(t, []string{"loss 10 0.7"}, j.poll())
	j.write("d/"+first, "train/loss", 1, 0.99)
	j.write("b/"+first, "loss", 11, 0.7)
	must.Eq(t, []string{"loss 11 0.7", "train/loss 1 0.99"}, j.poll())
	must.StrContains(t, j.src.Note(), "follows the run logs/d since it began, logs/b before")
	j.write("b/"+first, "loss", 12, 0.7)
	must.SliceEmpty(t, j.poll())

	// In a resumed run only new data count.
	j.write("c/"+second, "loss", 5, 0.6)
	must.Eq(t, []string{"loss 5 0.6"}, j.poll())

	// A run that grows while the current one does not takes over with all its data.
	for step := range int64(3) {
		j.write("a/"+first, "loss", 20+step, 0.5)
		got := j.poll()
		if step < 2 {
			must.SliceEmpty(t, got)
		} else {
			must.Eq(t, []string{"loss 1 0.9", "loss 2 0.9", "loss 3 0.9", "loss 4 0.9", "loss 5 0.9", "loss 6 0.9", "loss 20 0.5", "loss 21 0.5", "loss 22 0.5"}, got)
		}
	}
}

// PyTorch's add_hparams writes final results to its own directory.
func TestDir_hparams(t *testing.T) {
	j := newJob(t, progress.Config{})
	j.write(first, "loss", 1, 0.9)
	must.Len(t, 1, j.poll())
	j.write("1700000000.5/"+first, "hparam/accuracy", 0, 0)
	must.SliceEmpty(t, j.poll())
	j.write(first, "loss", 2, 0.8)
	must.Eq(t, []string{"loss 2 0.8"}, j.poll())
}

func TestDir_damage(t *testing.T) {
	good := record("loss", 1, 0.5)
	turned := func() []byte {
		b := record("loss", 2, 0.4)
		b[20] ^= 1
		return b
	}
	length := func(n uint64) []byte {
		b := binary.LittleEndian.AppendUint64(nil, n)
		return binary.LittleEndian.AppendUint32(b, event.Checksum(b))
	}
	for name, tc := range map[string]struct {
		bad  []byte
		is   error
		says string
	}{
		"data":     {turned(), event.ErrChecksum, "at byte " + fmt.Sprint(len(good))},
		"length":   {make([]byte, 16), event.ErrChecksum, "length"},
		"too long": {append(length(event.MaxRecord+1), 0), event.ErrTooLong, "16777217 bytes"},
		"huge":     {length(1 << 62), event.ErrTooLong, "16777216"},
		"text":     {[]byte("<html><body>not found</body></html>"), event.ErrChecksum, "length"},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t, progress.Config{})
			j.bytes(first, append(append(append([]byte(nil), good...), tc.bad...), record("loss", 3, 0.3)...))
			j.write(second, "loss", 4, 0.2)
			got, err := j.try()
			must.Eq(t, []string{"loss 1 0.5", "loss 4 0.2"}, got)
			must.ErrorIs(t, err, tc.is)
			must.ErrorContains(t, err, "logs/"+first)
			must.ErrorContains(t, err, tc.says)
			must.StrContains(t, j.src.Note(), first)
			must.SliceEmpty(t, j.poll())
			j.write(first, "loss", 5, 0.1)
			j.write(second, "loss", 5, 0.1)
			must.Eq(t, []string{"loss 5 0.1"}, j.poll())

			must.NoError(t, os.Truncate(filepath.Join(j.dir, "logs", first), 0))
			j.write(first, "loss", 6, 0.1)
			must.Eq(t, []string{"loss 6 0.1"}, j.poll())
			must.Positive(t, j.src.Stats().Truncated)
			must.Eq(t, "", j.src.Note())
			j.bytes(first, tc.bad) // repeated
			_, err = j.try()
			must.ErrorIs(t, err, tc.is)
		})
	}

	t.Run("no event", func(t *testing.T) {
		j := newJob(t, progress.Config{})
		j.bytes(first, append(event.AppendRecord(nil, []byte("what is this")), good...))
		got, err := j.try()
		must.Eq(t, []string{"loss 1 0.5"}, got) // reading continues with the next record
		must.ErrorIs(t, err, event.ErrMalformed)
		j.bytes(first, append(event.AppendRecord(nil, []byte("what is this")), record("loss", 2, 0.4)...))
		must.Eq(t, []string{"loss 2 0.4"}, j.poll())
	})
	t.Run("many", func(t *testing.T) {
		j := newJob(t, progress.Config{})
		for i := range 20 {
			j.bytes(fmt.Sprint("x.tfevents.", i), make([]byte, 20))
		}
		_, err := j.try()
		must.ErrorContains(t, err, "and 15 more")
		must.SliceEmpty(t, j.poll())
	})
}

func TestDir_large(t *testing.T) {
	picture := event.AppendRecord(nil, make([]byte, 3<<20))
	for _, damaged := range []bool{false, true} {
		j := newJob(t, progress.Config{})
		if damaged {
			picture[2<<20]++
		}
		j.bytes(first, append(append(record("loss", 1, 0.5), picture...), record("loss", 2, 0.4)...))
		var got []string
		var all []error
		polls := 0
		for more := true; more; polls++ {
			g, err := j.try()
			got, all = append(got, g...), append(all, err)
			more = j.src.Stats().More
			must.LessEq(t, (1<<20)+chunk, len(j.src.cur.files[first].held))
		}
		must.Eq(t, 4, polls) // 1 MiB each
		if damaged {
			must.Eq(t, []string{"loss 1 0.5"}, got)
			must.ErrorIs(t, errors.Join(all...), event.ErrChecksum)
			continue
		}
		must.NoError(t, errors.Join(all...))
		must.Eq(t, []string{"loss 1 0.5", "loss 2 0.4"}, got)
		must.Eq(t, 1, j.src.Stats().Oversized)
	}
	j := newJob(t, progress.Config{})
	b := event.EncodeSimple(event.Scalar{Tag: "loss", Step: 1, Value: 0.5})
	pad := maxHeld - len(b) - 5
	b = append(b, 0xfa, 0x06) // an unknown field of bytes
	b = binary.AppendUvarint(b, uint64(pad))
	b = append(b, make([]byte, pad)...)
	must.Len(t, maxHeld, b)
	j.bytes(first, event.AppendRecord(nil, b))
	got := j.poll()
	must.True(t, j.src.Stats().More)
	got = append(got, j.poll()...)
	must.Eq(t, []string{"loss 1 0.5"}, got)
}

func TestDir_vanishes(t *testing.T) {
	j := newJob(t, progress.Config{})
	j.write(first, "loss", 1, 0.5)
	must.Len(t, 1, j.poll())
	logs, away := filepath.Join(j.dir, "logs"), filepath.Join(j.dir, "away")
	must.NoError(t, os.Rename(logs, away))
	must.SliceEmpty(t, j.poll())
	must.StrContains(t, j.src.Note(), "were removed")
	must.Eq(t, "min", j.src.Goal())

	must.NoError(t, os.Rename(away, logs)) // the directory reappears
	j.write(first, "loss", 2, 0.4)
	must.Eq(t, []string{"loss 2 0.4"}, j.poll())
	must.Eq(t, "", j.src.Note())

	must.NoError(t, os.RemoveAll(logs))
	must.SliceEmpty(t, j.poll())
	j.write(first, "loss", 7, 0.3) // another file of the same name
	must.Eq(t, []string{"loss 7 0.3"}, j.poll())
	must.Eq(t, 1, j.src.Stats().Truncated)

	must.NoError(t, os.Truncate(filepath.Join(logs, first), 0))
	must.SliceEmpty(t, j.poll())
	j.write(first, "loss", 8, 0.2)
	must.Eq(t, []string{"loss 8 0.2"}, j.poll())
	must.Eq(t, 2, j.src.Stats().Truncated)
}

func TestDir_hostile(t *testing.T) {
	outside := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(outside, first), record("loss", 66, 6), 0o644))
	j := newJob(t, progress.Config{})
	logs := filepath.Join(j.dir, "logs")

	must.NoError(t, os.Symlink(outside, logs))
	_, err := j.try()
	must.ErrorContains(t, err, "logs")
	must.ErrorIs(t, err, taskfs.ErrKind)
	must.StrContains(t, j.src.Note(), "a symbolic link found")
	must.SliceEmpty(t, j.poll())

	must.NoError(t, os.Remove(logs))
	must.NoError(t, unix.Mkfifo(logs, 0o600))
	_, err = j.try()
	must.ErrorContains(t, err, "instead of a directory")
	must.NoError(t, os.Remove(logs))
	must.NoError(t, os.WriteFile(logs, nil, 0o600))
	_, err = j.try()
	must.ErrorContains(t, err, "a regular file found instead of a directory")
	must.NoError(t, os.Remove(logs))

	must.NoError(t, os.Mkdir(logs, 0o755))
	must.NoError(t, os.Symlink(filepath.Join(outside, first), filepath.Join(logs, first)))
	must.NoError(t, os.Symlink(outside, filepath.Join(logs, "run")))
	must.NoError(t, os.Symlink(".", filepath.Join(logs, "loop")))
	must.NoError(t, unix.Mkfifo(filepath.Join(logs, second), 0o600))
	must.NoError(t, os.Mkdir(filepath.Join(logs, "dir.tfevents.1"), 0o755))
	must.SliceEmpty(t, j.poll())
	must.StrContains(t, j.src.Note(), "waiting for TensorBoard")
	j.write("x.tfevents", "loss", 1, 0.5)
	must.Eq(t, []string{"loss 1 0.5"}, j.poll())

	// Symlinks are not followed; unprintable names are skipped.
	must.NoError(t, os.Rename(logs, filepath.Join(j.dir, "real")))
	must.NoError(t, os.Symlink("real", logs))
	_, err = j.try()
	must.ErrorIs(t, err, taskfs.ErrKind)
	must.NoError(t, os.Remove(logs))
	must.NoError(t, os.Rename(filepath.Join(j.dir, "real"), logs))
	j.write("bad\n/x.tfevents", "loss", 2, 0.4)
	j.write("x.tfevents", "loss", 3, 0.3)
	must.Eq(t, []string{"loss 3 0.3"}, j.poll())
}

func TestDir_replacedByPipe(t *testing.T) {
	j := newJob(t, progress.Config{})
	j.write(first, "loss", 1, 0.5)
	must.Len(t, 1, j.poll())
	j.src.next = time.Unix(1<<40, 0) // prevents another walk
	name := filepath.Join(j.dir, "logs", first)
	must.NoError(t, os.Rename(name, name+"x"))
	must.NoError(t, unix.Mkfifo(name, 0o600))
	_, err := j.try()
	must.ErrorIs(t, err, taskfs.ErrKind)
	must.ErrorContains(t, err, "logs/"+first)
	must.StrContains(t, j.src.Note(), "a FIFO found")
	must.SliceEmpty(t, j.poll())
	must.NoError(t, os.Rename(name+"x", name))
	j.src.next = time.Time{}
	j.write(first, "loss", 2, 0.4)
	must.Eq(t, []string{"loss 2 0.4"}, j.poll())
	must.Eq(t, "", j.src.Note())
}

func TestDir_depth(t *testing.T) {
	j := newJob(t, progress.Config{})
	j.write(strings.Repeat("d/", maxDepth+1)+first, "loss", 1, 0.5)
	must.SliceEmpty(t, j.poll())
	j.write(strings.Repeat("d/", maxDepth)+first, "loss", 2, 0.5)
	must.Eq(t, []string{"loss 2 0.5"}, j.poll())
}

func TestDir_manyFiles(t *testing.T) {
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		t.Setenv("TMPDIR", "/dev/shm") // 10,000 files take long on a busy disk
	}
	j := newJob(t, progress.Config{})
	data := record("loss", 1, 0.5)
	for i := range 10_000 {
		name := filepath.Join(j.dir, "logs", fmt.Sprintf("events.out.tfevents.%010d", i))
		if i == 0 {
			must.NoError(t, os.Mkdir(filepath.Dir(name), 0o755))
		}
		if i > 0 && i < 9_000 { // hard links are faster to create
			must.NoError(t, os.Link(filepath.Join(filepath.Dir(name), "events.out.tfevents.0000000000"), name))
			continue
		}
		must.NoError(t, os.WriteFile(name, data, 0o644))
		if i > 0 { // the newest
			must.NoError(t, os.Chtimes(name, time.Time{}, time.Unix(4e9+int64(i), 0)))
		}
	}
	count := 0
	for range 10 {
		count += len(j.poll())
		if !j.src.Stats().More {
			break
		}
	}
	must.Eq(t, 1000, count)
	must.StrContains(t, j.src.Note(), "9000 are not")
	open := 0
	for _, f := range j.src.cur.files {
		if f.tail != nil {
			open++
		}
	}
	must.LessEq(t, maxOpen, open)
	must.Less(t, 20_000, len(j.src.Offset()))
	must.SliceEmpty(t, j.poll())

	j.restart(progress.Config{})
	must.SliceEmpty(t, j.poll())
	j.at = 5e9
	j.write("events.out.tfevents.0000009999", "loss", 2, 0.4)
	must.Eq(t, []string{"loss 2 0.4"}, j.poll())

	// They are removed and others appear: memory stays bounded.
	must.NoError(t, os.RemoveAll(filepath.Join(j.dir, "logs")))
	for round := range 2 {
		for i := range 600 {
			name := filepath.Join(j.dir, "logs", fmt.Sprint(round, "_", i), "x.tfevents")
			must.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
			must.NoError(t, os.WriteFile(name, nil, 0o644))
		}
		j.poll()
		must.NoError(t, os.RemoveAll(filepath.Join(j.dir, "logs")))
	}
	j.write("y/"+first, "loss", 3, 0.3)
	must.Eq(t, []string{"loss 3 0.3"}, j.poll())
	must.Less(t, 1000, len(j.src.runs))
}

func TestDir_manyEntries(t *testing.T) {
	j := newJob(t, progress.Config{})
	j.src.maxEntries = 10
	for i := range 30 {
		j.write(fmt.Sprint(first, i), "loss", 1, 0.5)
		j.write(fmt.Sprint("deeper/", first, i), "loss", 1, 0.5)
	}
	must.Between(t, 9, len(j.poll()), 10) // one may be the directory
	must.StrContains(t, j.src.Note(), "name the directory of the event files")
}

func TestDir_slowWalk(t *testing.T) {
	j := newJob(t, progress.Config{})
	now := time.Unix(0, 0)
	j.src.now = func() time.Time { now = now.Add(10 * time.Millisecond); return now }
	poll := func() int {
		reports, err := j.src.Poll(context.Background())
		must.NoError(t, err)
		return len(reports)
	}
	j.write(first, "loss", 1, 0.5)
	must.Eq(t, 1, poll())
	j.write(second, "loss", 2, 0.5)
	j.write(first, "loss", 2, 0.5)
	must.Eq(t, 1, poll()) // open files are still read
	now = now.Add(time.Second)
	must.Eq(t, 1, poll())
}

func TestDir_bounds(t *testing.T) {
	j := newJob(t, progress.Config{})
	var all []byte
	const n = 50_000
	for i := range n {
		all = append(all, record("loss", int64(i), 0.5)...)
	}
	j.bytes(first, all)
	j.write(second, "loss", n, 0.5)
	got := j.poll()
	st := j.src.Stats()
	must.True(t, st.More)
	must.Eq(t, int64(len(all)+len(record("loss", n, 0.5)))-st.Bytes, st.Behind)
	must.LessEq(t, pollBytes, st.Bytes)
	must.Less(t, pollReports+chunk/30, len(got))
	for j.src.Stats().More {
		got = append(got, j.poll()...)
	}
	must.Len(t, n+1, got)
	for i, g := range got {
		must.Eq(t, fmt.Sprint("loss ", i, " 0.5"), g)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := j.src.Poll(ctx)
	must.ErrorIs(t, err, context.Canceled)
}

func TestDir_offset(t *testing.T) {
	j := newJob(t, progress.Config{})
	must.Eq(t, "{}", string(j.src.Offset()))
	j.restart(progress.Config{})
	j.write("old/"+first, "loss", 1, 0.9)
	j.write("run/train/"+first, "loss", 1, 0.8)
	torn := record("loss", 3, 0.6)
	j.bytes("run/train/"+first, append(record("loss", 2, 0.7), torn[:10]...))
	must.Eq(t, []string{"loss 1 0.8", "loss 2 0.7"}, j.poll())

	// Before and after the first Poll of the next process.
	j.restart(progress.Config{})
	j.restart(progress.Config{})
	must.SliceEmpty(t, j.poll())
	j.bytes("run/train/"+first, torn[10:])
	must.Eq(t, []string{"loss 3 0.6"}, j.poll())
	j.restart(progress.Config{})
	must.SliceEmpty(t, j.poll())

	// Changes while the plugin was down: in the current run, an old one and a new one.
	j.write("old/"+first, "loss", 2, 0.9)
	j.restart(progress.Config{})
	j.write("run/train/"+first, "loss", 4, 0.5)
	j.write("run/train/"+second, "loss", 5, 0.4)
	j.write("old/"+first, "loss", 3, 0.9)
	must.Eq(t, []string{"loss 4 0.5", "loss 5 0.4"}, j.poll())
	j.restart(progress.Config{})
	j.write("new/"+first, "loss", 1, 0.95)
	must.Eq(t, []string{"loss 1 0.95"}, j.poll())

	j.restart(progress.Config{})
	must.NoError(t, os.RemoveAll(filepath.Join(j.dir, "logs/new")))
	j.write("new/"+first, "loss", 7, 0.3)
	must.Eq(t, []string{"loss 7 0.3"}, j.poll())

	// The run has been removed and others exist: wait, and continue with new data.
	j.restart(progress.Config{})
	must.NoError(t, os.RemoveAll(filepath.Join(j.dir, "logs/new")))
	must.SliceEmpty(t, j.poll())
	j.write("last/"+first, "loss", 1, 0.2)
	must.Eq(t, []string{"loss 1 0.2"}, j.poll())

	j.restart(progress.Config{Metric: "accuracy"})
	must.SliceEmpty(t, j.poll())
	j.write("last/"+first, "accuracy", 2, 0.8)
	must.Eq(t, []string{"accuracy 2 0.8"}, j.poll())

	for _, nonsense := range []string{"", "x", "[]", `{"run": 5}`, `{"run":"run"}`,
		`{"run":"last","seen":4000000000000000000,"files":{"last/` + first + `":{"inode":1,"pos":-5,"records":-3}}}`,
		`{"run":"last","seen":4000000000000000000,"files":{"last/` + first + `":{"inode":1,"pos":99999999,"records":3}}}`} {
		j.open(progress.Config{})
		j.src.SetOffset(json.RawMessage(nonsense))
		must.Eq(t, []string{"loss 1 0.2"}, j.poll(), must.Sprint(nonsense))
		j.src.SetOffset(json.RawMessage(`{"run":"old"}`)) // too late
		must.SliceEmpty(t, j.poll())
	}
}

// Catching up over more files than an offset holds.
func TestDir_offsetWhileCatchingUp(t *testing.T) {
	j := newJob(t, progress.Config{})
	const files, size = 100, 400
	for i := range files {
		var all []byte
		for k := range size {
			all = append(all, record("loss", int64(i*size+k), 0.5)...)
		}
		j.bytes(fmt.Sprintf("events.out.tfevents.%010d", i), all)
	}
	seen := map[string]int{}
	for more := true; more; more = j.src.Stats().More {
		for _, r := range j.poll() {
			seen[r]++
		}
		j.restart(progress.Config{})
		for _, r := range j.poll() {
			seen[r]++
		}
	}
	must.MapLen(t, files*size, seen) // none is missing
}

func TestOpen_errors(t *testing.T) {
	root, err := taskfs.Open(t.TempDir(), "")
	must.NoError(t, err)
	defer root.Close()
	for dir, says := range map[string]string{
		"":                         "must name a directory",
		"/etc":                     "within the directory",
		"../x":                     "within the directory",
		"a\x00b":                   "NUL",
		strings.Repeat("a/", 3000): "4096",
	} {
		_, err := Open(root, dir, progress.Config{})
		var field *progress.FieldError
		must.True(t, errors.As(err, &field))
		must.Eq(t, "tensorboard", field.Field)
		must.ErrorContains(t, err, says)
		must.Less(t, 500, len(err.Error()))
	}
	_, err = Open(root, "", progress.Config{Preset: "keras", Pattern: "(", Goal: "up", Metric: " x"})
	for _, field := range []string{"progress.tensorboard", "progress.preset", "progress.pattern", "progress.goal", "progress.metric"} {
		must.ErrorContains(t, err, field)
	}
	src, err := Open(root, ".", progress.Config{Preset: "auto"})
	must.NoError(t, err)
	must.NoError(t, src.Close())
	must.NoError(t, src.Close())
}

func BenchmarkPoll(b *testing.B) {
	var all []byte
	for i := range 8000 {
		all = append(all, record("train/loss", int64(i), 0.5)...)
	}
	root, err := taskfs.Open(b.TempDir(), "")
	must.NoError(b, err)
	_, err = root.WriteFile(first, all, 0o644)
	must.NoError(b, err)
	b.SetBytes(int64(len(all)))
	for b.Loop() {
		src, err := Open(root, ".", progress.Config{})
		must.NoError(b, err)
		reports, err := src.Poll(context.Background())
		must.NoError(b, err)
		must.Len(b, 8000, reports)
		_ = src.Close()
	}
}
