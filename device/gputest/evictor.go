// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package gputest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ebbtide/ebbtide/device/checkpoint"
	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/checkpoint/headroom"
	"github.com/ebbtide/ebbtide/device/checkpoint/libcuda"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

// Helper makes the program the helper that calls CUDA, if its arguments say so. A program that
// uses Evictor calls it first.
func Helper(args []string) {
	if len(args) == 3 && args[1] == driver.Argument {
		os.Exit(libcuda.Helper(args[2]))
	}
}

// Evictor parks processes as the plugin does. uuid and version are the real card's and its
// driver's. The error wraps driver.ErrUnsupported where that is impossible. The caller calls
// closing.
func (h *Harness) Evictor(ctx context.Context, uuid, version string) (e gate.Evictor, closing func(), err error) {
	card, err := h.uuid(uuid)
	if err != nil {
		return nil, nil, err
	}
	o := driver.Options{Version: version, Env: append(os.Environ(), h.env...)}
	if h.fake {
		o.Version, o.Library = driver.Oldest, filepath.Join(h.dir, "libcuda.so.1")
	}
	client := driver.New(o)
	if err := client.Check(ctx); err != nil {
		client.Close()
		return nil, nil, fmt.Errorf("starting the helper that calls CUDA: %w", err)
	}
	held, free := checkpoint.Meter(h.Measure)
	return checkpoint.New(checkpoint.Options{
		Driver: client,
		Cards:  []ledger.CardID{ledger.CardID(card.String())},
		Held:   held, Free: free,
		Room: headroom.Checker{}.Check,
	}), client.Close, nil
}
