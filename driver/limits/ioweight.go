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

// What both cgroup versions and every I/O scheduler take as a weight, and what a
// cgroup has that nobody gave one (CFQ, gone since Linux 5.0, had 500).
const (
	MinIOWeight     uint64 = 10
	MaxIOWeight     uint64 = 1000
	DefaultIOWeight uint64 = 100
)

// ioWeight is a file that sets the weight for block I/O.
type ioWeight struct {
	file     string
	min, max uint64
}

// Which of the files has an effect depends on the I/O scheduler of the device: BFQ
// heeds its own, io.weight is for the controller iocost and blkio.weight was CFQ's.
// A kernel may have several.
var ioWeights = map[int][]ioWeight{
	1: {{"blkio.weight", 10, 1000}, {"blkio.bfq.weight", 1, 1000}},
	2: {{"io.weight", 1, 10_000}, {"io.bfq.weight", 1, 1000}},
}

// SetIOWeight sets the weight for block I/O against the task's siblings, as near as
// the kernel takes it; 0 means DefaultIOWeight. Where the kernel has several such
// files it sets them all. It has an effect on devices with the scheduler BFQ or, on
// version 2, the controller iocost, and nothing says whether there are any.
//
// ErrNoController where the kernel has no such weight.
func (c *Cgroup) SetIOWeight(weight uint64) error {
	if c.blk.err != nil {
		return fmt.Errorf("weight for block I/O: %w", c.blk.err)
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
		return c.blk.explain("weight for block I/O of "+c.blk.dir, fs.ErrNotExist)
	}
	return errors.Join(errs...)
}
