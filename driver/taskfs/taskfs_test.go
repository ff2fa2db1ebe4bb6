// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package taskfs

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

const canary = "not yours\n"

type place struct {
	testing.TB
	dir     string // the task's
	outside string // has the file "canary"
	*Dir
}

func newPlace(t testing.TB) place {
	p := place{TB: t, dir: t.TempDir(), outside: t.TempDir()}
	must.NoError(t, os.WriteFile(filepath.Join(p.outside, "canary"), []byte(canary), 0o600))
	var err error
	p.Dir, err = Open(p.dir, "")
	must.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func (p place) path(name string) string { return filepath.Join(p.dir, name) }

func (p place) write(name, text string) {
	p.Helper()
	must.NoError(p, os.MkdirAll(filepath.Dir(p.path(name)), 0o755))
	must.NoError(p, os.WriteFile(p.path(name), []byte(text), 0o600))
}

func (p place) unharmed() {
	p.Helper()
	b, err := os.ReadFile(filepath.Join(p.outside, "canary"))
	must.NoError(p, err)
	must.Eq(p, canary, string(b))
	entries, err := os.ReadDir(p.outside)
	must.NoError(p, err)
	for _, e := range entries {
		must.SliceContains(p, []string{"canary", "other"}, e.Name())
	}
}

func (p place) beneath(fd uintptr) {
	p.Helper()
	at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	must.NoError(p, err)
	must.True(p, strings.HasPrefix(at, p.dir+"/"), must.Sprint(at))
}

func soon(t testing.TB) {
	timer := time.AfterFunc(time.Minute, func() { panic(t.Name() + " blocks") })
	t.Cleanup(func() { timer.Stop() })
}

func (p place) plants() map[string]func(at string) error {
	return map[string]func(at string) error{
		"absolute link":       func(at string) error { return os.Symlink(filepath.Join(p.outside, "canary"), at) },
		"link to a directory": func(at string) error { return os.Symlink(p.outside, at) },
		"link within":         func(at string) error { return os.Symlink("file", at) },
		"link to itself":      func(at string) error { return os.Symlink(filepath.Base(at), at) },
		"dangling link":       func(at string) error { return os.Symlink(filepath.Join(p.outside, "new"), at) },
		"link to a device":    func(at string) error { return os.Symlink("/dev/zero", at) },
		"magic link":          func(at string) error { return os.Symlink("/proc/self/fd/0", at) },
		"FIFO":                func(at string) error { return unix.Mkfifo(at, 0o666) },
		"socket":              func(at string) error { return unix.Mknod(at, unix.S_IFSOCK|0o666, 0) },
		"device":              func(at string) error { return unix.Mknod(at, unix.S_IFCHR|0o666, 1<<8|5) },
		"directory":           func(at string) error { return os.Mkdir(at, 0o777) },
	}
}

func TestOpen_plants(t *testing.T) {
	for what := range (place{}).plants() {
		t.Run(what, func(t *testing.T) {
			soon(t)
			p := newPlace(t)
			p.write("file", "fine")
			if err := p.plants()[what](p.path("x")); err != nil {
				t.Skip("cannot be planted here: ", err)
			}
			_, _, err := p.Open("x")
			must.ErrorIs(t, err, ErrKind)
			must.ErrorContains(t, err, p.path("x"))
			_, _, err = p.Append("x", Stat{})
			must.ErrorIs(t, err, ErrKind)
			_, err = p.ReadFile("x", 10)
			must.ErrorIs(t, err, ErrKind)
			if what != "FIFO" {
				_, err = p.FIFO("x")
				must.ErrorIs(t, err, ErrKind)
			}
			_, err = p.Create("x", 0o600)
			must.ErrorIs(t, err, fs.ErrExist)
			if what != "directory" {
				for _, path := range []string{"x", "x/y"} {
					_, err = p.Sub(path)
					must.ErrorIs(t, err, ErrKind)
					_, err = p.MkdirAll(path, 0o755)
					must.ErrorIs(t, err, ErrKind)
				}
				_, err = p.Create("x/new", 0o600)
				must.ErrorIs(t, err, ErrKind)
				_, err = p.WriteFile("x/new", nil, 0o600)
				must.ErrorIs(t, err, ErrKind)
				must.ErrorIs(t, p.Remove("x/canary"), ErrKind)
				_, _, err = p.Open("x/canary")
				must.ErrorIs(t, err, ErrKind)
				_, err = p.Names("x", 10)
				must.ErrorIs(t, err, ErrKind)
			}
			names, err := p.Glob("x/*", 10)
			must.NoError(t, err)
			must.SliceEmpty(t, names)

			_, err = p.WriteFile("x", []byte("ours"), 0o640)
			must.NoError(t, err)
			b, err := p.ReadFile("x", 10)
			must.NoError(t, err)
			must.Eq(t, "ours", string(b))
			s, err := p.Stat("x")
			must.NoError(t, err)
			must.Eq(t, unix.S_IFREG|0o640, s.Mode)

			must.NoError(t, p.plants()[what](p.path(TempName("x"))))
			_, err = p.WriteFile("x", []byte("new"), 0o640)
			must.NoError(t, err)
			must.NoError(t, p.plants()[what](p.path("y")))
			must.NoError(t, p.Remove("y"))
			left, err := p.Names(".", 10)
			must.NoError(t, err)
			must.SliceContainsAll(t, []string{"file", "x"}, left)
			p.unharmed()
		})
	}
}

func TestOpen_names(t *testing.T) {
	p := newPlace(t)
	for _, bad := range []string{"", "..", "../x", "/etc/passwd", "a/../../x", "a\x00b"} {
		_, _, err := p.Open(bad)
		must.ErrorIs(t, err, fs.ErrInvalid, must.Sprintf("%q", bad))
		_, err = p.Sub(bad)
		must.ErrorIs(t, err, fs.ErrInvalid)
		_, err = p.MkdirAll(bad, 0o755)
		must.ErrorIs(t, err, fs.ErrInvalid)
		_, err = p.WriteFile(bad, nil, 0o600)
		must.ErrorIs(t, err, fs.ErrInvalid)
		must.ErrorIs(t, p.Remove(bad), fs.ErrInvalid)
	}
	must.ErrorIs(t, p.Remove("."), fs.ErrInvalid)
	_, _, err := p.Open("evil\n[ERROR] name")
	must.ErrorContains(t, err, `evil\n[ERROR]`)
	_, err = Open(p.dir, "../x")
	must.ErrorIs(t, err, fs.ErrInvalid)
	_, err = Open(p.path("missing"), "")
	must.ErrorIs(t, err, fs.ErrNotExist)

	// The base is trusted, its content is not.
	must.NoError(t, os.Symlink(p.dir, filepath.Join(p.outside, "base")))
	must.NoError(t, os.Mkdir(p.path("sub"), 0o755))
	d, err := Open(filepath.Join(p.outside, "base"), "sub")
	must.NoError(t, err)
	must.NoError(t, d.Close())
	_, err = Open(filepath.Split(filepath.Join(p.outside, "base")))
	must.ErrorIs(t, err, ErrKind)
}

// The holder of a lease on a file can delay others' open for up to 45 s.
func TestOpen_lease(t *testing.T) {
	soon(t)
	p := newPlace(t)
	p.write("x", "abc")
	f, err := os.OpenFile(p.path("x"), os.O_RDWR, 0)
	must.NoError(t, err)
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skip("no leases here: ", err)
	}
	_, _, err = p.Open("x")
	must.ErrorIs(t, err, unix.EAGAIN)
}

