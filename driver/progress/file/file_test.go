// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package file

import (
	"bytes"
	"context"
	stdcsv "encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/progress/tail"
	"github.com/ebbtide/ebbtide/driver/taskfs"
)

type fixture struct {
	testing.TB
	dir   string
	root  *taskfs.Dir
	clock time.Time
	*File
}

func open(t testing.TB, name, format string, cfg progress.Config) *fixture {
	return reopen(t, t.TempDir(), name, format, cfg)
}

func reopen(t testing.TB, dir, name, format string, cfg progress.Config) *fixture {
	root, err := taskfs.Open(dir, "")
	must.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	file, err := Open(root, name, format, cfg)
	must.NoError(t, err)
	t.Cleanup(func() { file.Close() })
	f := &fixture{t, dir, root, time.Unix(1700000000, 0), file}
	file.now = func() time.Time { return f.clock }
	return f
}

func (f *fixture) path(name string) string { return filepath.Join(f.dir, name) }

func (f *fixture) write(text string) {
	f.Helper()
	must.NoError(f, os.WriteFile(f.path(f.tail.Path()), []byte(text), 0o600))
}

func (f *fixture) append(text string) {
	f.Helper()
	file, err := os.OpenFile(f.path(f.tail.Path()), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	must.NoError(f, err)
	_, err = file.WriteString(text)
	must.NoError(f, err)
	must.NoError(f, file.Close())
}

func (f *fixture) replace(text string) {
	f.Helper()
	must.NoError(f, os.WriteFile(f.path("new"), []byte(text), 0o600))
	must.NoError(f, os.Rename(f.path("new"), f.path(f.tail.Path())))
}

func show(reports []progress.Report) []string {
	out := []string{}
	for _, r := range reports {
		step := "-"
		if !math.IsNaN(r.Step) {
			step = fmt.Sprint(r.Step)
		}
		if !math.IsNaN(r.Total) {
			step += fmt.Sprintf("/%v", r.Total)
		}
		out = append(out, fmt.Sprintf("%d: %s %s=%v", r.Line, step, r.Metric, r.Value))
	}
	return out
}

func (f *fixture) poll() ([]string, error) {
	f.Helper()
	var all []progress.Report
	var errs []error
	for range 1000 {
		reports, err := f.Poll(context.Background())
		for _, r := range reports {
			must.Eq(f, f.clock, r.Time)
		}
		all, errs = append(all, reports...), append(errs, err)
		if !f.Stats().More {
			return show(all), errors.Join(errs...)
		}
	}
	must.Unreachable(f)
	return nil, nil
}

func (f *fixture) want(reports ...string) {
	f.Helper()
	got, err := f.poll()
	must.NoError(f, err)
	must.Eq(f, append([]string{}, reports...), got)
}

func (f *fixture) wantError(problem string, reports ...string) {
	f.Helper()
	got, err := f.poll()
	must.ErrorContains(f, err, problem)
	must.Eq(f, append([]string{}, reports...), got)
}

// A configured step and total are read from lines with and without a metric.
func TestStepAndTotal(t *testing.T) {
	f := open(t, "a.jsonl", "", progress.Config{Step: "seen", Total: "all"})
	f.write(`{"all": 100, "name": "x"}
{"seen": 10, "step": 1}
{"seen": 20, "step": 2, "loss": 0.5}
{"seen": "no"}
{"seen": -1}
`)
	f.want("2: 10/100 =NaN", "3: 20/100 loss=0.5")
	g := reopen(t, f.dir, "a.jsonl", "", progress.Config{Step: "seen", Total: "all"})
	g.SetOffset(f.Offset())
	g.append(`{"seen": 30}` + "\n")
	reports, err := g.Poll(t.Context())
	must.NoError(t, err)
	must.Eq(t, []string{"6: 30/100 =NaN"}, show(reports))
	must.True(t, reports[0].StepOnly())
	must.Eq(t, "", reports[0].Bar)

	f = open(t, "a.csv", "", progress.Config{Step: "Images Seen", Total: "all"})
	f.write("images seen,all,lr\n10,100,0.1\n20,100,0.1\n")
	f.want("2: 10/100 =NaN", "3: 20/100 =NaN")
	must.Eq(t, "", f.Goal())
	f = open(t, "b.csv", "", progress.Config{Step: "it"})
	f.write("images seen,all,lr\n10,100,0.1\n")
	f.want()
	must.StrContains(t, f.Note(), `has no column "it"; its columns are images seen, all, lr`)
	f = open(t, "c.csv", "", progress.Config{Step: "it", Metric: "loss"})
	f.write("it,epoch,loss\n10,1,0.5\n20,1,\n")
	f.want("2: 10 loss=0.5", "3: 20 =NaN")
}

func TestOpen(t *testing.T) {
	root, err := taskfs.Open(t.TempDir(), "")
	must.NoError(t, err)
	defer root.Close()
	for _, c := range []struct {
		path, format string
		cfg          progress.Config
		problems     []string
	}{
		{"a.jsonl", "", progress.Config{}, nil},
		{"a.NDJSON", "", progress.Config{Metric: "val.loss", Goal: "min"}, nil},
		{"a.json", "", progress.Config{Preset: "auto"}, nil},
		{"a.csv", "", progress.Config{}, nil},
		{"a.tsv", "", progress.Config{}, nil},
		{"a.csv", "jsonl", progress.Config{Preset: "jsonl"}, nil},
		{"a.csv", "csv", progress.Config{File: "/local/a.csv", Format: "csv", Scale: -1}, nil},
		{"a.txt", "csv", progress.Config{}, nil},
		{"a.txt", "", progress.Config{}, []string{"progress.format: must be one of jsonl, csv where the file's name does not end in"}},
		{"a.csv", "tsv", progress.Config{}, []string{`progress.format: must be one of jsonl, csv, or empty to infer it from the file's name, got "tsv"`}},
		{"../a", "xml", progress.Config{Preset: "keras", Pattern: strings.Repeat("(", 300), Goal: "up", Metric: " x"}, []string{
			"progress.file: must be a relative path that stays within the directory", "progress.format: ", "progress.pattern: applies only to log lines",
			"progress.preset: applies only to log lines", "progress.goal: must be", "progress.metric: must not begin", "…"}},
		{"", "", progress.Config{}, []string{"progress.file: must name a file"}},
	} {
		f, err := Open(root, c.path, c.format, c.cfg)
		if c.problems == nil {
			must.NoError(t, err)
			must.NoError(t, f.Close())
			continue
		}
		for _, p := range c.problems {
			must.ErrorContains(t, err, p)
		}
		var field *progress.FieldError
		must.True(t, errors.As(err, &field))
	}
}

func TestJSONL(t *testing.T) {
	for _, c := range []struct {
		name, text string
		cfg        progress.Config
		want       []string
	}{
		{"plain", `{"step": 1, "loss": 0.5, "accuracy": 0.1}` + "\n" + `{"step": 2, "loss": 0.25, "total_steps": 10}` + "\n", progress.Config{},
			[]string{"1: 1 loss=0.5", "2: 2/10 loss=0.25"}},
		{"chosen", `{"step": 1, "loss": 0.5, "Accuracy": 0.1}` + "\n", progress.Config{Metric: "accuracy"}, []string{"1: 1 Accuracy=0.1"}},
		{"nested", `{"step": 1, "train": {"loss": 1}, "val": {"loss": 2, "top": {"acc": 0.5}}}` + "\n", progress.Config{Metric: "val.loss"},
			[]string{"1: 1 val.loss=2"}},
		{"deeper", `{"step": 1, "val": {"loss": 2, "top": {"acc": 0.5}}}` + "\n", progress.Config{Metric: "val.top.acc"},
			[]string{"1: 1 val.top.acc=0.5"}},
		{"\\r\\n", "{\"step\": 1, \"loss\": 0.5}\r\n\r\n{\"step\": 2, \"loss\": 0.25}\r\n", progress.Config{}, []string{"1: 1 loss=0.5", "3: 2 loss=0.25"}},
		{"byte order mark", "\xef\xbb\xbf{\"step\": 1, \"loss\": 0.5}\n", progress.Config{}, []string{"1: 1 loss=0.5"}},
		{"UTF-16 with letters only of ASCII", "\xff\xfe{\x00\"\x00l\x00o\x00s\x00s\x00\"\x00:\x001\x00.\x005\x00}\x00\n\x00", progress.Config{}, []string{"1: - loss=1.5"}},
		{"not finite", `{"loss": NaN}` + "\n" + `{"loss": Infinity}` + "\n" + `{"loss": -Infinity}` + "\n" + `{"loss": null}` + "\n" + `{"loss": "0.5"}` + "\n",
			progress.Config{}, []string{"1: - loss=NaN", "2: - loss=+Inf", "3: - loss=-Inf", "5: - loss=0.5"}},
		{"nonsense", "loss=0.5\n[1,2]\n{}\n{\"loss\n\x00\x01\n{\"loss\": 0.5}\n", progress.Config{}, []string{"6: - loss=0.5"}},
		{"an array over lines", "[\n{\"loss\": 1.5},\n{\"loss\": 0.5}\n]\n", progress.Config{}, []string{"2: - loss=1.5", "3: - loss=0.5"}},
		{"a hole", strings.Repeat("\x00", 200_000) + `{"loss": 0.5}` + "\n", progress.Config{}, []string{"1: - loss=0.5"}},
		{"a long line", `{"loss": 0.5, "text": "` + strings.Repeat("x", 1<<20) + `", "accuracy": 1}` + "\n" + `{"loss": 0.25}` + "\n", progress.Config{},
			[]string{"1: - loss=0.5", "2: - loss=0.25"}},
		{"a number that the limit cuts", `{"a": "` + strings.Repeat("x", maxRow-20) + `", "loss": 0.512345}` + "\n", progress.Config{}, nil},
		{"no end", `{"loss": 0.5}`, progress.Config{}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := open(t, "x.jsonl", "", c.cfg)
			f.write(c.text)
			f.want(c.want...)
			must.Eq(t, int64(len(c.text)), f.Stats().Bytes)
			must.Eq(t, int64(strings.Count(c.text, "\n")), f.Stats().Lines)
			must.Eq(t, int64(len(c.want)), f.Stats().Reports)

			if len(c.text) < 1000 {
				f = open(t, "x.jsonl", "", c.cfg)
				var all []string
				for i := range len(c.text) {
					f.append(c.text[i : i+1])
					got, err := f.poll()
					must.NoError(t, err)
					all = append(all, got...)
				}
				must.Eq(t, c.want, all)
			}
		})
	}
}

