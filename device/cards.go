// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"errors"
	"time"

	"github.com/ebbtide/ebbtide/device/nvml"
)

// Cards is what the plugin needs of nvml.Library.
type Cards interface {
	Cards() ([]nvml.Card, error)
	Usage(uuid string) (nvml.Usage, error)
}

// nvmlTimeout bounds a call of NVML, which may never return if the driver is faulty.
const nvmlTimeout = 10 * time.Second

var errNoAnswer = errors.New("NVML does not answer")

// timeoutCards wraps Cards so that calls return within nvmlTimeout. One goroutine calls NVML, and
// hangs if the driver does. It is safe for concurrent use.
type timeoutCards struct {
	cards Cards
	calls chan func()
}

func newTimeoutCards(ctx context.Context, cards Cards) *timeoutCards {
	b := &timeoutCards{cards: cards, calls: make(chan func())}
	go func() {
		for {
			select {
			case call := <-b.calls:
				call()
			case <-ctx.Done():
				return
			}
		}
	}()
	return b
}

// Cards implements Cards.
func (b *timeoutCards) Cards() ([]nvml.Card, error) { return callNVML(b, b.cards.Cards) }

// Usage implements Cards.
func (b *timeoutCards) Usage(uuid string) (nvml.Usage, error) {
	return callNVML(b, func() (nvml.Usage, error) { return b.cards.Usage(uuid) })
}

func callNVML[T any](b *timeoutCards, call func() (T, error)) (out T, err error) {
	type answered struct {
		out T
		err error
	}
	done := make(chan answered, 1)
	late := time.NewTimer(nvmlTimeout)
	defer late.Stop()
	select {
	case b.calls <- func() { out, err := call(); done <- answered{out, err} }:
	case <-late.C:
		return out, errNoAnswer
	}
	select {
	case a := <-done:
		return a.out, a.err
	case <-late.C:
		return out, errNoAnswer
	}
}
