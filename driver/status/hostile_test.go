// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/taskfs"
)

const precious = "not yours\n"

type victim struct {
	dir, file string
	was       unix.Stat_t
}

func newVictim(t *testing.T) *victim {
	v := &victim{dir: t.TempDir()}
	v.file = filepath.Join(v.dir, "file")
	must.NoError(t, os.WriteFile(v.file, []byte(precious), 0o600))
	must.NoError(t, unix.Stat(v.file, &v.was))
	return v
}

func (v *victim) unharmed(t *testing.T) {
	t.Helper()
	must.Eq(t, precious, readFileOf(t, v.file))
	must.Eq(t, []string{"file"}, names(t, v.dir))
	var is unix.Stat_t
	must.NoError(t, unix.Stat(v.file, &is))
	must.Eq(t, v.was.Ino, is.Ino)
	must.Eq(t, v.was.Mode, is.Mode)
	must.Eq(t, v.was.Uid, is.Uid)
	must.Eq(t, v.was.Mtim, is.Mtim)
}

func sparse(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Truncate(10 << 30)
}

var plants = map[string]func(path string, v *victim) error{
	"absolute symlink": func(path string, v *victim) error { return os.Symlink(v.file, path) },
	"dangling symlink": func(path string, v *victim) error { return os.Symlink(filepath.Join(v.dir, "new"), path) },
	"hard link":        func(path string, v *victim) error { return os.Link(v.file, path) },
	"FIFO":             func(path string, _ *victim) error { return unix.Mkfifo(path, 0o666) },
	"socket":           func(path string, _ *victim) error { return unix.Mknod(path, unix.S_IFSOCK|0o666, 0) },
	"empty directory":  func(path string, _ *victim) error { return os.Mkdir(path, 0o777) },
	"full directory":   func(path string, _ *victim) error { return os.MkdirAll(filepath.Join(path, "sub"), 0o777) },
	"garbage":          func(path string, _ *victim) error { return os.WriteFile(path, []byte("\x00\xff{[,\n"), 0o666) },
	"sparse file":      func(path string, _ *victim) error { return sparse(path) },
}

func TestHostile_file(t *testing.T) {
	for _, place := range []string{"t.json", "t.csv", taskfs.TempName("t.json"), taskfs.TempName("t.csv")} {
		for what, plant := range plants {
			t.Run(place+"/"+what, func(t *testing.T) {
				t.Parallel()
				watchdog(t)
				v := newVictim(t)
				// At most 16 rows: the temporary file of the history is used as well.
				w, dir := newTestWriter(t, Options{MaxRows: 16})
				for i := range 16 {
					must.NoError(t, w.Append(rowAt(i)))
				}
				must.NoError(t, w.Status(Status{Task: "t", Step: 1}))
				files := []string{"t.csv", "t.json"}
				path := filepath.Join(dir, place)
				must.NoError(t, os.RemoveAll(path))
				must.NoError(t, plant(path, v))

				readable := what == "garbage" || what == "sparse file" || what == "hard link"
				_, err := w.readStatus()
				if place == "t.json" {
					must.ErrorContains(t, err, path)
					must.Eq(t, !readable, errors.Is(err, taskfs.ErrKind))
				} else {
					must.NoError(t, err)
				}
				rows, err := w.history()
				switch {
				case place != "t.csv":
					must.NoError(t, err)
					eqRows(t, rowsUpTo(16), rows)
				case readable:
					must.NoError(t, err)
					must.SliceEmpty(t, rows)
				default:
					must.ErrorIs(t, err, taskfs.ErrKind)
					must.ErrorContains(t, err, path)
				}

				blocked := func(err error, name string) {
					t.Helper()
					if what == "full directory" && (place == name || place == taskfs.TempName(name)) {
						must.ErrorIs(t, err, taskfs.ErrKind)
						must.ErrorContains(t, err, path)
						return
					}
					must.NoError(t, err)
				}
				blocked(w.Status(Status{Task: "t", Step: 2}), "t.json")
				blocked(w.Append(rowAt(16)), "t.csv")
				v.unharmed(t)

				if what == "full directory" { // the task may remove it again
					must.NoError(t, os.RemoveAll(path))
					must.NoError(t, w.Status(Status{Task: "t", Step: 2}))
					if strings.Contains(place, ".csv") {
						must.NoError(t, w.Append(rowAt(16)))
					}
				}
				must.Eq(t, files, names(t, dir))
				for _, name := range files {
					var st unix.Stat_t
					must.NoError(t, unix.Lstat(filepath.Join(dir, name), &st))
					must.Eq(t, unix.S_IFREG|fileMode, st.Mode)
					must.Eq(t, 1, uint64(st.Nlink))
				}
				st, err := w.readStatus()
				must.NoError(t, err)
				must.Eq(t, 2, st.Step)
				rows, err = w.history()
				must.NoError(t, err)
				if place == "t.csv" {
					eqRows(t, []Row{rowAt(16)}, rows)
				} else {
					eqRows(t, thin(rowsUpTo(17), 12), rows)
				}
				must.NoError(t, w.Append(rowAt(17)))
				v.unharmed(t)
			})
		}
	}
}