func TestNotEnded(t *testing.T) {
	f := open(t, "x.jsonl", "", progress.Config{})
	f.append(`{"loss": 0.5`)
	f.want()
	f.clock = f.clock.Add(time.Minute)
	f.want() // a number may be cut
	f.append(`12}`)
	f.want()
	f.clock = f.clock.Add(2 * time.Second)
	f.want()
	f.clock = f.clock.Add(time.Second)
	f.want("1: - loss=0.512")
	f.clock = f.clock.Add(time.Minute)
	f.want()
	o := f.Offset()
	f.append("\n" + `{"loss": 0.25}` + "\n")
	f.want("2: - loss=0.25")

	g := reopen(t, f.dir, "x.jsonl", "", progress.Config{})
	g.SetOffset(o)
	g.want("2: - loss=0.25")

	f = open(t, "x.csv", "", progress.Config{})
	f.append("step,loss\n1,0.5")
	f.want()
	f.clock = f.clock.Add(time.Minute)
	f.want()
	f.append("12\n")
	f.want("2: 1 loss=0.512")
}

func TestCSV(t *testing.T) {
	for _, c := range []struct {
		name, text string
		cfg        progress.Config
		want       []string
		problem    string
	}{
		{"plain", "step,loss,accuracy\n1,0.5,0.1\n2,0.25,0.2\n", progress.Config{}, []string{"2: 1 loss=0.5", "3: 2 loss=0.25"}, ""},
		{"chosen", "step,loss,Accuracy\n1,0.5,0.1\n", progress.Config{Metric: "accuracy"}, []string{"2: 1 Accuracy=0.1"}, ""},
		{"semicolons", "step;loss;note\n1;0.5;a, b, c\n", progress.Config{}, []string{"2: 1 loss=0.5"}, ""},
		{"tabs", "step\tloss\n1\t0.5\n", progress.Config{}, []string{"2: 1 loss=0.5"}, ""},
		{"one column", "loss\n0.5\n\n0.25\n", progress.Config{}, []string{"2: - loss=0.5", "4: - loss=0.25"}, ""},
		{"\\r\\n", "step,loss\r\n1,0.5\r\n", progress.Config{}, []string{"2: 1 loss=0.5"}, ""},
		{"byte order mark, quotes", "\xef\xbb\xbf\"step\",\"loss\"\n\"1\",\"0.5\"\n", progress.Config{}, []string{"2: 1 loss=0.5"}, ""},
		{"quotes", "step,\"my, \"\"own\"\" loss\",loss\n1,7,0.5\n\"2\",\" 8 \",\"0.25\"\n", progress.Config{Metric: `my, "own" loss`},
			[]string{"2: 1 my, 'own' loss=7", "3: 2 my, 'own' loss=8"}, ""},
		{"lines in quotes", "step,note,loss\n1,\"a\nb\n\nc\",0.5\n2,d,0.25\n", progress.Config{}, []string{"2: 1 loss=0.5", "6: 2 loss=0.25"}, ""},
		{"a quote in a cell", "step,note,loss\n1,5\" disk,0.5\n2,x,0.25\n", progress.Config{}, []string{"2: 1 loss=0.5", "3: 2 loss=0.25"}, ""},
		{"something behind a quote", "step,note,loss\n1,\"a\" b,0.5\n", progress.Config{}, []string{"2: 1 loss=0.5"}, ""},
		{"spaces", "   epoch,    train/box_loss, lr \n  1,   0.5,  0.1\n", progress.Config{}, []string{"2: 1 train/box_loss=0.5"}, ""},
		{"Keras", "epoch,accuracy,loss,val_loss\n0,0.1,2.5,2.6\n1,0.2,1.5,1.6\n", progress.Config{}, []string{"2: 0 loss=2.5", "3: 1 loss=1.5"}, ""},
		{"Lightning", "epoch,step,train_loss_step,val_loss\n0,9,1.5,\n0,19,0.5,\n0,19,,0.75\n1,29,0.25,\n", progress.Config{},
			[]string{"2: 9 train_loss_step=1.5", "3: 19 train_loss_step=0.5", "5: 29 train_loss_step=0.25"}, ""},
		{"pandas", ",step,loss\n0,1,0.5\n1,2,0.25\n", progress.Config{}, []string{"2: 1 loss=0.5", "3: 2 loss=0.25"}, ""},
		{"NumPy", "# step,loss\n1.000000000000000000e+00,5.000000000000000000e-01\n", progress.Config{}, []string{"2: 1 loss=0.5"}, ""},
		{"remarks", "# a run\n#\nstep,loss\n# half-time, said\n1,0.5\n", progress.Config{}, []string{"5: 1 loss=0.5"}, ""},
		{"a title", "Training log\nstep,loss\n1,0.5\n", progress.Config{}, []string{"3: 1 loss=0.5"}, ""},
		{"global step", "Global Step,total steps,val loss,best val loss\n1,9,0.5,0.4\n2,9,,0.3\n", progress.Config{Metric: "Val Loss"}, []string{"2: 1/9 val loss=0.5", "3: 2/9 =NaN"}, ""},
		{"not finite", "step,loss\n1,nan\n2,NaN\n3,inf\n4,-inf\n5,-nan\n6,Infinity\n7,+INF\n8,1e999\n9,nano\n10,--inf\n", progress.Config{},
			[]string{"2: 1 loss=NaN", "3: 2 loss=NaN", "4: 3 loss=+Inf", "5: 4 loss=-Inf", "6: 5 loss=NaN", "7: 6 loss=+Inf", "8: 7 loss=+Inf", "9: 8 loss=+Inf"}, ""},
		{"missing", "step,loss\n1,\n2,NA\n3,null\n4,None\n5,-\n6,0.5\n", progress.Config{}, []string{"7: 6 loss=0.5"}, ""},
		{"per cent", "step,accuracy\n1,12.5%\n", progress.Config{}, []string{"2: 1 accuracy=12.5"}, ""},
		{"no numbers", "step,loss\n1,0x10\n2,1_0\n3,1.2.3\n4,tensor(1)\n5,1 2\n", progress.Config{}, nil, ""},
		{"decimal commas", "step;loss\n1;0,5\n2;0,25\n", progress.Config{}, nil, `line 2: "0,5" has a decimal comma, which is not read: write numbers with a decimal point`},
		{"decimal commas in quotes", "step,loss\n1,\"0,5\"\n", progress.Config{}, nil, "decimal comma"},
		{"decimal commas and no quotes", "step,loss\n1,0,5\n2,0.5\n", progress.Config{}, []string{"3: 2 loss=0.5"}, "line 2 has 3 cells and the header 2: such rows are skipped"},
		{"a row cut by a crash", "step,loss\n1,0.5\n2,0.253,0.2\n4,0.125\n5\n", progress.Config{}, []string{"2: 1 loss=0.5", "4: 4 loss=0.125"}, "line 3 has 3 cells"},
		{"a comma at the end", "step,loss\n1,0.5,\n2,0.25,,\n", progress.Config{}, []string{"2: 1 loss=0.5", "3: 2 loss=0.25"}, ""},
		{"header again", "step,loss\n1,0.5\nstep,loss\n1,0.25\n", progress.Config{}, []string{"2: 1 loss=0.5", "4: 1 loss=0.25"}, ""},
		{"other columns", "step,loss\n1,0.5\nloss,lr,step\n0.25,7,1\n", progress.Config{}, []string{"2: 1 loss=0.5", "4: 1 loss=0.25"}, ""},
		{"one column again", "loss\n0.5\nloss\n0.25\n", progress.Config{}, []string{"2: - loss=0.5", "4: - loss=0.25"}, ""},
		{"text is no header", "step,phase,loss\n1,train,0.5\n,loss,\n2,val,0.25\n,,\n", progress.Config{}, []string{"2: 1 loss=0.5", "4: 2 loss=0.25"}, ""},
		{"no header", "1,0.5\n2,0.25\n", progress.Config{}, nil, "line 1 is no header: the first row must name the columns"},
		{"a late header", "1,0.5\nstep,loss\n2,0.25\n", progress.Config{}, []string{"3: 2 loss=0.25"}, "line 1 is no header"},
		{"JSON", `{"step": 1, "loss": 0.5}` + "\n", progress.Config{}, nil, `line 1 looks like JSON: set format to "jsonl"`},
		{"a hole", "step,loss\n" + strings.Repeat("\x00", 200_000) + "1,0.5\n", progress.Config{}, []string{"2: 1 loss=0.5"}, ""},
		{"a long row", "step,note,loss\n1," + strings.Repeat("x", 1<<20) + ",0.5\n2,x,0.25\n", progress.Config{}, []string{"3: 2 loss=0.25"}, "line 2 begins a row of more than 65536 bytes or 16 lines"},
		{"a quote without another", "step,note,loss\n1,\"x,0.5\n" + strings.Repeat("2,x,0.25\n", 15) + "3,x,0.125\n", progress.Config{}, []string{"18: 3 loss=0.125"}, "line 2 begins a row of more than"},
		{"a long quoted row", "step,note,loss\n1,\"x\n" + strings.Repeat("y", 1<<17) + "\n2,x,0.25\n", progress.Config{}, []string{"4: 2 loss=0.25"}, "line 2 begins a row of more than"},
		{"compressed", "\x1f\x8b\x08\x00\x00\n", progress.Config{}, nil, "the file is compressed"},
		{"too many columns", strings.Repeat("x,", maxColumns) + "loss\n", progress.Config{}, nil, "line 1 names 4097 columns, at most 4096 are read"},
		{"text in too many cells", "step,loss\n1,0.5\n" + strings.Repeat("x,", maxColumns) + "x\n", progress.Config{}, []string{"2: 1 loss=0.5"}, "line 3 has 4097 cells"},
		{"control characters in names", "st\x01ep,lo\xffss,a\\b loss\n1,0.5,2\n", progress.Config{Metric: "A/B loss"}, []string{"2: - a/b loss=2"}, ""},
		{"missing in the metric", "step,loss\n1,n/a\n2,--\n3,0.5\n", progress.Config{Metric: "loss"}, []string{"4: 3 loss=0.5"}, ""},
		{"names that are long or double", strings.Repeat("x", 300) + ",loss,loss,\n1,0.5,0.25,\n", progress.Config{}, []string{"2: - loss=0.5"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := open(t, "x.csv", "", c.cfg)
			f.write(c.text)
			got, err := f.poll()
			must.Eq(t, append([]string{}, c.want...), got)
			if c.problem == "" {
				must.NoError(t, err)
			} else {
				must.ErrorContains(t, err, c.problem)
				must.StrContains(t, f.Note(), c.problem)
				f.want()
			}
			must.Eq(t, int64(strings.Count(c.text, "\n")), f.Stats().Lines)

			if len(c.text) < 1000 {
				f = open(t, "x.csv", "", c.cfg)
				var all []string
				for i := range len(c.text) {
					f.append(c.text[i : i+1])
					reports, err := f.poll()
					must.True(t, err == nil || c.problem != "")
					all = append(all, reports...)

					if i%3 == 0 {
						g := reopen(t, f.dir, "x.csv", "", c.cfg)
						g.SetOffset(f.Offset())
						g.reportedKinds = f.reportedKinds
						must.NoError(t, f.Close())
						f = g
					}
				}
				must.Eq(t, c.want, all)
			}
		})
	}
}

