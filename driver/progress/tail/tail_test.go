// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tail

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/taskfs"
)

type fixture struct {
	testing.TB
	dir  string
	root *taskfs.Dir
	*File
}

func open(t testing.TB, path string) *fixture {
	dir := t.TempDir()
	return reopen(t, dir, path)
}

func reopen(t testing.TB, dir, path string) *fixture {
	root, err := taskfs.Open(dir, "")
	must.NoError(t, err)
	t.Cleanup(func() { root.Close() })
	f, err := Open(root, path)
	must.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return &fixture{t, dir, root, f}
}

func (f *fixture) path(name string) string { return filepath.Join(f.dir, name) }

func (f *fixture) write(name, text string) {
	must.NoError(f, os.WriteFile(f.path(name), []byte(text), 0o600))
}

func (f *fixture) append(name, text string) {
	file, err := os.OpenFile(f.path(name), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	must.NoError(f, err)
	_, err = file.WriteString(text)
	must.NoError(f, err)
	must.NoError(f, file.Close())
}

func (f *fixture) want(text string, restarted bool) {
	f.Helper()
	data, again, err := f.Read(context.Background(), 1<<20)
	must.NoError(f, err)
	must.Eq(f, text, string(data))
	must.Eq(f, restarted, again)
}

func (f *fixture) wantError(want error) {
	f.Helper()
	data, _, err := f.Read(context.Background(), 1<<20)
	must.ErrorIs(f, err, want)
	must.Eq(f, "", string(data))
	must.StrContains(f, err.Error(), f.Path())
}

func TestOpen(t *testing.T) {
	root, err := taskfs.Open(t.TempDir(), "")
	must.NoError(t, err)
	defer root.Close()
	for path, problem := range map[string]string{
		"":                        "must name a file",
		".":                       "must name a file",
		"a/..":                    "must name a file",
		"/etc/passwd":             "must be a relative path that stays within the directory",
		"../x":                    "must be a relative path that stays within the directory",
		"a/../../x":               "must be a relative path that stays within the directory",
		"a\x00b":                  "NUL",
		strings.Repeat("x", 5000): "4096",
	} {
		_, err := Open(root, path)
		must.ErrorContains(t, err, problem)
	}
	f, err := Open(root, "a/./b/../c.csv")
	must.NoError(t, err)
	must.Eq(t, "a/c.csv", f.Path())
}

func TestGrows(t *testing.T) {
	f := open(t, "x")
	f.wantError(ErrNotYet)
	must.Eq(t, Offset{}, f.Offset(0))
	f.write("x", "")
	f.want("", false)
	f.append("x", "abc")
	f.want("abc", false)
	f.want("", false)
	f.append("x", "def\n")
	f.want("def\n", false)
	must.Eq(t, 7, f.Pos())
	must.Eq(t, 0, f.Behind())

	f.append("x", "0123456789")
	data, _, err := f.Read(context.Background(), 4)
	must.NoError(t, err)
	must.Eq(t, "0123", string(data))
	must.Eq(t, 6, f.Behind())
	data, _, err = f.Read(context.Background(), 0)
	must.NoError(t, err)
	must.Eq(t, "", string(data))
	must.Eq(t, 6, f.Behind())
	f.want("456789", false)
}

func TestVanishes(t *testing.T) {
	f := open(t, "d/x")
	f.wantError(ErrNotYet)
	must.NoError(t, os.Mkdir(f.path("d"), 0o700))
	f.wantError(ErrNotYet)
	f.write("d/x", "one\n")
	f.want("one\n", false)

	// Data written before it vanished, and by a writer that still has it open.
	file, err := os.OpenFile(f.path("d/x"), os.O_APPEND|os.O_WRONLY, 0)
	must.NoError(t, err)
	defer file.Close()
	_, err = file.WriteString("two\n")
	must.NoError(t, err)
	must.NoError(t, os.RemoveAll(f.path("d")))
	f.want("two\n", false)
	f.wantError(ErrGone)
	f.wantError(ErrNotYet)
	_, err = file.WriteString("three\n")
	must.NoError(t, err)
	f.want("three\n", false)
	f.wantError(ErrGone)

	must.NoError(t, os.Mkdir(f.path("d"), 0o700))
	f.write("d/x", "four\n")
	f.want("four\n", true)
	f.want("", false)
}

func TestTruncated(t *testing.T) {
	f := open(t, "x")
	f.write("x", "0123456789")
	f.want("0123456789", false)
	must.NoError(t, os.Truncate(f.path("x"), 0))
	f.want("", true)
	f.want("", false)
	f.append("x", "abc")
	f.want("abc", false)

	f.write("x", "de") // shorter
	f.want("de", true)
	f.write("x", "xyz, which is longer")
	f.want("xyz, which is longer", true)
	f.write("x", "xyz, which is LONGER") // of equal length
	f.want("xyz, which is LONGER", true)
	f.write("x", strings.Repeat("-", 200)+"and longer")
	f.want(strings.Repeat("-", 200)+"and longer", true)

	// The same beginning: the last bytes differ.
	f.write("x", strings.Repeat("-", 200)+"and shorter")
	f.want(strings.Repeat("-", 200)+"and shorter", true)
	// A file known from before continues.
	f.write("x", strings.Repeat("-", 200)+"and shorter, but not for long")
	f.want(", but not for long", false)

	// The writer's position stays, which leaves a hole at the beginning.
	file, err := os.OpenFile(f.path("x"), os.O_WRONLY, 0)
	must.NoError(t, err)
	defer file.Close()
	must.NoError(t, os.Truncate(f.path("x"), 0))
	_, err = file.WriteAt([]byte("tail"), 1000)
	must.NoError(t, err)
	f.want(strings.Repeat("\x00", 1000)+"tail", true)
}

func TestReplaced(t *testing.T) {
	f := open(t, "x")
	f.write("x", "one\n")
	f.want("one\n", false)

	f.append("x", "end of one\n")
	f.write("y", "two\n")
	must.NoError(t, os.Rename(f.path("y"), f.path("x")))
	f.want("end of one\n", false)
	f.want("two\n", true)

	must.NoError(t, os.Rename(f.path("x"), f.path("x.1")))
	f.append("x.1", "end of two\n")
	f.append("x", "three\n")
	f.want("end of two\n", false)
	f.want("three\n", true)

	f.write("y", "three\nfour\n")
	must.NoError(t, os.Rename(f.path("y"), f.path("x")))
	f.want("three\nfour\n", true)

	// Deleted and recreated: the open file's inode number cannot be reused.
	for i := range 20 {
		must.NoError(t, os.Remove(f.path("x")))
		text := fmt.Sprintf("run %d\n", i)
		f.write("x", text)
		f.want(text, true)
	}

	must.NoError(t, os.Remove(f.path("x")))
	must.NoError(t, os.Mkdir(f.path("x"), 0o700))
	f.wantError(taskfs.ErrKind)
	must.NoError(t, os.Remove(f.path("x")))
	f.wantError(ErrGone)
	f.write("x", "at last\n")
	f.want("at last\n", true)

	// Beyond the bound, the old file comes first.
	f.append("x", "12345678")
	f.write("y", "new")
	must.NoError(t, os.Rename(f.path("y"), f.path("x")))
	data, again, err := f.Read(context.Background(), 4)
	must.NoError(t, err)
	must.Eq(t, "1234", string(data))
	must.False(t, again)
	f.want("5678", false)
	f.want("new", true)
}

func TestNotRegular(t *testing.T) {
	f := open(t, "x")
	must.NoError(t, syscall.Mkfifo(f.path("x"), 0o600))
	f.wantError(taskfs.ErrKind) // and does not hang
	// A writer to the pipe is not unblocked.
	_, err := os.OpenFile(f.path("x"), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	must.ErrorIs(t, err, syscall.ENXIO)
	must.NoError(t, os.Remove(f.path("x")))

	must.NoError(t, os.Mkdir(f.path("x"), 0o700))
	f.wantError(taskfs.ErrKind)
	must.NoError(t, os.Remove(f.path("x")))

	l, err := net.Listen("unix", f.path("x"))
	must.NoError(t, err)
	f.wantError(taskfs.ErrKind)
	must.NoError(t, l.Close())

	if syscall.Mknod(f.path("x"), syscall.S_IFCHR|0o600, 1<<8|5) == nil { // zero
		f.wantError(taskfs.ErrKind)
		must.NoError(t, os.Remove(f.path("x")))
	}

	f.write("x", "fine")
	f.want("fine", false)
}

// Links are not followed; one that replaces a file interrupts nothing.
func TestLinks(t *testing.T) {
	f := open(t, "latest/x")
	must.NoError(t, os.Mkdir(f.path("run"), 0o700))
	f.write("run/x", "not by this name")
	for _, target := range []string{"run", t.TempDir(), "latest"} {
		must.NoError(t, os.Symlink(target, f.path("latest")))
		f.wantError(taskfs.ErrKind)
		must.NoError(t, os.Remove(f.path("latest")))
	}
	must.NoError(t, os.Rename(f.path("run"), f.path("latest")))
	f.want("not by this name", false)
	must.NoError(t, os.Rename(f.path("latest"), f.path("run")))
	must.NoError(t, os.Symlink("run", f.path("latest")))
	f.wantError(taskfs.ErrKind)
	f.append("run/x", "!")
	f.want("!", false)
}

func TestOffset(t *testing.T) {
	f := open(t, "x")
	long := strings.Repeat("0123456789\n", 50)
	f.write("x", long+"torn li")
	f.want(long+"torn li", false)
	whole, back := f.Offset(0), f.Offset(7)
	must.Eq(t, int64(len(long)+7), whole.Pos)
	must.Eq(t, int64(len(long)), back.Pos)
	must.NotEq(t, 0, back.Mark)
	must.Eq(t, Offset{Inode: whole.Inode}, f.Offset(int64(len(long)+7)))
	must.Eq(t, Offset{Inode: whole.Inode}, f.Offset(1<<40))
	data, err := json.Marshal(back)
	must.NoError(t, err)
	must.NoError(t, json.Unmarshal(data, &back))
	f.append("x", "ne\n")

	resume := func(o Offset) *fixture {
		g := reopen(t, f.dir, "x")
		g.SetOffset(o)
		return g
	}
	resume(whole).want("ne\n", false)
	resume(back).want("torn line\n", false)
	resume(Offset{}).want(long+"torn line\n", false)
	resume(Offset{Pos: 3}).want(long+"torn line\n", false)
	resume(Offset{Inode: back.Inode, Pos: -1}).want(long+"torn line\n", false)
	resume(Offset{Inode: back.Inode, Pos: 1 << 50}).want(long+"torn line\n", true)
	resume(Offset{Inode: back.Inode + 1, Pos: back.Pos, Mark: back.Mark}).want(long+"torn line\n", true)
	resume(Offset{Inode: back.Inode, Pos: back.Pos, Mark: back.Mark + 1}).want(long+"torn line\n", true)
	resume(Offset{Inode: back.Inode, Pos: back.Pos}).want("torn line\n", false) // as after Close

	g := resume(back)
	g.want("torn line\n", false)
	g.SetOffset(Offset{Inode: back.Inode, Pos: 1}) // too late
	g.want("", false)
	must.NoError(t, g.Close())
	o := g.Offset(10)
	must.Eq(t, back.Pos, o.Pos)
	must.Eq(t, 0, o.Mark)

	f.write("x", strings.Repeat("abcdefghij\n", 60))
	resume(back).want(strings.Repeat("abcdefghij\n", 60), true)
	// Gone when the next process comes; then another one appears.
	must.NoError(t, os.Remove(f.path("x")))
	g = resume(back)
	g.wantError(ErrGone)
	g.write("x", "new")
	g.want("new", true)

	f = open(t, "x")
	f.write("x", long)
	f.want(long, false)
	f.write("x", strings.ToUpper(strings.Repeat("abcdefghij\n", 50)))
	must.Eq(t, 0, f.Offset(5).Pos)
	must.NoError(t, os.Truncate(f.path("x"), 1))
	must.Eq(t, 0, f.Offset(5).Pos)
}

func TestErrors(t *testing.T) {
	f := open(t, "x")
	f.write("x", "a")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err := f.Read(ctx, 10)
	must.ErrorIs(t, err, context.Canceled)
	f.want("a", false)
	must.NoError(t, f.Close())
	must.NoError(t, f.Close())
	f.wantError(ErrClosed)
	f.SetOffset(Offset{Inode: 1})

	f = open(t, "x")
	f.write("x", "abc")
	f.want("abc", false)
	must.NoError(t, f.file.Close())
	f.wantError(os.ErrClosed)
	file, err := os.OpenFile(f.path("x"), os.O_WRONLY, 0)
	must.NoError(t, err)
	f.file = file
	f.wantError(syscall.EBADF)
	must.Eq(t, 0, f.Offset(1).Pos)

	f = open(t, "x/y")
	f.write("x", "a")
	f.wantError(taskfs.ErrKind)
	if os.Getuid() != 0 {
		f = open(t, "x")
		f.write("x", "a")
		must.NoError(t, os.Chmod(f.path("x"), 0))
		f.wantError(fs.ErrPermission)
	}
}

// TestRandom compares what is read from a file under random changes with what was
// written.
func TestRandom(t *testing.T) {
	for seed := range int64(30) {
		rng := rand.New(rand.NewSource(seed))
		f := open(t, "x")
		var now, got strings.Builder // of the file with the name
		check := func() {
			for range 10_000 {
				data, restarted, err := f.Read(context.Background(), 1+rng.Intn(100))
				if restarted {
					got.Reset()
				}
				got.Write(data)
				if len(data) == 0 {
					if err != nil {
						must.ErrorIs(t, err, ErrNotYet)
					}
					return
				}
			}
			must.Unreachable(t)
		}
		serial := 0
		text := func() string {
			var b strings.Builder
			for range rng.Intn(20) {
				serial++
				fmt.Fprintf(&b, "%x ", serial)
			}
			return b.String()
		}
		there := false
		for range 200 {
			switch s := text(); rng.Intn(8) {
			case 0:
				f.write("y", s)
				must.NoError(t, os.Rename(f.path("y"), f.path("x")))
				now.Reset()
				now.WriteString(s)
				there = true
			case 1:
				f.write("x", s) // truncates
				now.Reset()
				now.WriteString(s)
				there = true
			case 2:
				os.Remove(f.path("x"))
				there = false
				check()
			default:
				if !there {
					now.Reset()
				}
				there = true
				f.append("x", s)
				now.WriteString(s)
			}
			if rng.Intn(3) > 0 {
				check()
				if there {
					must.Eq(t, now.String(), got.String(), must.Sprintf("seed %d", seed))
				}
			}
			if rng.Intn(10) == 0 { // another process
				check()
				o := f.Offset(0)
				g := reopen(t, f.dir, "x")
				g.SetOffset(o)
				f.File.Close()
				f = g
			}
		}
	}
}
