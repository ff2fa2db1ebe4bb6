// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/client/logmon/logging"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/driver/progress/tail"
	"github.com/ebbtide/ebbtide/driver/taskfs"
)

type clock struct{ now time.Time }

func (c *clock) wait(d time.Duration) { c.now = c.now.Add(d) }

type fixture struct {
	t     testing.TB
	dir   string
	root  *taskfs.Dir
	logs  *Logs
	clock *clock
}

func newFixture(t testing.TB) *fixture {
	f := &fixture{t: t, dir: filepath.Join(t.TempDir(), "logs"), clock: &clock{now: time.Unix(1e9, 0)}}
	must.NoError(t, os.Mkdir(f.dir, 0o755))
	var err error
	f.root, err = taskfs.Open(filepath.Dir(f.dir), "")
	must.NoError(t, err)
	t.Cleanup(func() { f.root.Close() })
	f.logs = f.follow("train")
	return f
}

func (f *fixture) follow(task string) *Logs {
	l := NewLogs(f.root, "logs", task, newParser(f.t, Config{}))
	l.now = func() time.Time { return f.clock.now }
	f.t.Cleanup(func() { l.Close() })
	return l
}

func (f *fixture) offset() (o Offset) {
	must.NoError(f.t, json.Unmarshal(f.logs.Offset(), &o))
	return o
}

func (f *fixture) restart() {
	o := f.logs.Offset()
	must.NoError(f.t, f.logs.Close())
	f.logs = f.follow("train")
	f.logs.SetOffset(o)
}

func (f *fixture) path(name string) string { return filepath.Join(f.dir, name) }