func TestFileComesAndGoes(t *testing.T) {
	f := open(t, "logs/x.csv", "", progress.Config{})
	must.Eq(t, "", f.Goal())
	must.Eq(t, "waiting for logs/x.csv, which does not exist yet", f.Note())
	f.want()
	must.NoError(t, os.Mkdir(f.path("logs"), 0o700))
	f.want()
	must.Eq(t, "waiting for logs/x.csv, which does not exist yet", f.Note())
	f.append("step,loss\n1,0.5\n2,")
	f.want("2: 1 loss=0.5")
	must.Eq(t, "", f.Note())
	must.Eq(t, progress.GoalMin, f.Goal())

	must.NoError(t, os.Remove(f.path("logs/x.csv")))
	f.want()
	must.Eq(t, "logs/x.csv was removed: waiting for it to reappear", f.Note())
	must.NoError(t, os.RemoveAll(f.path("logs")))
	f.want()
	must.NoError(t, os.Mkdir(f.path("logs"), 0o700))
	f.append("loss,step\n0.25,7\n")
	f.want("2: 7 loss=0.25")
	must.Eq(t, 1, f.Stats().Truncated)

	f.write("step,accuracy,loss\n1,0.9,2.5\n")
	f.want("2: 1 loss=2.5")
	must.Eq(t, 2, f.Stats().Truncated)
	f.append("2,0.9,1.5\n")
	f.replace("step\tloss\n5\t0.75\n")
	f.want("3: 2 loss=1.5")
	f.want("2: 5 loss=0.75")
	must.Eq(t, 3, f.Stats().Truncated)
	f.append("6\t0.5\n")
	f.want("3: 6 loss=0.5")

	// An unreadable file: reported once, and again for another reason.
	must.NoError(t, os.Remove(f.path("logs/x.csv")))
	must.NoError(t, syscall.Mkfifo(f.path("logs/x.csv"), 0o600))
	f.wantError("open logs/x.csv: a FIFO found")
	f.want()
	must.Eq(t, "cannot open logs/x.csv: a FIFO found instead of a regular file", f.Note())
	must.NoError(t, os.Remove(f.path("logs/x.csv")))
	must.NoError(t, os.Symlink("/etc/passwd", f.path("logs/x.csv")))
	f.wantError("a symbolic link found instead of a regular file")
	f.want()
	must.NoError(t, os.Remove(f.path("logs/x.csv")))
	f.append("step,loss\n1,0.5\n")
	f.want("2: 1 loss=0.5")
	must.Eq(t, "", f.Note())

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := f.Poll(ctx)
	must.ErrorIs(t, err, context.Canceled)
	must.NoError(t, f.Close())
	must.NoError(t, f.Close())
	_, err = f.Poll(context.Background())
	must.ErrorIs(t, err, tail.ErrClosed)
	must.NotNil(t, f.Offset())
	f.SetOffset(f.Offset())
}

