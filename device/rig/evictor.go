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
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

// Evictor parks the rig's processes, as the plugin does. uuid is the real card's, and version
// that of its driver. close must be called.
//
// This program starts itself as the helper that calls CUDA: its main must run libcuda.Helper
// with the argument after driver.Argument. The error wraps driver.ErrUnsupported where
// processes cannot be parked.
func (r *Rig) Evictor(ctx context.Context, uuid, version string) (e gate.Evictor, closing func(), err error) {
	card, err := r.uuid(uuid)
	if err != nil {
		return nil, nil, err
	}
	o := driver.Options{Version: version, Env: append(os.Environ(), r.env...)}
	if r.fake {
		o.Version, o.Library = driver.Oldest, filepath.Join(r.dir, "libcuda.so.1")
	}
	client := driver.New(o)
	if err := client.Check(ctx); err != nil {
		client.Close()
		return nil, nil, fmt.Errorf("starting what parks processes: %w", err)
	}
	usage := func() (Usage, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		return r.Usage(ctx)
	}
	return checkpoint.New(checkpoint.Options{
		Driver: client,
		Cards:  []ledger.CardID{ledger.CardID(card.String())},
		Held: func(ledger.CardID) (map[int]uint64, error) {
			u, err := usage()
			return u.Processes, err
		},
		Free: func(ledger.CardID) (uint64, error) {
			u, err := usage()
			return u.Total - u.Used, err
		},
		Room: headroom.Checker{}.Check,
	}), client.Close, nil
}