// data belongs to the task and is not removed; data/ebbtide is the driver's.
func TestHostile_directory(t *testing.T) {
	for _, place := range []string{"data", Dir} {
		for what, plant := range plants {
			t.Run(place+"/"+what, func(t *testing.T) {
				watchdog(t)
				v := newVictim(t)
				base := t.TempDir()
				path := filepath.Join(base, place)
				must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				must.NoError(t, plant(path, v))
				planted, err := os.Lstat(path)
				must.NoError(t, err)

				w, err := NewWriter(base, "t", Options{})
				if place == "data" && !planted.IsDir() {
					must.ErrorIs(t, err, taskfs.ErrKind)
					must.ErrorContains(t, err, path)
					is, err := os.Lstat(path)
					must.NoError(t, err)
					must.True(t, os.SameFile(planted, is))
				} else {
					must.NoError(t, err)
					must.NoError(t, w.Status(Status{Task: "t"}))
					must.NoError(t, w.Append(rowAt(0)))
					must.SliceContainsSubset(t, names(t, filepath.Join(base, Dir)), []string{"t.csv", "t.json"})

					must.NoError(t, os.RemoveAll(path))
					must.NoError(t, plant(path, v))
					if !planted.IsDir() {
						_, err = w.readStatus()
						must.ErrorContains(t, err, path)
						_, err = w.history()
						must.ErrorContains(t, err, path)
					}
					must.NoError(t, w.Append(rowAt(1)))
					rows, err := w.history()
					must.NoError(t, err)
					eqRows(t, []Row{rowAt(1)}, rows)
				}
				v.unharmed(t)
			})
		}
	}
}

func TestHostile_race(t *testing.T) {
	watchdog(t)
	v := newVictim(t)
	w, dir := newTestWriter(t, Options{MaxRows: 16})
	stop := make(chan struct{})
	var attacker sync.WaitGroup
	attacker.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.RemoveAll(dir)
			_ = os.Symlink(v.dir, dir)
			_ = os.Remove(dir)
			_ = os.Mkdir(dir, 0o755)
			for _, name := range []string{"t.json", "t.csv", "t.png"} {
				_ = os.Symlink(v.file, filepath.Join(dir, name))
				_ = os.Link(v.file, filepath.Join(dir, taskfs.TempName(name)))
				_ = os.Remove(filepath.Join(dir, name))
				_ = os.Link(v.file, filepath.Join(dir, name))
				_ = os.Symlink(v.file, filepath.Join(dir, taskfs.TempName(name)))
			}
		}
	})
	for i := range 1000 { // success depends on the race
		_ = w.Status(Status{Task: "t"})
		_ = w.Append(rowAt(i))
		_, _ = w.history()
		_, _ = w.readStatus()
	}
	close(stop)
	attacker.Wait()
	v.unharmed(t)

	w, err := NewWriter(w.base, "t", Options{})
	must.NoError(t, err)
	must.NoError(t, w.Status(Status{Task: "t", Step: 3}))
	must.NoError(t, w.Append(rowAt(0)))
	must.NoError(t, w.Picture())
	st, err := w.readStatus()
	must.NoError(t, err)
	must.Eq(t, 3, st.Step)
	must.Eq(t, []string{"t.csv", "t.json", "t.png"}, names(t, dir))
	v.unharmed(t)
}