func TestNote(t *testing.T) {
	for _, c := range []struct {
		name, text string
		cfg        progress.Config
		want       string
	}{
		{"x.csv", "", progress.Config{}, ""},
		{"x.csv", "a,b\n1,2\n", progress.Config{}, "no column of x.csv has the name of a known measure: set metric; its columns are a, b"},
		{"x.csv", "a,b\n1,2\n", progress.Config{Metric: "loss"}, `x.csv has no column "loss"; its columns are a, b`},
		{"x.csv", "a,b,c,d,e,f,g,h,i," + strings.Repeat("j", 50) + "\n", progress.Config{Metric: "loss"}, `x.csv has no column "loss"; its columns are a, b, c, d, e, f, g, h and 2 more`},
		{"x.csv", strings.Repeat("j", 50) + "\n", progress.Config{Metric: "loss"}, `x.csv has no column "loss"; its columns are ` + strings.Repeat("j", 40) + "…"},
		{"x.csv", "a,loss\n1,\n", progress.Config{}, ""},
		{"x.csv", "a,loss\n1,\n", progress.Config{Metric: "loss"}, `the name`},
		{"x.csv", "a,loss\n1,high\n", progress.Config{Metric: "loss"}, `x.csv has no number in the column "loss" so far`},
		{"x.csv", "a,loss\n1,high\n2,0.5\n", progress.Config{Metric: "loss"}, ``},
		{"x.csv", "a,b\n1,0.5\n", progress.Config{Metric: "a"}, `the name "a" does not say whether it is to fall or to rise`},
		{"x.jsonl", "{\"a\": 1}\n", progress.Config{}, ""},
		{"x.jsonl", strings.Repeat("{\"a\": 1, \"b\": 2}\n", 5), progress.Config{}, "none of 5 lines of x.jsonl has the name of a known measure: set metric; the numbers there are a, b"},
		{"x.jsonl", strings.Repeat("{\"a\": 1, \"loss\": 2}\n", 5), progress.Config{Metric: "val.loss"}, `none of 5 lines of x.jsonl has "val.loss"; the numbers there are loss, a`},
		{"x.jsonl", strings.Repeat("{\"loss\": null}\n", 5), progress.Config{Metric: "loss"}, `x.jsonl has "loss" without a number so far`},
		{"x.jsonl", strings.Repeat("step,loss\n1,0.5\n", 5), progress.Config{}, `none of 10 lines of x.jsonl is a JSON object with numbers in it`},
	} {
		f := open(t, c.name, "", c.cfg)
		f.write(c.text)
		_, err := f.poll()
		must.NoError(t, err)
		if c.want == "the name" {
			must.Eq(t, "", f.Note())
		} else if c.want == "" {
			must.Eq(t, "", f.Note(), must.Sprint(c))
		} else {
			must.StrContains(t, f.Note(), c.want)
		}
	}
	f := open(t, "x.csv", "", progress.Config{Goal: progress.GoalMax, Metric: "a"})
	must.Eq(t, progress.GoalMax, f.Goal())
	f = open(t, "x.csv", "", progress.Config{Goal: progress.GoalMax})
	must.Eq(t, progress.GoalMax, f.Goal())
	f = open(t, "x.csv", "", progress.Config{Metric: "accuracy"})
	must.Eq(t, progress.GoalMax, f.Goal())
}

