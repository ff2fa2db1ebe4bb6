// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ebbtide/ebbtide/device/checkpoint"
	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/checkpoint/headroom"
	"github.com/ebbtide/ebbtide/device/checkpoint/libcuda"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/nvml"
)

const (
	// fakeDriver is the version of the fake's driver.
	fakeDriver = "580.95.05"
	// asks is how long NVML may take.
	asks = time.Minute
	// loads is how long CUDA may take to be loaded.
	loads = 2 * time.Minute
)

// Helper makes a program that uses Evictor the helper that calls CUDA, if its arguments say so:
// it is to be called first in main, or in TestMain. It does not return then.
func Helper(args []string) {
	if len(args) == 3 && args[1] == driver.Argument {
		os.Exit(libcuda.Helper(args[2]))
	}
}

// Evictor returns what parks processes on the card, as the plugin does. The version is the real
// driver's, of NVML. An error that wraps driver.ErrUnsupported says why nothing can be parked
// here. close must be called.
func (r *Rig) Evictor(version, uuid string) (_ *checkpoint.Evictor, close func(), err error) {
	card, err := r.uuid(uuid)
	if err != nil {
		return nil, nil, err
	}
	o := driver.Options{Version: version, Env: append(os.Environ(), r.env...)}
	if r.fake {
		o.Version, o.Library = fakeDriver, filepath.Join(r.dir, "libcuda.so.1")
	}
	client := driver.New(o)
	ctx, cancel := context.WithTimeout(context.Background(), loads)
	defer cancel()
	if err := client.Check(ctx); err != nil {
		client.Close()
		return nil, nil, fmt.Errorf("looking whether processes can be parked: %w", err)
	}
	held, free := checkpoint.Meter(func(string) (nvml.Usage, error) {
		ctx, cancel := context.WithTimeout(context.Background(), asks)
		defer cancel()
		u, err := r.Usage(ctx)
		if err != nil {
			return nvml.Usage{}, err
		}
		out := nvml.Usage{Time: time.Now(), Used: u.Used, Free: u.Total - u.Used, ProcessesKnown: true}
		for pid, bytes := range u.Processes {
			out.Processes = append(out.Processes, nvml.Process{PID: pid, Used: bytes})
		}
		return out, nil
	})
	return checkpoint.New(checkpoint.Options{
		Driver: client, Cards: []ledger.CardID{ledger.CardID(card.String())},
		Held: held, Free: free, Room: headroom.Checker{}.Check,
	}), client.Close, nil
}
