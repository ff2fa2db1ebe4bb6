// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package libcuda

import (
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/fake"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, fake.Build(dir)) // gcc has built this test
	lib := func(name string) string { return filepath.Join(dir, name) }

	_, err := Open(lib("libnone.so.1"))
	must.ErrorContains(t, err, "the driver's library cannot be loaded: "+lib("libnone.so.1"))
	_, err = Open(lib("libnvidia-ml.so.1"))
	must.EqError(t, err, lib("libnvidia-ml.so.1")+" has no function cuInit: the driver is too old")

	t.Setenv("EBBTIDE_FAKE_GPU", "")
	_, err = Open(lib("libcuda.so.1"))
	must.EqError(t, err, "initialising CUDA: CUDA's error 100 (no device)")

	t.Setenv("EBBTIDE_FAKE_GPU", filepath.Join(dir, "gpu"))
	l, err := Open(lib("libcuda.so.1"))
	must.NoError(t, err)
	must.Eq(t, 12080, l.CUDA())
	_, r := l.State(1)
	must.Eq(t, driver.InvalidValue, r)
	must.Eq(t, driver.InvalidValue, l.Lock(1, 1))
	must.Eq(t, driver.InvalidValue, l.Checkpoint(1))
	must.Eq(t, driver.InvalidValue, l.Restore(1))
	must.Eq(t, driver.InvalidValue, l.Unlock(1))
}