func TestFIFO(t *testing.T) {
	soon(t)
	p := newPlace(t)
	must.NoError(t, unix.Mkfifo(p.path("pipe"), 0o600))
	_, err := p.FIFO("pipe")
	must.ErrorIs(t, err, unix.ENXIO)
	r, err := os.OpenFile(p.path("pipe"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	must.NoError(t, err)
	defer r.Close()
	w, err := p.FIFO("pipe")
	must.NoError(t, err)
	_, err = w.WriteString("hello")
	must.NoError(t, err)
	must.NoError(t, w.Close())
	b, err := io.ReadAll(r)
	must.NoError(t, err)
	must.Eq(t, "hello", string(b))
	p.write("file", "")
	_, err = p.FIFO("file")
	must.ErrorIs(t, err, ErrKind)
}

// Only created files are written to; other names of a replaced file keep their content.
func TestAppend(t *testing.T) {
	p := newPlace(t)
	append := func(made Stat) error {
		f, s, err := p.Append("x", made)
		if err == nil {
			must.True(t, s.Same(made))
			_, err = f.WriteString("!")
			must.NoError(t, f.Close())
		}
		return err
	}
	must.NoError(t, os.Link(filepath.Join(p.outside, "canary"), p.path("x")))
	made, err := p.Stat("x")
	must.NoError(t, err)
	must.ErrorIs(t, append(Stat{}), ErrKind)
	must.ErrorIs(t, append(made), ErrKind) // has two names
	made, err = p.WriteFile("x", []byte("ours"), 0o600)
	must.NoError(t, err)
	p.unharmed()
	must.NoError(t, append(made))
	b, err := p.ReadFile("x", 100)
	must.NoError(t, err)
	must.Eq(t, "ours!", string(b))
	must.NoError(t, os.Rename(p.path("x"), p.path("y")))
	must.ErrorIs(t, append(made), fs.ErrNotExist)
	p.write("x", "the task's")
	must.ErrorIs(t, append(made), ErrKind)
}

func TestMkdirAll(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	p := newPlace(t)
	for range 2 {
		d, err := p.MkdirAll("a/b/c", 0o755)
		must.NoError(t, err)
		must.Eq(t, p.path("a/b/c"), d.Name())
		must.NoError(t, d.Close())
	}
	s, err := p.Stat("a/b")
	must.NoError(t, err)
	must.Eq(t, unix.S_IFDIR|0o755, s.Mode)
	_, err = p.WriteFile("a/b/x", []byte("1"), 0o644)
	must.NoError(t, err)
	s, err = p.Stat("a/b/x")
	must.NoError(t, err)
	must.Eq(t, unix.S_IFREG|0o644, s.Mode)
	_, err = p.WriteFile("a/b", nil, 0o644)
	must.ErrorIs(t, err, ErrKind)
	must.NoError(t, os.MkdirAll(p.path(TempName("y")+"/full"), 0o755))
	_, err = p.WriteFile("y", nil, 0o644)
	must.ErrorIs(t, err, ErrKind)
	names, err := p.Names("a", 10)
	must.NoError(t, err)
	must.Eq(t, []string{"b"}, names)
	must.NoError(t, p.Remove("a/b/c"))
	must.ErrorIs(t, p.Remove("a"), unix.ENOTEMPTY)
}

func TestReadFile_sparse(t *testing.T) {
	p := newPlace(t)
	p.write("x", "abc")
	must.NoError(t, os.Truncate(p.path("x"), 1<<40))
	b, err := p.ReadFile("x", 1000)
	must.NoError(t, err)
	must.Len(t, 1000, b)
}

func TestGlob(t *testing.T) {
	p := newPlace(t)
	for _, name := range []string{"a/x.pt", "a/y.pt", "b/x.pt", "b/z.bin", "c.pt", "deep/er/x.pt", "[x]", "bad\n.pt", "bad\xff.pt"} {
		p.write(name, "")
	}
	must.NoError(t, os.Symlink("a", p.path("link")))
	for pattern, want := range map[string][]string{
		"*.pt":          {"c.pt"},
		"*/x.pt":        {"a/x.pt", "b/x.pt"},
		"a/*":           {"a/x.pt", "a/y.pt"},
		"c.pt":          {"c.pt"},
		"c.pt/x":        nil,
		"missing/*":     nil,
		`\[x\]`:         {"[x]"},
		"./deep/*/x.pt": {"deep/er/x.pt"},
		"link":          {"link"}, // itself
		"../*":          nil,
		"*/../*":        {"[x]", "a", "b", "c.pt", "deep", "link"}, // cleaned: "*"
	} {
		got, err := p.Glob(pattern, 100)
		must.NoError(t, err)
		must.SliceEqOp(t, want, got, must.Sprint(pattern))
	}
	_, err := p.Glob("[", 10)
	must.Error(t, err)
	_, err = p.Glob("*.pt", 7) // eight are listed
	must.ErrorIs(t, err, ErrTooMany)
	_, err = p.Glob("*/*", 10)
	must.ErrorIs(t, err, ErrTooMany)
	_, err = p.Glob("a/x.pt", 1)
	must.ErrorIs(t, err, ErrTooMany)
}

func TestGlob_stops(t *testing.T) {
	p := newPlace(t)
	const many = 5_000
	for i := range many {
		f, err := os.Create(p.path(fmt.Sprint(i)))
		must.NoError(t, err)
		must.NoError(t, f.Close())
	}
	listed := func(most int) float64 {
		return testing.AllocsPerRun(1, func() {
			_, err := p.Glob("x*", most)
			if most < many {
				must.ErrorIs(t, err, ErrTooMany)
			} else {
				must.NoError(t, err)
			}
		})
	}
	must.Less(t, listed(many)/10, listed(10))
	names, err := p.Names(".", 10)
	must.ErrorIs(t, err, ErrTooMany)
	must.Len(t, 10, names)
	n := 0
	err = p.Walk(".", Bounds{Entries: 1000, Depth: 1}, func(string, Stat, error) error { n++; return nil })
	must.ErrorIs(t, err, ErrTooMany)
	must.Eq(t, 1001, n)
}

func TestWalk(t *testing.T) {
	p := newPlace(t)
	for _, name := range []string{"a/1", "a/b/2", "a/b/c/3", "x"} {
		p.write(name, "abc")
	}
	must.NoError(t, os.Symlink(p.outside, p.path("a/out")))
	must.NoError(t, unix.Mkfifo(p.path("a/pipe"), 0o600))
	walk := func(top string, depth int) map[string]int64 {
		got := map[string]int64{}
		must.NoError(t, p.Walk(top, Bounds{Entries: 100, Depth: depth}, func(path string, s Stat, err error) error {
			must.NoError(t, err)
			got[path] = -1
			if s.IsRegular() {
				got[path] = s.Size
			}
			return nil
		}))
		return got
	}
	must.Eq(t, map[string]int64{"a": -1, "a/1": 3, "a/b": -1, "a/b/2": 3, "a/b/c": -1, "a/b/c/3": 3, "a/out": -1, "a/pipe": -1}, walk("a", 9))
	must.Eq(t, map[string]int64{"a": -1, "a/1": 3, "a/b": -1, "a/b/2": 3, "a/b/c": -1, "a/out": -1, "a/pipe": -1}, walk("a", 1))
	must.Eq(t, map[string]int64{"x": 3}, walk("x", 1))
	must.Eq(t, map[string]int64{"a/out": -1}, walk("a/out", 1))
	err := p.Walk("missing", Bounds{}, func(_ string, _ Stat, err error) error { return err })
	must.ErrorIs(t, err, fs.ErrNotExist)
	err = p.Walk("a", Bounds{Entries: 10, Depth: 3}, func(path string, _ Stat, _ error) error {
		if path == "a/1" {
			return io.EOF
		}
		return nil
	})
	must.ErrorIs(t, err, io.EOF)
}

// While a task swaps the files under every name, nothing outside is opened, listed,
// changed or removed, and nothing blocks.
func TestRace(t *testing.T) {
	soon(t)
	p := newPlace(t)
	must.NoError(t, os.WriteFile(filepath.Join(p.outside, "other"), nil, 0o600))
	var outside Stat
	must.NoError(t, unix.Stat(filepath.Join(p.outside, "canary"), &outside.Stat_t))
	swaps := []func(at string) error{
		func(at string) error { return os.Symlink(p.outside, at) },
		func(at string) error { return os.Symlink(filepath.Join(p.outside, "canary"), at) },
		func(at string) error { return os.Link(filepath.Join(p.outside, "canary"), at) },
		func(at string) error { return os.WriteFile(at, []byte("own"), 0o666) },
		func(at string) error { return os.Mkdir(at, 0o777) },
		func(at string) error { return unix.Mkfifo(at, 0o666) },
	}
	stop := make(chan struct{})
	var attacker sync.WaitGroup
	for _, name := range []string{"x", TempName("x"), "d", "d/x", "d/canary"} {
		attacker.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				next := p.path(strings.ReplaceAll(name, "/", "-") + ".next")
				if name == "d" && i%2 == 0 {
					_ = os.Mkdir(next, 0o777)
				} else {
					_ = swaps[i%len(swaps)](next)
				}
				if unix.Renameat2(unix.AT_FDCWD, next, unix.AT_FDCWD, p.path(name), unix.RENAME_EXCHANGE) != nil {
					_ = os.Rename(next, p.path(name))
				}
				_ = os.RemoveAll(next)
			}
		})
	}
	defer attacker.Wait()
	defer close(stop)
	opened := 0
	for range 500 {
		for _, path := range []string{"x", "d/x", "d/canary"} {
			if f, s, err := p.Open(path); err == nil {
				opened++
				must.True(t, s.IsRegular())
				if !s.Same(outside) { // a hard link is indistinguishable from a file
					p.beneath(f.Fd())
				}
				must.NoError(t, f.Close())
			}
			made, _ := p.WriteFile(path, []byte("ours"), 0o600)
			if f, _, err := p.Append(path, made); err == nil {
				_, err := f.WriteString("!")
				must.NoError(t, err)
				must.NoError(t, f.Close())
			}
			if f, err := p.FIFO(path); err == nil {
				must.NoError(t, f.Close())
			}
			_ = p.Remove(path)
		}
		if d, err := p.MkdirAll("d/e", 0o755); err == nil {
			p.beneath(d.file.Fd())
			must.NoError(t, d.Close())
		}
		names, _ := p.Names("d", 1000)
		must.SliceNotContains(t, names, "other")
		_ = p.Remove("d/e")
		p.unharmed()
	}
	must.Positive(t, opened)
}

