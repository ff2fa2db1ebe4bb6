// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// The range that both cgroup versions and every I/O scheduler accept, and the default
// (CFQ, gone since Linux 5.0, had 500).
const (
	MinIOWeight     uint64 = 10
	MaxIOWeight     uint64 = 1000
	DefaultIOWeight uint64 = 100
)

type ioWeight struct {
	file     string
	min, max uint64
}

// Which control takes effect depends on the device's I/O scheduler: BFQ has its own,
// io.weight belongs to iocost, blkio.weight belonged to CFQ. A kernel may have several.
var ioWeights = map[int][]ioWeight{
	1: {{"blkio.weight", 10, 1000}, {"blkio.bfq.weight", 1, 1000}},
	2: {{"io.weight", 1, 10_000}, {"io.bfq.weight", 1, 1000}},
}

// SetIOWeight sets the block I/O weight against siblings, clamped to the kernel's
// range, in every control the kernel has; 0 means DefaultIOWeight. It takes effect only
// on devices with BFQ or, on version 2, iocost.
//
// ErrNoController if the kernel has no such control.
func (c *Cgroup) SetIOWeight(weight uint64) error {
	if c.blk.err != nil {
		return fmt.Errorf("block I/O weight: %w", c.blk.err)
	}
	if weight == 0 {
		weight = DefaultIOWeight
	}
	var errs []error
	for _, f := range ioWeights[c.blk.version] {
		if _, err := os.Stat(filepath.Join(c.blk.dir, f.file)); err != nil {
			continue
		}
		text := strconv.FormatUint(min(max(weight, f.min), f.max), 10)
		if c.blk.version == 2 {
			text = "default " + text
		}
		errs = append(errs, c.blk.write(f.file, text))
	}
	if len(errs) == 0 {
		return c.blk.wrapErr("block I/O weight of "+c.blk.dir, fs.ErrNotExist)
	}
	return errors.Join(errs...)
}
