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

// Helper makes a program that uses Evictor the helper that calls CUDA, if its arguments say so:
// it is to be called first in main, or in TestMain. It does not return then.
func Helper(args []string) {
	if len(args) == 3 && args[1] == driver.Argument {
		os.Exit(libcuda.Helper(args[2]))
	}
}

// Evictor parks the rig's processes, as the plugin does. uuid is the real card's, and version
// that of its driver. This program starts itself as the helper: see Helper. The error wraps
// driver.ErrUnsupported where processes cannot be parked. closing must be called.
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
		return nil, nil, fmt.Errorf("starting what parks processes: %w", err)
	}
	held, free := checkpoint.Meter(h.Measure)
	return checkpoint.New(checkpoint.Options{
		Driver: client,
		Cards:  []ledger.CardID{ledger.CardID(card.String())},
		Held:   held, Free: free,
		Room: headroom.Checker{}.Check,
	}), client.Close, nil
}
