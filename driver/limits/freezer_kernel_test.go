// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestKernel_freezer(t *testing.T) {
	k := newKernel(t)
	file := filepath.Join(t.TempDir(), "count")
	t.Setenv(countEnv, file)
	c := k.run("task", "count", -1)
	if c.frz.err != nil {
		t.Skipf("skipped: %v", c.frz.err)
	}
	count := func() float64 {
		info, err := os.Stat(file)
		if errors.Is(err, fs.ErrNotExist) {
			return 0 // it starts up
		}
		must.NoError(t, err)
		return float64(info.Size())
	}
	runs := func() {
		t.Helper()
		before := count()
		eventually(t, count, func(v float64) bool { return v > before })
	}
	runs()
	frozen, err := c.Frozen()
	must.NoError(t, err)
	must.False(t, frozen)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	must.NoError(t, c.Freeze(ctx))
	must.NoError(t, c.Freeze(ctx), must.Sprint("once more is no error"))
	frozen, err = c.Frozen()
	must.NoError(t, err)
	must.True(t, frozen)
	before := count()
	time.Sleep(200 * time.Millisecond)
	must.Eq(t, before, count())

	must.NoError(t, c.Thaw())
	must.NoError(t, c.Thaw())
	runs()

	must.NoError(t, c.Freeze(ctx))
	must.NoError(t, Thaw(c.FreezerDir()))
	runs()
	must.NoError(t, Thaw(filepath.Join(c.FreezerDir(), "gone")))

	must.NoError(t, c.Freeze(ctx))
	before = count()
	must.NoError(t, c.Kill())
	gone := func() float64 {
		pids, err := c.frz.read("cgroup.procs")
		must.NoError(t, err)
		return float64(len(pids))
	}
	eventually(t, gone, func(v float64) bool { return v == 0 })
	must.Eq(t, before, count(), must.Sprint("it died before it ran again"))
	must.NoError(t, c.Kill(), must.Sprint("nothing is left"))
}
