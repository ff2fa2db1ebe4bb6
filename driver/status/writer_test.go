// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"bytes"
	"errors"
	"image/png"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/taskfs"
)

func newTestWriter(t *testing.T, opts Options) (w *Writer, dir string) {
	t.Helper()
	base := t.TempDir()
	w, err := NewWriter(base, "t", opts)
	must.NoError(t, err)
	return w, filepath.Join(base, Dir)
}

func rowAt(i int) Row {
	r := NewRow()
	r.Time = testStart.Add(time.Duration(i) * time.Second)
	r.CPUSeconds, r.Step, r.Value, r.Limit, r.Category = float64(i), float64(i), 1/float64(i+1), 0.5, "NL"
	return r
}

func rowsUpTo(n int) []Row {
	rows := make([]Row, n)
	for i := range rows {
		rows[i] = rowAt(i)
	}
	return rows
}

// eqRows compares rows as written, because NaN equals nothing.
func eqRows(t *testing.T, want, got []Row) {
	t.Helper()
	must.Eq(t, string(FormatHistory(want)), string(FormatHistory(got)))
}

// watchdog turns a hang into a failure with a stack.
func watchdog(t *testing.T) {
	timer := time.AfterFunc(5*time.Minute, func() { panic(t.Name() + " hangs") })
	t.Cleanup(func() { timer.Stop() })
}

func isPicture(t *testing.T, b []byte) {
	t.Helper()
	img, err := png.Decode(bytes.NewReader(b))
	must.NoError(t, err)
	must.Eq(t, picWidth, img.Bounds().Dx())
	must.Eq(t, picHeight, img.Bounds().Dy())
}

func readFileOf(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must.NoError(t, err)
	return string(b)
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestNewWriter_name(t *testing.T) {
	for name, ok := range map[string]bool{
		"":                       false,
		"a/b":                    false,
		"../t":                   false,
		"/":                      false,
		"a\x00":                  false,
		strings.Repeat("x", 241): false,
		strings.Repeat("x", 240): true, // valid with every suffix
		"..":                     true, // "...json"
		"a b\n✓":                 true,
	} {
		base := t.TempDir()
		w, err := NewWriter(base, name, Options{})
		if !ok {
			must.ErrorContains(t, err, "task name", must.Sprint(name))
			must.SliceEmpty(t, names(t, base))
			continue
		}
		must.NoError(t, err)
		must.NoError(t, w.Status(Status{Task: name}))
		must.NoError(t, w.Append(rowAt(0)))
		must.NoError(t, w.Picture())
		must.SliceContainsAll(t, []string{name + ".csv", name + ".json", name + ".png"}, names(t, filepath.Join(base, Dir)))
	}
}

func TestNewWriter_dir(t *testing.T) {
	for dir, below := range map[string]string{"": Dir, ".": ".", "private/ebbtide": "private/ebbtide"} {
		base := t.TempDir()
		w, err := NewWriter(base, "t", Options{Dir: dir})
		must.NoError(t, err)
		must.NoError(t, w.Status(Status{Task: "t", Step: 1}))
		for i := range 3 {
			must.NoError(t, w.Append(rowAt(i)))
		}
		st, err := ReadStatus(filepath.Join(base, below, "t.json"))
		must.NoError(t, err)
		must.Eq(t, 1, st.Step)
		rows, err := ReadHistory(filepath.Join(base, below, "t.csv"))
		must.NoError(t, err)
		eqRows(t, rowsUpTo(3), rows)
	}
}

func TestNewWriter_noBase(t *testing.T) {
	base := filepath.Join(t.TempDir(), "gone")
	_, err := NewWriter(base, "t", Options{})
	must.ErrorIs(t, err, fs.ErrNotExist)
	must.ErrorContains(t, err, base)
}

func TestNewWriter_temporaryFiles(t *testing.T) {
	w, dir := newTestWriter(t, Options{})
	for _, ext := range []string{".json", ".csv", ".png"} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, taskfs.TempName("t"+ext)), []byte("half"), 0o600))
	}
	other := taskfs.TempName("other.json")
	must.NoError(t, os.WriteFile(filepath.Join(dir, other), nil, 0o600))
	_, err := NewWriter(w.base, "t", Options{})
	must.NoError(t, err)
	must.Eq(t, []string{other}, names(t, dir))
}

