// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package mix

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/e2e/harness"
)

// Alone runs a model without Nomad for the given CPU-seconds, and returns its curve.
func Alone(ctx context.Context, h *harness.Harness, model string, threads int, seed uint64, cpuSeconds float64) (Curve, error) {
	trainer, err := h.Tools.Trainer(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(20*cpuSeconds*float64(time.Second)))
	defer cancel()
	f, err := os.CreateTemp(h.Dir, "alone-"+model+"-*.csv")
	if err != nil {
		return nil, err
	}
	path := f.Name()
	_ = f.Close()
	p, err := h.Start(ctx, filepath.Base(path), []string{
		trainer, "-model", model, "-linger", "-threads", strconv.Itoa(threads), "-seed", strconv.FormatUint(seed, 10), "-style", "silent", "-curve", path,
	}, nil)
	if err != nil {
		return nil, err
	}
	read := func() (Curve, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		c, err := ReadCurve(f, 0)
		if err != nil {
			return nil, err
		}
		for i, q := range c {
			if q.CPU >= cpuSeconds {
				return c[:i+1], nil
			}
		}
		return nil, fmt.Errorf("it has not used %g CPU-seconds yet", cpuSeconds)
	}
	var c Curve
	err = harness.Poll(ctx, model+" has used its CPU time", func(context.Context) (err error) {
		if ended := p.Err(); ended != nil {
			return nil
		}
		c, err = read()
		return err
	})
	_ = p.Signal(unix.SIGTERM)
	if err = errors.Join(err, p.Wait(ctx)); err != nil {
		return nil, fmt.Errorf("running %s alone: %w", model, err)
	}
	if c == nil {
		return nil, fmt.Errorf("running %s alone: %w", model, p.Err())
	}
	return c, nil
}

// Speeds measures each model's steps per CPU-second, in two CPU-seconds per model.
func Speeds(ctx context.Context, h *harness.Harness, threads int) (map[string]float64, error) {
	speeds := make(map[string]float64)
	for _, model := range Models() {
		c, err := Alone(ctx, h, model, threads, 1, 2)
		if err != nil {
			return nil, err
		}
		if len(c) < 2 {
			return nil, fmt.Errorf("%s has reported %d times in two CPU-seconds; two are needed", model, len(c))
		}
		last := c[len(c)-1]
		speeds[model] = (last.Step - c[0].Step) / (last.CPU - c[0].CPU)
	}
	return speeds, nil
}