func TestBounds(t *testing.T) {
	f := open(t, "x.csv", "", progress.Config{})
	var text strings.Builder
	text.WriteString("loss\n")
	for range 100_000 {
		text.WriteString("0.5\n")
	}
	f.write(text.String())
	reports, err := f.Poll(context.Background())
	must.NoError(t, err)
	must.True(t, f.Stats().More)
	must.Between(t, pollReports, len(reports), pollReports+chunk/4)
	must.Positive(t, f.Stats().Behind)
	got, err := f.poll()
	must.NoError(t, err)
	must.Eq(t, 100_000, len(got)+len(reports))
	must.Eq(t, 0, f.Stats().Behind)

	f = open(t, "x.jsonl", "", progress.Config{})
	f.write(strings.Repeat("x", 3<<20) + "\n" + `{"loss": 0.5}` + "\n")
	reports, err = f.Poll(context.Background())
	must.NoError(t, err)
	must.SliceEmpty(t, reports)
	must.Eq(t, 1<<20, f.Stats().Bytes)
	must.True(t, f.Stats().More)
	must.LessEq(t, maxRow, len(f.rows.buf))

	g := reopen(t, f.dir, "x.jsonl", "", progress.Config{})
	g.SetOffset(f.Offset())
	g.want("2: - loss=0.5")
	must.Eq(t, 2<<20+15, g.Stats().Bytes)
}