func TestWriter_nothingYet(t *testing.T) {
	w, dir := newTestWriter(t, Options{})
	rows, err := w.history()
	must.NoError(t, err)
	must.SliceEmpty(t, rows)
	_, err = w.readStatus()
	must.ErrorIs(t, err, fs.ErrNotExist)
	must.ErrorContains(t, err, filepath.Join(dir, "t.json"))
	must.NoError(t, w.Picture())
	isPicture(t, []byte(readFileOf(t, filepath.Join(dir, "t.png"))))

	must.NoError(t, os.RemoveAll(dir))
	rows, err = w.history()
	must.NoError(t, err)
	must.SliceEmpty(t, rows)
	_, err = w.readStatus()
	must.ErrorIs(t, err, fs.ErrNotExist)
}

func TestWriter_directoryRemoved(t *testing.T) {
	w, dir := newTestWriter(t, Options{})
	must.NoError(t, w.Append(rowAt(0)))
	must.NoError(t, os.RemoveAll(filepath.Dir(dir)))
	must.NoError(t, w.Append(rowAt(1)))
	must.NoError(t, w.Status(Status{Task: "t"}))
	must.NoError(t, w.Picture())
	rows, err := w.history()
	must.NoError(t, err)
	eqRows(t, []Row{rowAt(1)}, rows)

	must.NoError(t, os.RemoveAll(w.base))
	for _, err := range []error{w.Append(rowAt(2)), w.Status(Status{}), w.Picture()} {
		must.ErrorIs(t, err, fs.ErrNotExist)
		must.ErrorContains(t, err, w.base)
	}
	must.FileNotExists(t, w.base)
}

func TestWriter_modes(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	w, dir := newTestWriter(t, Options{})
	must.NoError(t, w.Status(Status{}))
	must.NoError(t, w.Append(rowAt(0)))
	must.NoError(t, w.Picture())
	for _, d := range []string{dir, filepath.Dir(dir)} {
		fi, err := os.Stat(d)
		must.NoError(t, err)
		must.Eq(t, fs.FileMode(dirMode), fi.Mode().Perm())
	}
	for _, ext := range []string{".json", ".csv", ".png"} {
		fi, err := os.Stat(filepath.Join(dir, "t"+ext))
		must.NoError(t, err)
		must.Eq(t, fs.FileMode(fileMode), fi.Mode().Perm())
	}
}

func TestWriter_second(t *testing.T) {
	w, dir := newTestWriter(t, Options{})
	must.NoError(t, w.Append(rowAt(0)))
	second, err := NewWriter(w.base, "t", Options{})
	must.NoError(t, err)
	must.NoError(t, second.Append(rowAt(1)))
	must.NoError(t, w.Append(rowAt(2)))
	must.NoError(t, second.Append(rowAt(3)))
	must.Eq(t, string(FormatHistory(rowsUpTo(4))), readFileOf(t, filepath.Join(dir, "t.csv")))
}

func TestWriter_pictureLabels(t *testing.T) {
	w, dir := newTestWriter(t, Options{})
	draw := func(w *Writer) string {
		must.NoError(t, w.Picture())
		return readFileOf(t, filepath.Join(dir, "t.png"))
	}
	bare := draw(w)
	status := blank()
	status.Task, status.Metric, status.Goal, status.Target.Acceptable = "another", "loss", "min", 0.3
	must.NoError(t, w.Status(status))
	worded := draw(w)
	must.NotEq(t, bare, worded)
	want, err := Draw(nil, Labels{Task: "t", Metric: "loss", Goal: "min", Targets: []Mark{{"acceptable", 0.3}}})
	must.NoError(t, err)
	must.True(t, string(want) == worded)
}

