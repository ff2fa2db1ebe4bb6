// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package tested knows on which cards and drivers parking has passed the tests of a real card
// (device/real), and which drivers are known to break: a failure there costs more than the gain.
package tested

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/device/profile"
)

// Pair is a model of card, as NVML names it, and a branch of NVIDIA's driver, such as "580".
type Pair struct {
	Model  string `json:"model"`
	Branch string `json:"branch"`
}

// passed are those on which Ebbtide's authors ran the tests (docs/gpu.md).
var passed = []Pair{{"NVIDIA H100 80GB HBM3", "580"}, {"NVIDIA H200", "580"}}

// broken are drivers, by the beginning of their version, and what they do.
var broken = map[string]string{
	"595.71.": "the host may hang when a restored process is killed (NVIDIA/cuda-checkpoint#53)",
}

// name is that of the record in the plugin's state directory (profile.Save).
const name = "tested"

// Check returns why parking is not known to work on a card with a driver's version, or nil. dir has
// the record of tests on this node.
func Check(dir, model, driver string) error {
	for version, why := range broken {
		if strings.HasPrefix(driver, version) {
			return fmt.Errorf("driver %s is known to break: %s", driver, why)
		}
	}
	here, err := read(dir)
	if err != nil {
		return err
	}
	is := pair(model, driver)
	if !slices.Contains(passed, is) && !slices.Contains(here, is) {
		return fmt.Errorf("it has not been tested on %s with driver %s: run the tests of docs/gpu.md", model, is.Branch)
	}
	return nil
}

// Record adds a card and its driver to the record.
func Record(dir, model, driver string) error {
	here, err := read(dir)
	if err != nil {
		return err
	}
	if is := pair(model, driver); !slices.Contains(here, is) {
		here = append(here, is)
	}
	if err = os.MkdirAll(dir, 0o700); err == nil {
		err = profile.Save(dir, name, here)
	}
	if err != nil {
		return fmt.Errorf("recording that %s is tested: %w", model, err)
	}
	return nil
}

func pair(model, driver string) Pair {
	branch, _, _ := strings.Cut(driver, ".")
	return Pair{Model: model, Branch: branch}
}

func read(dir string) (here []Pair, err error) {
	if err := profile.Load(dir, name, &here); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("reading which cards are tested: %w", err)
	}
	return here, nil
}
