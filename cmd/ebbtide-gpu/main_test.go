// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"os"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
)

// The test binary also acts as the program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == driver.Argument {
		main()
	}
	os.Exit(m.Run())
}

func TestHelper(t *testing.T) {
	c := driver.New(driver.Options{Version: driver.Oldest, Library: "/nowhere/libcuda.so.1"})
	defer c.Close()
	err := c.Check(t.Context())
	must.ErrorIs(t, err, driver.ErrUnsupported)
	must.ErrorContains(t, err, "the driver's library cannot be loaded: /nowhere/libcuda.so.1")
}
