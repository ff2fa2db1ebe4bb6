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
	"strings"
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
	if weight == 0 {
		weight = DefaultIOWeight
	}
	files, err := c.ioWeightFiles()
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range files {
		text := strconv.FormatUint(min(max(weight, f.min), f.max), 10)
		if c.blkVersion == 2 {
			text = "default " + text
		}
		errs = append(errs, writeFile(c.blk, f.file, text))
	}
	return errors.Join(errs...)
}

// IOWeight reads the weight for block I/O that is in force: of several, the first
// that SetIOWeight sets. ErrNoController where the kernel has none.
func (c *Cgroup) IOWeight() (uint64, error) {
	files, err := c.ioWeightFiles()
	if err != nil {
		return 0, err
	}
	name := filepath.Join(c.blk, files[0].file)
	text, err := c.read(c.blk, files[0].file)
	if err != nil {
		return 0, err
	}
	// Devices may have a line of their own after the first.
	first, _, _ := strings.Cut(text, "\n")
	n, err := strconv.ParseUint(strings.TrimPrefix(first, "default "), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", name, err)
	}
	return n, nil
}

// ioWeightFiles are those that the kernel has for the cgroup, at least one.
func (c *Cgroup) ioWeightFiles() ([]ioWeight, error) {
	if c.blkErr != nil {
		return nil, fmt.Errorf("weight for block I/O: %w", c.blkErr)
	}
	var out []ioWeight
	for _, f := range ioWeights[c.blkVersion] {
		if _, err := os.Stat(filepath.Join(c.blk, f.file)); err == nil {
			out = append(out, f)
		}
	}
	if len(out) == 0 {
		return nil, explain("weight for block I/O of "+c.blk, c.blk, fs.ErrNotExist)
	}
	return out, nil
}
