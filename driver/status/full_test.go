// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/taskfs"
)

func smallDisk(t *testing.T, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root to mount a small disk")
	}
	dir := t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		t.Skip("skipped: may not mount a small disk here")
	}
	must.NoError(t, err)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}

// fill uses all free space until free is called.
func fill(t *testing.T, disk string) (free func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(disk, "filler"))
	must.NoError(t, err)
	defer f.Close()
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = f.Write(block)
	}
	must.ErrorIs(t, err, unix.ENOSPC)
	return func() { must.NoError(t, os.Remove(f.Name())) }
}

func TestFullDisk(t *testing.T) {
	disk := smallDisk(t, "size=1m")
	w, err := NewWriter(disk, "t", Options{})
	must.NoError(t, err)
	dir := filepath.Join(disk, Dir)
	in := func(name string) string { return filepath.Join(dir, name) }
	refused := func(err error, name string) {
		t.Helper()
		must.ErrorIs(t, err, unix.ENOSPC)
		must.ErrorContains(t, err, in(name))
	}
	n := 0
	for ; n < 10; n++ {
		must.NoError(t, w.Append(rowAt(n)))
	}
	must.NoError(t, w.Status(Status{Task: "t", Step: 1}))
	must.NoError(t, w.Picture())
	status, picture := readFileOf(t, in("t.json")), readFileOf(t, in("t.png"))

	free := fill(t, disk)
	refused(w.Status(Status{Task: "t", Step: 2}), "t.json")
	refused(w.Picture(), "t.png")
	// The last page of the history has room for some more rows, and for a part of the
	// row that does not fit.
	before := readFileOf(t, in("t.csv"))
	for {
		if err = w.Append(rowAt(n)); err != nil {
			break
		}
		n++
		before = readFileOf(t, in("t.csv"))
		must.Less(t, 4000, n)
	}
	refused(err, "t.csv")
	must.Eq(t, before, readFileOf(t, in("t.csv")))
	must.Eq(t, string(FormatHistory(rowsUpTo(n))), before)
	must.Positive(t, len(before)%os.Getpagesize())
	must.Error(t, w.Append(rowAt(n)))
	must.Eq(t, before, readFileOf(t, in("t.csv")))
	must.Eq(t, status, readFileOf(t, in("t.json")))
	must.True(t, picture == readFileOf(t, in("t.png")))
	must.Eq(t, []string{"t.csv", "t.json", "t.png"}, names(t, dir))

	free()
	must.NoError(t, w.Append(rowAt(n)))
	must.NoError(t, w.Status(Status{Task: "t", Step: 3}))
	must.NoError(t, w.Picture())
	must.Eq(t, string(FormatHistory(rowsUpTo(n+1))), readFileOf(t, in("t.csv")))
	st, err := w.readStatus()
	must.NoError(t, err)
	must.Eq(t, 3, st.Step)
	must.False(t, picture == readFileOf(t, in("t.png")))
}

func TestFullDisk_thinning(t *testing.T) {
	disk := smallDisk(t, "size=1m")
	w, err := NewWriter(disk, "t", Options{MaxRows: 16})
	must.NoError(t, err)
	for i := range 16 {
		must.NoError(t, w.Append(rowAt(i)))
	}
	free := fill(t, disk)
	path := filepath.Join(disk, Dir, "t.csv")
	for range 2 {
		err := w.Append(rowAt(16))
		must.ErrorIs(t, err, unix.ENOSPC)
		must.ErrorContains(t, err, path)
		must.Eq(t, string(FormatHistory(rowsUpTo(16))), readFileOf(t, path))
		must.Eq(t, []string{"t.csv"}, names(t, filepath.Dir(path)))
	}
	free()
	must.NoError(t, w.Append(rowAt(16)))
	must.Eq(t, string(FormatHistory(thin(rowsUpTo(17), 12))), readFileOf(t, path))
}

func TestFullDisk_directory(t *testing.T) {
	disk := smallDisk(t, "nr_inodes=2") // one is the root's
	_, err := NewWriter(disk, "t", Options{})
	must.ErrorIs(t, err, unix.ENOSPC)
	must.ErrorContains(t, err, filepath.Join(disk, Dir))
}

func TestFullDisk_noFile(t *testing.T) {
	disk := smallDisk(t, "nr_inodes=4")
	w, err := NewWriter(disk, "t", Options{})
	must.NoError(t, err)
	must.NoError(t, w.Append(rowAt(0)))
	path := filepath.Join(disk, Dir, taskfs.TempName("t.json"))
	err = w.Status(Status{})
	must.ErrorIs(t, err, unix.ENOSPC)
	must.ErrorContains(t, err, path)
	must.NoError(t, w.Append(rowAt(1)))
}