func (f *fixture) write(name, text string) {
	file, err := os.OpenFile(f.path(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must.NoError(f.t, err)
	_, err = file.WriteString(text)
	must.NoError(f.t, err)
	must.NoError(f.t, file.Close())
}

func (f *fixture) remove(name string) { must.NoError(f.t, os.Remove(f.path(name))) }

func (f *fixture) poll() []float64 {
	reports, err := f.logs.Poll(context.Background())
	must.NoError(f.t, err)
	return values(reports)
}

func values(reports []Report) []float64 {
	out := []float64{}
	for _, r := range reports {
		out = append(out, r.Value)
	}
	return out
}

func (f *fixture) want(values ...float64) {
	f.t.Helper()
	must.SliceEqOp(f.t, values, f.poll())
}

func TestLogs_nothingThere(t *testing.T) {
	f := newFixture(t)
	f.want()
	f.logs = NewLogs(f.root, "missing", "train", newParser(t, Config{}))
	f.want()
	must.Eq(t, Offset{}, f.offset())
	must.NoError(t, f.logs.Close())
	_, err := f.logs.Poll(context.Background())
	must.ErrorIs(t, err, tail.ErrClosed)
}

func TestLogs_bothStreams(t *testing.T) {
	f := newFixture(t)
	f.write("train.stderr.0", " 10%|█| 10/100 [00:01<00:09, 9.5it/s]\r")
	f.write("train.stdout.0", "{'loss': 0.5, 'epoch': 0.1}\n")
	reports, err := f.logs.Poll(context.Background())
	must.NoError(t, err)
	must.Len(t, 2, reports)
	must.True(t, reports[0].StepOnly())
	must.Eq(t, Report{Time: f.clock.now, Metric: "loss", Value: 0.5, Step: 10, Total: 100, PerEpoch: 100, Line: 1}, reports[1])
	f.clock.wait(time.Second)
	f.write("train.stdout.0", "{'loss': 0.4, 'epoch': 0.1}\n")
	reports, err = f.logs.Poll(context.Background())
	must.NoError(t, err)
	must.Len(t, 1, reports)
	must.Eq(t, f.clock.now, reports[0].Time)
	must.Eq(t, 2, reports[0].Line)
	st := f.logs.Stats()
	must.Eq(t, 2, st.Lines)
	must.Eq(t, 3, st.Reports)
}

func TestLogs_partialLines(t *testing.T) {
	f := newFixture(t)
	f.write("train.stdout.0", "step=1 lo")
	f.want()
	f.write("train.stdout.0", "ss=0.1")
	f.want()
	f.write("train.stdout.0", "25\nstep=2 loss=0.25\rstep=3 loss=")
	f.want(0.125, 0.25)

	// Idle: the last word may continue; everything before it is parsed once.
	f.write("train.stdout.0", "0.5 acc=0.")
	f.want()
	f.clock.wait(idleAfter)
	f.want(0.5)
	f.want()
	f.clock.wait(time.Hour)
	f.want()
	f.write("train.stdout.0", "9 more")
	f.want()
	f.clock.wait(time.Hour)
	f.want()
	f.write("train.stdout.0", "\n")
	f.want()
	f.write("train.stdout.0", "loss=1")
	f.clock.wait(time.Hour)
	f.want()
	f.clock.wait(time.Hour)
	f.want()
	f.write("train.stdout.0", "2.5\n")
	f.want(12.5)

	// An unclosed dict is not parsed: its step may follow.
	f = newFixture(t)
	f.write("train.stdout.0", "{'loss': 0.75, ")
	f.want()
	f.clock.wait(time.Hour)
	f.want()
	f.write("train.stdout.0", "'step': 9}")
	f.want()
	f.clock.wait(time.Hour)
	f.want(0.75)
	f.restart() // this line has been reported
	f.want()
	f.write("train.stdout.0", "\n{'loss': 3.5}\n")
	f.want(3.5)
}

func TestLogs_rotation(t *testing.T) {
	f := newFixture(t)
	f.write("train.stdout.0", "loss=1.0\nloss=2.")
	f.want(1)
	// The file's end appears together with the next file, and a line straddles both.
	f.write("train.stdout.0", "5\nloss=3")
	f.write("train.stdout.1", ".5\nlo")
	f.want(2.5, 3.5)
	// Several rotations between two polls, the current file removed, then a gap.
	f.write("train.stdout.1", "ss=4.")
	f.write("train.stdout.2", "5\n")
	f.write("train.stdout.3", "")
	f.write("train.stdout.10", "loss=5.5\n")
	f.remove("train.stdout.0")
	f.remove("train.stdout.1") // it is open and can still be read
	f.want(4.5, 5.5)
	must.Eq(t, 6, f.logs.Stats().LostFiles) // 4 to 9 never existed
	f.write("train.stdout.10", "loss=6.5\n")
	f.want(6.5)
	// Another file is removed unread: it is counted, and the line that it cut is not
	// invented.
	f.write("train.stdout.10", "loss=7.")
	f.write("train.stdout.12", "5\nloss=8.5\n")
	f.want(7.5, 8.5) // indistinguishable from a straddling line
	must.Eq(t, 7, f.logs.Stats().LostFiles)
	must.Eq(t, 0, f.logs.Stats().Truncated)
}

func TestLogs_startsLate(t *testing.T) {
	f := newFixture(t)
	f.write("train.stdout.7", "loss=1.0\n")
	f.write("train.stdout.11", "loss=3.0\n")
	f.write("train.stdout.8", "loss=2.0\n")
	f.want(1, 2, 3)
	must.Eq(t, 9, f.logs.Stats().LostFiles)
}

func TestLogs_truncated(t *testing.T) {
	f := newFixture(t)
	f.write("train.stdout.0", "loss=1.0\nloss=2.0\nloss=3")
	f.want(1, 2)
	must.NoError(t, os.Truncate(f.path("train.stdout.0"), 0))
	f.write("train.stdout.0", "loss=4.0\n")
	f.want(4)
	must.Eq(t, 1, f.logs.Stats().Truncated)

	f.write("new", "loss=5.0\nloss=6.0\nloss=7.0\n")
	must.NoError(t, os.Rename(f.path("new"), f.path("train.stdout.0")))
	f.want(5, 6, 7)
	must.Eq(t, 2, f.logs.Stats().Truncated)

	f.write("train.stdout.1", "loss=8.0\n")
	f.want(8)
	must.NoError(t, os.Chtimes(f.path("train.stdout.1"), time.Unix(1000, 0), time.Unix(1000, 0)))
	must.NoError(t, os.Chtimes(f.path("train.stdout.0"), time.Unix(900, 0), time.Unix(900, 0)))
	f.remove("train.stdout.1")
	f.want() // 0 is older: the collector still writes to the open file
	f.remove("train.stdout.0")
	f.want()
	f.write("train.stdout.0", "loss=9.0\n")
	f.want(9)
	must.Eq(t, 3, f.logs.Stats().Truncated)
}

func TestLogs_names(t *testing.T) {
	f := newFixture(t)
	odd := []string{"train", "train.stdout", "train.stdout.0", "tr", "a b", "[x]*?", "..", "é%s", "-", "train.stderr.1", ".train"}
	for i, task := range odd {
		f.write(task+".stdout.0", fmt.Sprintf("loss=%d.0\n", i))
	}
	for _, name := range []string{"train.stdout.", "train.stdout.x", "train.stdout.-1", "train.stdout.+1", "train.stdout.01", "train.stdout.1x",
		"train.stdout.99999999999999999999", "train.stdout.0.gz", ".train.stdout.fifo", "train.stdout.1.0"} {
		f.write(name, "loss=99.0\n")
	}
	for i, task := range odd {
		f.logs = f.follow(task)
		if task == "train.stdout" {
			f.want(float64(i))
			continue
		}
		f.want(float64(i))
	}
}

func TestLogs_planted(t *testing.T) {
	f := newFixture(t)
	secret := filepath.Join(t.TempDir(), "secret")
	must.NoError(t, os.WriteFile(secret, []byte("loss=66.0\n"), 0o600))
	must.NoError(t, os.Symlink(secret, f.path("train.stdout.0")))
	must.NoError(t, unix.Mkfifo(f.path("train.stderr.0"), 0o600))
	check := func(want ...float64) {
		t.Helper()
		reports, err := f.logs.Poll(context.Background())
		must.ErrorIs(t, err, taskfs.ErrKind)
		must.SliceEqOp(t, want, values(reports))
	}
	check()
	check()
	must.NoError(t, os.Mkdir(f.path("train.stdout.1"), 0o755))
	f.write("train.stdout.2", "loss=1.0\n")
	check(1)
	must.NoError(t, os.Symlink(f.path("train.stdout.2"), f.path("train.stdout.3")))
	f.write("train.stdout.2", "loss=2.0\n")
	check(2)
	f.write("train.stdout.4", "loss=3.0\n")
	check(3)
	f.remove("train.stderr.0")
	f.want()

	other := newFixture(t)
	other.write("train.stdout.0", "loss=66.0\n")
	must.NoError(t, os.Symlink(other.dir, filepath.Join(filepath.Dir(f.dir), "link")))
	f.logs = NewLogs(f.root, "link", "train", newParser(t, Config{}))
	_, err := f.logs.Poll(context.Background())
	must.ErrorIs(t, err, taskfs.ErrKind)
}

func TestLogs_unreadable(t *testing.T) {
	f := newFixture(t)
	if os.Geteuid() == 0 { // root can read everything: change this thread's user
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		must.NoError(t, os.Chown(f.dir, 65534, -1))
		for up := filepath.Dir(f.dir); up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
			must.NoError(t, os.Chmod(up, 0o755))
		}
		_, err := unix.SetfsuidRetUid(65534)
		must.NoError(t, err)
		defer unix.SetfsuidRetUid(0)
	}
	denied := func(want ...float64) {
		t.Helper()
		reports, err := f.logs.Poll(context.Background())
		must.ErrorIs(t, err, os.ErrPermission)
		must.SliceEqOp(t, want, values(reports))
	}
	f.write("train.stdout.0", "loss=1.0\n")
	must.NoError(t, os.Chmod(f.path("train.stdout.0"), 0))
	f.write("train.stderr.0", "loss=2.0\n")
	denied(2)
	denied()
	must.NoError(t, os.Chmod(f.path("train.stdout.0"), 0o644))
	f.want(1)
	must.NoError(t, os.Chmod(f.dir, 0))
	denied()
	must.NoError(t, os.Chmod(f.dir, 0o755))
	f.write("train.stdout.0", "loss=3.0\n")
	f.want(3)
}

func TestLogs_readError(t *testing.T) {
	f := newFixture(t)
	f.write("train.stdout.0", "loss=1.0\n")
	f.want(1)
	f.logs.out.file.Close() // a closed file fails like one with EIO
	_, err := f.logs.Poll(context.Background())
	must.ErrorIs(t, err, tail.ErrClosed)
	f.write("train.stdout.1", "loss=2.0\n")
	reports, err := f.logs.Poll(context.Background())
	must.ErrorIs(t, err, tail.ErrClosed)
	must.SliceEqOp(t, []float64{2}, values(reports))
	f.want()
}

func TestLogs_bounds(t *testing.T) {
	f := newFixture(t)
	line := "noise without any number in it, over and over again\n"
	f.write("train.stdout.0", strings.Repeat(line, 3*pollBytes/2/len(line)))
	f.write("train.stderr.0", strings.Repeat("loss=0.5\n", 2*pollReports))
	f.wantAtLeast(pollReports)
	st := f.logs.Stats()
	must.True(t, st.More)
	must.Between(t, pollBytes, st.Bytes, pollBytes+pollReports*9+2*chunk)
	must.Positive(t, st.Behind)
	f.wantAtLeast(1000)
	for range 5 {
		f.poll()
	}
	st = f.logs.Stats()
	must.False(t, st.More)
	must.Zero(t, st.Behind)
	must.Eq(t, 2*pollReports, st.Reports)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f.write("train.stderr.0", "loss=0.5\n")
	_, err := f.logs.Poll(ctx)
	must.ErrorIs(t, err, context.Canceled)
	f.want(0.5)
}

func (f *fixture) wantAtLeast(n int) { must.GreaterEq(f.t, n, len(f.poll())) }

func TestLogs_slow(t *testing.T) {
	f := newFixture(t)
	f.write("train.stdout.0", strings.Repeat("x\n", 1<<20))
	f.logs.now = func() time.Time { f.clock.wait(pollTime / 3); return f.clock.now }
	f.want()
	must.True(t, f.logs.Stats().More)
	must.Between(t, chunk, f.logs.Stats().Bytes, 5*chunk)
}

func TestLogs_tooManyFiles(t *testing.T) {
	f := newFixture(t)
	f.logs.maxNames = 10
	f.write("train.stdout.0", "loss=0.5\n")
	for i := range 10 {
		f.write(fmt.Sprintf("x%d", i), "")
	}
	_, err := f.logs.Poll(context.Background())
	must.ErrorIs(t, err, taskfs.ErrTooMany)
	f.remove("x0")
	f.poll()
}

func TestLogs_resume(t *testing.T) {
	f := newFixture(t)
	f.write("train.stdout.0", "epoch 1 step 1 loss 1.0\nepoch 1 step 2 lo")
	f.want(1)
	f.restart()
	f.write("train.stdout.0", "ss 2.0\nepoch 2 step 1 loss 3")
	f.want(2)
	f.restart()
	f.write("train.stdout.1", ".0\n")
	f.want(3) // read from the start of the line, in the file before
	f.restart()
	must.Eq(t, "loss", f.logs.parser.Metric())
	f.want()
	f.write("train.stdout.1", "epoch 2 step 2 lo")
	f.want()
	f.write("train.stdout.2", "ss 4.0")
	f.want()
	must.Eq(t, 1, f.offset().Stdout.File)
	f.restart()
	f.write("train.stdout.2", "\n")
	reports, err := f.logs.Poll(context.Background())
	must.NoError(t, err)
	must.Len(t, 1, reports)
	must.Eq(t, 4, reports[0].Step)
	must.Eq(t, 4, reports[0].Line)

	f.restart()
	f.write("train.stdout.5", "loss 5.0\n")
	f.remove("train.stdout.2")
	f.want(5)
	must.Eq(t, 3, f.logs.Stats().LostFiles)
	f.restart()
	must.NoError(t, os.Truncate(f.path("train.stdout.5"), 0))
	f.write("train.stdout.5", "loss 6\n")
	f.want()
	f.write("train.stdout.5", "loss 6.5\n")
	f.want(6.5)
	f.restart()
	f.write("new", "epoch 9: loss 7.5\nepoch 9: loss 8.5\n")
	must.NoError(t, os.Rename(f.path("new"), f.path("train.stdout.5")))
	f.want(7.5, 8.5)
	f.restart()
	f.remove("train.stdout.0")
	f.remove("train.stdout.1")
	f.remove("train.stdout.5")
	f.want()
	f.write("train.stdout.0", "loss 9.5\n")
	f.want(9.5)

	f.restart()
	must.NoError(t, os.Truncate(f.path("train.stdout.0"), 0))
	f.write("train.stdout.0", "loss 9.0 and more\nloss 9.5\n")
	f.want(9, 9.5)

	f.write("train.stdout.0", strings.Repeat("long ", maxLine))
	f.want()
	f.restart()
	must.True(t, f.offset().Stdout.Long)
	f.write("train.stdout.0", "long loss 10.5\nloss 11.5\n")
	f.want(10.5, 11.5)
	must.Less(t, 100, f.logs.Stats().Bytes)

	f.logs = f.follow("train")
	f.logs.SetOffset([]byte(`{"stdout": {"inode": 5, "file": -1}, "stderr": {"inode": 1, "pos": -1}}`))
	f.logs.SetOffset([]byte("nonsense"))
	f.want(9, 9.5, 10.5, 11.5)
}

// Whatever Nomad's collector does, and however polls and restarts fall, each report is
// read once and in order while its file exists.
func TestLogs_nomadRotator(t *testing.T) {
	// Below about 32 KiB, which no job can configure, lines often straddle files. (The
	// collector loops on a line longer than a file.)
	rng := rand.New(rand.NewPCG(3, 4))
	for round := range 6 {
		f := newFixture(t)
		size := []int64{2_000, 5_000, 40_000, 100_000, 200_000, 1 << 20}[round]
		rotator, err := logging.NewFileRotator(f.dir, "train.stdout", 1000, size, hclog.NewNullLogger())
		must.NoError(t, err)
		var want, got []float64
		var pending bytes.Buffer
		for i := range 3000 {
			want = append(want, float64(i))
			fmt.Fprintf(&pending, "some text before, step=%d loss=%d.0 and%s after\n", i, i, strings.Repeat(" more", rng.IntN(60)))
			if rng.IntN(20) == 0 {
				cut := rng.IntN(pending.Len() + 1) // collectors get pieces, not lines
				_, err := rotator.Write(pending.Next(cut))
				must.NoError(t, err)
			}
			if rng.IntN(100) == 0 {
				got = append(got, f.poll()...)
			}
			if rng.IntN(300) == 0 {
				f.restart()
			}
			if rng.IntN(500) == 0 { // an agent's restart
				must.NoError(t, rotator.Close())
				rotator, err = logging.NewFileRotator(f.dir, "train.stdout", 1000, size, hclog.NewNullLogger())
				must.NoError(t, err)
			}
		}
		_, err = rotator.Write(pending.Bytes())
		must.NoError(t, err)
		must.NoError(t, rotator.Close())
		for {
			got = append(got, f.poll()...)
			if !f.logs.Stats().More {
				break
			}
		}
		must.SliceEqOp(t, want, got)
		must.Zero(t, f.logs.Stats().LostFiles)
	}
}

// The same with files removed concurrently: reports stay in order and unique, and
// losses are counted.
func TestLogs_anyHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFixture(t)
		file, next, oldest := 0, 0, 0
		last := -1.0
		lost := false
		take := func() {
			for _, v := range f.poll() {
				if v <= last {
					rt.Fatalf("%v after %v", v, last)
				}
				if v != last+1 && f.logs.Stats().LostFiles == 0 && !lost {
					rt.Fatalf("%v after %v", v, last)
				}
				last = v
			}
			lost = lost || f.logs.Stats().LostFiles > 0
		}
		f.write("train.stdout.0", "")
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 6).Draw(rt, "action") {
			case 0, 1:
				text := fmt.Sprintf("step=%d loss=%d.0 x\n", next, next)
				next++
				cut := rapid.IntRange(0, len(text)).Draw(rt, "cut")
				f.write(fmt.Sprintf("train.stdout.%d", file), text[:cut])
				if rapid.Bool().Draw(rt, "straddle") {
					file++
				}
				f.write(fmt.Sprintf("train.stdout.%d", file), text[cut:])
			case 2:
				file++
				f.write(fmt.Sprintf("train.stdout.%d", file), "")
			case 3:
				if oldest < file {
					os.Remove(f.path(fmt.Sprintf("train.stdout.%d", oldest)))
					oldest++
				}
			case 4, 5:
				take()
			case 6:
				f.restart()
			}
		}
		take()
		if !lost && last != float64(next-1) {
			rt.Fatalf("the last was %v of %d", last, next)
		}
		f.logs.Close()
	})
}