func TestOffset(t *testing.T) {
	f := open(t, "x.csv", "", progress.Config{})
	f.write("step;accuracy;loss\n1;0.1;0.5\n2;0.2;\"0.2")
	f.want("2: 1 loss=0.5")
	o := f.Offset()
	f.append("5\"\n")

	resume := func(o json.RawMessage) *fixture {
		g := reopen(t, f.dir, "x.csv", "", progress.Config{})
		g.SetOffset(o)
		return g
	}
	resume(o).want("3: 2 loss=0.25")
	all := []string{"2: 1 loss=0.5", "3: 2 loss=0.25"}
	for _, bad := range []string{"", "null", "[]", "{", `"x"`, `{"file":{"inode":-1}}`, `{"line":-1}`, `{"parser":7}`} {
		resume(json.RawMessage(bad)).want(all...)
	}
	change := func(from, to string) json.RawMessage {
		must.StrContains(t, string(o), from)
		return json.RawMessage(strings.Replace(string(o), from, to, 1))
	}
	resume(change(`"comma":";"`, `"comma":"x"`)).want(all...)
	resume(change(`"comma":";"`, `"comma":""`)).want(all...)
	resume(change(`"header":["step","accuracy","loss"]`, `"header":["1","2","3"]`)).want(all...)
	resume(change(`"header":["step","accuracy","loss"]`, `"header":[]`)).want(all...)
	must.Eq(t, 0, resume(change(`"line":2`, `"line":-2`)).Stats().Truncated)

	f.replace("step,loss\n1,0.75\n")
	g := resume(o)
	g.want("2: 1 loss=0.75")
	must.Eq(t, 1, g.Stats().Truncated)
	g.SetOffset(o) // too late
	g.want()

	f.replace(strings.Repeat("a_long_name,", 1000) + "loss\n" + strings.Repeat("1,", 1000) + "0.5\n")
	g = resume(nil)
	g.want("2: - loss=0.5")
	must.Less(t, 1000, len(g.Offset()))
	resume(g.Offset()).want("2: - loss=0.5")
}