func TestHostile_huge(t *testing.T) {
	w, dir := newTestWriter(t, Options{MaxRows: 100})
	huge := func(name, start string) string {
		path := filepath.Join(dir, name)
		must.NoError(t, os.WriteFile(path, []byte(start), 0o600))
		must.NoError(t, os.Truncate(path, 10<<30))
		return path
	}
	huge("t.json", `{"task":"t"}`)
	b, _, err := w.read(".json", MaxStatus)
	must.NoError(t, err)
	must.Len(t, MaxStatus, b)
	_, err = w.readStatus()
	must.Error(t, err)

	path := huge("t.csv", string(FormatHistory(rowsUpTo(10))))
	rows, err := w.history()
	must.NoError(t, err)
	eqRows(t, rowsUpTo(10), rows)
	must.NoError(t, w.Append(rowAt(10)))
	must.Eq(t, string(FormatHistory(rowsUpTo(11))), readFileOf(t, path))

	// More valid rows than allowed: the next append thins them, and their picture is
	// bounded.
	must.NoError(t, os.WriteFile(path, FormatHistory(rowsUpTo(3*defaultMaxRows)), 0o600))
	must.NoError(t, w.Picture())
	must.NoError(t, w.Append(rowAt(3*defaultMaxRows)))
	rows, err = w.history()
	must.NoError(t, err)
	must.LessEq(t, 100, len(rows))
	eqRows(t, rowsUpTo(1), rows[:1])
}

// A small file of very short lines must not yield many rows or much work: it is reread
// whenever the task rewrites it.
func TestHostile_manyLines(t *testing.T) {
	w, dir := newTestWriter(t, Options{})
	row := "0001-01-01T00:00:00Z\n"
	for want, forged := range map[int]string{
		maxLines: strings.Repeat(row, maxHistory/len(row)),
		0:        strings.Repeat("\n", maxLines) + row,
	} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, "t.csv"), []byte(forged), 0o600))
		rows, err := w.history()
		must.NoError(t, err)
		must.Len(t, want, rows)
		must.NoError(t, w.Append(rowAt(1)))
	}
}

func TestHostile_unreadable(t *testing.T) {
	w, dir := newTestWriter(t, Options{})
	for _, name := range []string{"t.json", "t.csv"} {
		must.NoError(t, sparse(filepath.Join(dir, name)))
		must.NoError(t, os.Chmod(filepath.Join(dir, name), 0))
	}
	if os.Geteuid() == 0 { // root can read everything: change this thread's user
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for up := w.base; up != os.TempDir() && up != "/"; up = filepath.Dir(up) {
			must.NoError(t, os.Chmod(up, 0o755))
		}
		_, err := unix.SetfsuidRetUid(65534)
		must.NoError(t, err)
		defer unix.SetfsuidRetUid(0)
	}
	_, err := w.readStatus()
	must.ErrorIs(t, err, os.ErrPermission)
	must.ErrorContains(t, err, filepath.Join(dir, "t.json"))
	_, err = w.history()
	must.ErrorIs(t, err, os.ErrPermission)
	must.ErrorContains(t, err, filepath.Join(dir, "t.csv"))
}