// Open files are closed again, and an idle Poll is cheap.
func TestLogs_files(t *testing.T) {
	f := newFixture(t)
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		must.NoError(t, err)
		return len(entries)
	}
	before := open()
	for i := range 20 {
		f.write(fmt.Sprintf("train.stdout.%d", i), "loss=0.5\n")
		f.write(fmt.Sprintf("train.stderr.%d", i), "loss=0.5\n")
		f.poll()
		must.LessEq(t, before+2, open())
	}
	f.restart()
	f.poll()
	must.NoError(t, f.logs.Close())
	must.NoError(t, f.logs.Close())
	must.LessEq(t, before, open())
	must.Eq(t, 19, f.offset().Stdout.File)
}

func BenchmarkLogs_idle(b *testing.B) {
	f := newFixture(b)
	f.write("train.stdout.0", "loss=0.5\n")
	f.write("train.stderr.0", "loss=0.5\n")
	f.logs.now = time.Now
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.logs.Poll(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLogs(b *testing.B) {
	part := append(noise(9<<20), samples(b, "*.log", 1<<20)...)
	live := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	b.SetBytes(100 * int64(len(part)))
	for b.Loop() {
		f := newFixture(b)
		f.logs.now = time.Now
		var base, most float64
		for i := range 100 {
			must.NoError(b, os.WriteFile(f.path(fmt.Sprintf("train.stdout.%d", i)), part, 0o644))
			for {
				if _, err := f.logs.Poll(context.Background()); err != nil && !errors.Is(err, os.ErrNotExist) {
					b.Fatal(err)
				}
				if !f.logs.Stats().More {
					break
				}
			}
			if i > 2 {
				f.remove(fmt.Sprintf("train.stdout.%d", i-2))
			}
			if i == 5 {
				base = live()
			}
			if i > 5 && i%20 == 0 {
				most = max(most, live()-base)
			}
		}
		b.ReportMetric(most/(1<<20), "MiB-growth")
		must.Eq(b, 100*int64(len(part)), f.logs.Stats().Bytes)
		f.logs.Close()
	}
}