// TestSplit compares well-formed tables with encoding/csv.
func TestSplit(t *testing.T) {
	rng := rand.New(rand.NewSource(1))
	alphabet := []string{"a", "1", " ", "\"", ",", ";", "\t", "\n", "é", "0.5", "\r"}
	for range 3000 {
		comma := []rune{',', ';', '\t'}[rng.Intn(3)]
		var want [][]string
		for range 1 + rng.Intn(4) {
			var cells []string
			for range 1 + rng.Intn(4) {
				cell := ""
				for range rng.Intn(4) {
					cell += alphabet[rng.Intn(len(alphabet))]
				}
				cells = append(cells, strings.ReplaceAll(cell, "\r", ""))
			}
			want = append(want, cells)
		}
		var text bytes.Buffer
		w := stdcsv.NewWriter(&text)
		w.Comma = comma
		must.NoError(t, w.WriteAll(want))

		var got [][]string
		r := rows{csv: true, comma: byte(comma)}
		r.emit = func(row []byte, _ int64, long bool) {
			must.False(t, long)
			if len(row) > 0 {
				got = append(got, split(nil, row, byte(comma)))
			}
		}
		for b := text.Bytes(); len(b) > 0; {
			n := 1 + rng.Intn(len(b))
			r.feed(b[:n])
			b = b[n:]
		}
		read := stdcsv.NewReader(bytes.NewReader(text.Bytes()))
		read.Comma, read.FieldsPerRecord = comma, -1
		want, err := read.ReadAll()
		must.NoError(t, err)
		must.Eq(t, want, got, must.Sprintf("%q", text.String()))
		must.Eq(t, int64(bytes.Count(text.Bytes(), []byte("\n"))), r.line)
	}
}