// In any tree of directories, files and links, a path is opened exactly if it contains
// no link, and then beneath.
func TestAnyTree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := newPlace(t)
		name := rapid.SampledFrom([]string{"a", "b", "c"})
		path := rapid.Custom(func(rt *rapid.T) string {
			return strings.Join(rapid.SliceOfN(name, 1, 3).Draw(rt, "path"), "/")
		})
		for range rapid.IntRange(1, 15).Draw(rt, "nodes") {
			at := path.Draw(rt, "at")
			dir, err := filepath.EvalSymlinks(filepath.Dir(p.path(at)))
			if _, there := os.Lstat(p.path(at)); err != nil || there == nil || !strings.HasPrefix(dir, p.dir) {
				continue
			}
			switch rapid.IntRange(0, 3).Draw(rt, "kind") {
			case 0:
				_ = os.Mkdir(p.path(at), 0o755)
			case 1:
				_ = os.WriteFile(p.path(at), []byte("own"), 0o600)
			case 2:
				_ = os.Symlink(p.path(path.Draw(rt, "target")), p.path(at))
			case 3:
				_ = os.Symlink(rapid.SampledFrom([]string{p.outside, p.outside + "/canary", "..", "."}).Draw(rt, "out"), p.path(at))
			}
		}
		at := path.Draw(rt, "opened")
		real, err := filepath.EvalSymlinks(p.path(at))
		plain := err == nil && real == p.path(at)
		info, err := os.Lstat(p.path(at))
		f, _, oerr := p.Open(at)
		must.Eq(rt, plain && err == nil && info.Mode().IsRegular(), oerr == nil)
		if oerr == nil {
			p.beneath(f.Fd())
			must.NoError(rt, f.Close())
		}
		d, oerr := p.Sub(at)
		must.Eq(rt, plain && err == nil && info.IsDir(), oerr == nil)
		if oerr == nil {
			p.beneath(d.file.Fd())
			must.NoError(rt, d.Close())
		}
		p.unharmed()
	})
}
