// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package parking is where the GPU memory of a container is, on its cards or in the host's memory,
// and what follows from each attempt to move it:
//
//	         Begin             Parked            Restore              Restored
//	OnCard ─────────> Parking ────────> Parked ───────────> Restoring ─────────> OnCard
//	   ^                 │                 ^ ^                   │
//	   └── ParkFailed ───┼─ (ErrUnsure) ───┘ └── RestoreFailed ──┤
//	                     └── (ErrLost) ──────────> Lost <────────┘
//
// It is pure: time is an argument. The gate pauses the container, moves its memory and keeps the
// ledger.
package parking

import (
	"errors"
	"maps"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

// Why memory cannot be moved.
var (
	// ErrPinned: it can never be moved.
	ErrPinned = errors.New("its memory cannot be moved")
	// ErrLost: it could not be restored, so the process cannot continue.
	ErrLost = errors.New("its memory is lost")
	// ErrUnsure: CUDA does not answer, so it is unknown whether the process can continue.
	ErrUnsure = errors.New("its state is unknown")
	// ErrUnreported: after a reconnect.
	ErrUnreported = errors.New("a process has not reported yet what it holds")
)

// RetryAfter is how long a container is spared after a failed attempt to park it.
const RetryAfter = 30 * time.Second

const (
	// retrySoon is RetryAfter for lack of reports.
	retrySoon = 250 * time.Millisecond
	// maxFailures in a row are final.
	maxFailures = 3
	// movePerGiB is what parking and restoring a GiB took on an H100 and an H200 (docs/gpu.md).
	movePerGiB = time.Second
)

// State is where a container's memory is.
type State string

const (
	OnCard    State = ""
	Parking   State = "parking"
	Parked    State = "parked"
	Restoring State = "restoring"
	Lost      State = "lost" // the container is about to be killed
)

// Next is what follows from a failure.
type Next int

const (
	Resume Next = iota // the container runs on
	Retry              // its restore is tried later
	Kill               // it cannot continue
)

// Memory is the GPU memory of a container. The zero value is on its cards.
type Memory struct {
	State State
	// Round counts parkings: the answer to an earlier one comes too late.
	Round int
	Since time.Time          // of this round
	By    identify.Container // the container that needed the room; empty after a restart
	// Lazy: the restore comes after all other requests.
	Lazy bool
	// Unsure: the memory may be on the cards.
	Unsure bool
	// Moved are the processes known to be parked.
	Moved []ledger.ProcessID
	// Extra are the bytes that came free on each card beyond the ledger's, which a restore needs.
	Extra map[ledger.CardID]uint64

	Err       error // of the last attempt to park it; nil after a success
	LostErr   error // why it is lost; or nil
	Parks     int
	ParkedFor time.Duration // in completed rounds

	failures              int // in a row
	notBefore             time.Time
	parkTook, restoreTook time.Duration // the last time
}

// InRound reports whether the container cannot run because of where its memory is, and gets it back.
func (m *Memory) InRound() bool { return m.State != OnCard && m.State != Lost }

// Is reports whether a round has not ended.
func (m *Memory) Is(round int) bool { return m.InRound() && m.Round == round }

// Fixed reports whether attempts to park it have failed for good.
func (m *Memory) Fixed() bool { return m.failures >= maxFailures }

// Ready reports whether it may be parked now.
func (m *Memory) Ready(now time.Time) bool {
	return m.State == OnCard && !m.Fixed() && !now.Before(m.notBefore)
}

// Cost returns what parking and restoring take: as the last time, or by the size in bytes.
func (m *Memory) Cost(bytes uint64) time.Duration {
	if took := m.parkTook + m.restoreTook; took > 0 {
		return took
	}
	return time.Duration(float64(movePerGiB) * float64(bytes) / (1 << 30))
}

// Begin begins a round.
func (m *Memory) Begin(now time.Time, by identify.Container, lazy bool) {
	m.State, m.Since, m.By, m.Lazy = Parking, now, by, lazy
	m.Round++
	m.Unsure, m.Moved, m.Extra = false, nil, make(map[ledger.CardID]uint64)
}

// Recover is for the memory of a process that was parked, or being parked or restored, when the last
// gate ended. moved tells whether it is known to be parked.
func (m *Memory) Recover(now time.Time, id ledger.ProcessID, moved bool, extra map[ledger.CardID]uint64) {
	if !m.InRound() {
		m.Begin(now, identify.Container{}, false)
		m.State = Parked
	}
	maps.Copy(m.Extra, extra)
	if moved {
		m.Moved = append(m.Moved, id)
	}
}

// Park follows a successful attempt to park it.
func (m *Memory) Park(took time.Duration) {
	m.State, m.failures, m.Err, m.parkTook = Parked, 0, nil, took
	m.Parks++
}

// ParkFailed follows a failed attempt to park it.
func (m *Memory) ParkFailed(now time.Time, err error) Next {
	switch {
	case errors.Is(err, ErrUnreported):
		m.notBefore = now.Add(retrySoon)
		m.State = OnCard
		return Resume
	case errors.Is(err, ErrPinned):
		m.failures = maxFailures
	default:
		m.failures++
		m.notBefore = now.Add(RetryAfter)
	}
	m.Err = err
	switch {
	case errors.Is(err, ErrLost):
		return m.lose(err)
	case errors.Is(err, ErrUnsure): // as if it were parked: the restore settles it
		m.State, m.Unsure = Parked, true
		return Retry
	}
	m.State = OnCard
	return Resume
}

// Restore begins the attempt to restore it, once there is room on all cards.
func (m *Memory) Restore() { m.State = Restoring }

// Restored follows a successful attempt to restore it.
func (m *Memory) Restored(now time.Time, took time.Duration) {
	m.State, m.Unsure, m.restoreTook = OnCard, false, took
	m.ParkedFor += now.Sub(m.Since)
}

// RestoreFailed follows a failed attempt to restore it; tried tells whether anything may have been
// moved.
func (m *Memory) RestoreFailed(err error, tried bool) Next {
	if errors.Is(err, ErrLost) {
		return m.lose(err)
	}
	m.Unsure = m.Unsure || tried
	m.State = Parked
	return Retry
}

func (m *Memory) lose(err error) Next {
	m.State, m.Unsure, m.LostErr = Lost, false, err
	return Kill
}