func FuzzCSV(f *testing.F) {
	for _, s := range []string{"step,loss\n1,0.5\n", "step;loss\r\n1;0,5\n", "\xef\xbb\xbf\"a\"\t\"loss\"\n1\t\"2\n3\"\n", "# a,loss\n1,nan\nloss,a\n1,2\n",
		"a,\"b\"\"c\",loss\n\x00\n,,\n\"", "loss\n\"0.5", "{\"loss\": 1}\n", "a,loss\n1,\"\"\"\n2,3\n"} {
		f.Add([]byte(s), 3, "")
		f.Add([]byte(s), 100, "loss")
	}
	root, err := taskfs.Open(f.TempDir(), "")
	must.NoError(f, err)
	defer root.Close()
	f.Fuzz(func(t *testing.T, data []byte, size int, metric string) {
		fuzz(t, root, progress.FormatCSV, data, size, metric)
	})
}

func FuzzJSONL(f *testing.F) {
	for _, s := range []string{`{"step": 1, "loss": 0.5}` + "\n", "\xef\xbb\xbf{'loss': nan}\r\n", `{"a": {"loss": 1}}` + "\n{", "\x00\n[{\"loss\": 1},\n"} {
		f.Add([]byte(s), 3, "")
		f.Add([]byte(s), 100, "a.loss")
	}
	root, err := taskfs.Open(f.TempDir(), "")
	must.NoError(f, err)
	defer root.Close()
	f.Fuzz(func(t *testing.T, data []byte, size int, metric string) {
		fuzz(t, root, progress.FormatJSONL, data, size, metric)
	})
}

// fuzz reads data in parts and at once: the reports must be equal, and their lines
// exist. A later process that continues anywhere reports the rest.
func fuzz(t *testing.T, root *taskfs.Dir, format string, data []byte, size int, metric string) {
	cfg := progress.Config{Metric: metric}
	if cfg.Validate() != nil || size < 1 {
		t.Skip()
	}
	start := func() *File {
		f, err := Open(root, "x", format, cfg)
		must.NoError(t, err)
		f.now = func() time.Time { return time.Time{} }
		return f
	}
	feed := func(f *File, data []byte) (all []progress.Report) {
		f.reports = nil
		f.rows.feed(data)
		return f.reports
	}
	whole := start()
	want := feed(whole, data)
	parts := start()
	var got []progress.Report
	for b := data; len(b) > 0; {
		n := min(size, len(b))
		got = append(got, feed(parts, b[:n])...)
		b = b[n:]
		must.LessEq(t, maxRow, len(parts.rows.buf))
	}
	must.Eq(t, show(want), show(got))
	must.Eq(t, whole.rows.line, parts.rows.line)
	for _, r := range want {
		must.Between(t, 1, r.Line, int64(bytes.Count(data, []byte("\n"))))
	}
	whole.Note()
	must.True(t, json.Valid(whole.Offset()))
}