func TestReadPath(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	must.NoError(t, os.WriteFile(plain, append(FormatHistory(rowsUpTo(2)), "torn"...), 0o600))
	rows, err := ReadHistory(plain)
	must.NoError(t, err)
	eqRows(t, rowsUpTo(2), rows)
	_, err = ReadStatus(plain)
	must.ErrorContains(t, err, "decode "+plain)

	must.NoError(t, os.WriteFile(plain, []byte(`{"task":"a","new":1}`), 0o600))
	st, err := ReadStatus(plain)
	must.NoError(t, err)
	must.Eq(t, "a", st.Task)
	must.False(t, st.Value.Known())

	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	must.NoError(t, os.Symlink(plain, link))
	must.NoError(t, unix.Mkfifo(fifo, 0o600))
	watchdog(t)
	for path, want := range map[string]error{
		link:                        taskfs.ErrKind,
		fifo:                        taskfs.ErrKind,
		dir:                         taskfs.ErrKind,
		"/dev/null":                 taskfs.ErrKind,
		filepath.Join(dir, "none"):  fs.ErrNotExist,
		filepath.Join(plain, "sub"): unix.ENOTDIR,
	} {
		_, err := ReadHistory(path)
		must.ErrorIs(t, err, want)
		must.ErrorContains(t, err, strings.TrimSuffix(path, "/sub"))
		_, err = ReadStatus(path)
		must.ErrorIs(t, err, want)
		must.ErrorContains(t, err, strings.TrimSuffix(path, "/sub"))
	}
}

// Concurrent readers see whole files: a status as written, and rows in their order.
func TestWriter_concurrent(t *testing.T) {
	watchdog(t)
	const appends, maxRows = 300, 64
	w, dir := newTestWriter(t, Options{MaxRows: maxRows})
	must.NoError(t, w.Status(Status{Task: "t", Step: 0}))

	// must is only for the test's own goroutine.
	var writers, readers sync.WaitGroup
	errs := make(chan error, 1)
	fail := func(err error) {
		if err != nil {
			select {
			case errs <- err:
			default:
			}
		}
	}
	done := make(chan struct{})
	writers.Go(func() {
		for i := range appends {
			fail(w.Append(rowAt(i)))
		}
	})
	for k := range 2 {
		writers.Go(func() {
			for i := range 100 {
				fail(w.Status(Status{Task: "t", Step: Number(i), Value: Number(i), Why: strings.Repeat("x", 1000*k+i)}))
			}
		})
	}
	writers.Go(func() {
		for range 3 {
			fail(w.Picture())
		}
	})
	read := func(status func() (Status, error), history func() ([]Row, error)) {
		readers.Go(func() {
			for {
				st, err := status()
				fail(err)
				if st.Task != "t" || st.Step != st.Value {
					fail(errors.New("a mixed status"))
				}
				rows, err := history()
				if !errors.Is(err, fs.ErrNotExist) {
					fail(err)
				}
				if len(rows) > maxRows {
					fail(errors.New("too many rows"))
				}
				for i, r := range rows {
					if r.Step != r.CPUSeconds || i > 0 && !r.Time.After(rows[i-1].Time) {
						fail(errors.New("a mixed row"))
					}
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	read(w.readStatus, w.history)
	read(func() (Status, error) { return ReadStatus(filepath.Join(dir, "t.json")) },
		func() ([]Row, error) { return ReadHistory(filepath.Join(dir, "t.csv")) })
	writers.Wait()
	close(done)
	readers.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	rows, err := w.history()
	must.NoError(t, err)
	eqRows(t, rowsUpTo(1), rows[:1])
	eqRows(t, []Row{rowAt(appends - 1)}, rows[len(rows)-1:])
	must.Eq(t, []string{"t.csv", "t.json", "t.png"}, names(t, dir))
}

func BenchmarkAppend(b *testing.B) {
	w, err := NewWriter(b.TempDir(), "t", Options{})
	must.NoError(b, err)
	for i := 0; b.Loop(); i++ {
		must.NoError(b, w.Append(rowAt(i)))
	}
}
