// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package parking

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

var errOther = errors.New("no room in the host's memory")

func wraps(err error) error { return fmt.Errorf("parking: %w", err) }

// Each arrow of the package's picture.
func TestMemory_states(t *testing.T) {
	now := time.Unix(1e9, 0)
	parked := func() *Memory {
		var m Memory
		m.Begin(now, identify.Container{ID: "other"}, true)
		m.Park(2 * time.Second)
		return &m
	}
	restoring := func() *Memory { m := parked(); m.Restore(); return m }
	parking := func() *Memory { var m Memory; m.Begin(now, identify.Container{}, false); return &m }
	for name, tc := range map[string]struct {
		m      *Memory
		event  func(*Memory) Next
		next   Next
		state  State
		unsure bool
	}{
		"parked":              {parking(), func(m *Memory) Next { m.Park(0); return 0 }, 0, Parked, false},
		"not parked":          {parking(), func(m *Memory) Next { return m.ParkFailed(now, errOther) }, Resume, OnCard, false},
		"pinned":              {parking(), func(m *Memory) Next { return m.ParkFailed(now, wraps(ErrPinned)) }, Resume, OnCard, false},
		"unreported":          {parking(), func(m *Memory) Next { return m.ParkFailed(now, wraps(ErrUnreported)) }, Resume, OnCard, false},
		"perhaps parked":      {parking(), func(m *Memory) Next { return m.ParkFailed(now, wraps(ErrUnsure)) }, Retry, Parked, true},
		"lost while parking":  {parking(), func(m *Memory) Next { return m.ParkFailed(now, wraps(ErrLost)) }, Kill, Lost, false},
		"lost and unsure":     {parking(), func(m *Memory) Next { return m.ParkFailed(now, errors.Join(ErrUnsure, ErrLost)) }, Kill, Lost, false},
		"restoring":           {parked(), func(m *Memory) Next { m.Restore(); return 0 }, 0, Restoring, false},
		"restored":            {restoring(), func(m *Memory) Next { m.Restored(now, 0); return 0 }, 0, OnCard, false},
		"not tried":           {restoring(), func(m *Memory) Next { return m.RestoreFailed(errOther, false) }, Retry, Parked, false},
		"perhaps restored":    {restoring(), func(m *Memory) Next { return m.RestoreFailed(errOther, true) }, Retry, Parked, true},
		"lost while restored": {restoring(), func(m *Memory) Next { return m.RestoreFailed(wraps(ErrLost), true) }, Kill, Lost, false},
	} {
		must.Eq(t, tc.next, tc.event(tc.m), must.Sprint(name))
		must.Eq(t, tc.state, tc.m.State, must.Sprint(name))
		must.Eq(t, tc.unsure, tc.m.Unsure, must.Sprint(name))
		must.Eq(t, tc.state == Lost, tc.m.LostErr != nil, must.Sprint(name))
	}
}

func TestMemory_retries(t *testing.T) {
	var m Memory
	now := time.Unix(1e9, 0)
	must.True(t, m.Ready(now))
	attempt := func(err error) { m.Begin(now, identify.Container{}, false); m.ParkFailed(now, err) }
	attempt(ErrUnreported)
	must.NoError(t, m.Err, must.Sprint("it reports soon"))
	must.False(t, m.Ready(now))
	now = now.Add(time.Second)
	must.True(t, m.Ready(now))
	attempt(errOther)
	attempt(errOther)
	must.ErrorIs(t, m.Err, errOther)
	must.False(t, m.Ready(now.Add(29*time.Second)))
	must.True(t, m.Ready(now.Add(30*time.Second)))
	m.Begin(now, identify.Container{}, false)
	m.Park(0)
	must.NoError(t, m.Err)
	m.Restored(now, 0)
	for range 3 {
		must.False(t, m.Fixed(), must.Sprint("a success counts"))
		attempt(errOther)
	}
	must.True(t, m.Fixed())
	must.False(t, m.Ready(now.Add(time.Hour)))

	var pinned Memory
	pinned.Begin(now, identify.Container{}, false)
	pinned.ParkFailed(now, wraps(ErrPinned))
	must.True(t, pinned.Fixed())
}

func TestMemory_cost(t *testing.T) {
	var m Memory
	must.Eq(t, 3*time.Second, m.Cost(3<<30), must.Sprint("by its size"))
	now := time.Unix(1e9, 0)
	m.Begin(now, identify.Container{}, false)
	m.Park(5 * time.Second)
	m.Restore()
	m.Restored(now.Add(time.Minute), 2*time.Second)
	must.Eq(t, 7*time.Second, m.Cost(3<<30), must.Sprint("as the last time"))
	must.Eq(t, time.Minute, m.ParkedFor)
	must.Eq(t, 1, m.Parks)
}

func TestMemory_recover(t *testing.T) {
	var m Memory
	now := time.Unix(1e9, 0)
	m.Recover(now, ledger.ProcessID{PID: 1}, true, map[ledger.CardID]uint64{"a": 5})
	m.Recover(now, ledger.ProcessID{PID: 2}, false, map[ledger.CardID]uint64{"b": 6})
	must.Eq(t, Parked, m.State)
	must.Eq(t, []ledger.ProcessID{{PID: 1}}, m.Moved)
	must.Eq(t, map[ledger.CardID]uint64{"a": 5, "b": 6}, m.Extra)
	must.True(t, m.Is(1))
}

// Whatever happens, a container runs unless it is in a round or lost, an answer to an earlier
// round is recognised, and nothing of that round is left in the next.
func TestMemory_rounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m Memory
		now := time.Unix(1e9, 0)
		failure := rapid.SampledFrom([]error{errOther, ErrPinned, ErrUnreported, ErrUnsure})
		for range rapid.IntRange(1, 50).Draw(t, "events") {
			now = now.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second)
			before := m.Round
			switch m.State {
			case OnCard:
				if !m.Ready(now) {
					continue
				}
				m.Begin(now, identify.Container{}, rapid.Bool().Draw(t, "lazy"))
				must.SliceEmpty(t, m.Moved)
				must.MapEmpty(t, m.Extra)
				must.False(t, m.Unsure)
				must.False(t, m.Is(before))
				m.Moved, m.Extra["a"] = []ledger.ProcessID{{PID: 1}}, 1
			case Parking:
				if rapid.Bool().Draw(t, "parked") {
					m.Park(time.Second)
				} else {
					m.ParkFailed(now, failure.Draw(t, "failure"))
				}
			case Parked:
				m.Restore()
			case Restoring:
				if rapid.Bool().Draw(t, "restored") {
					m.Restored(now, time.Second)
				} else {
					m.RestoreFailed(errOther, rapid.Bool().Draw(t, "tried"))
				}
			}
			must.Eq(t, m.State != OnCard, m.InRound())
			must.Eq(t, m.InRound(), m.Is(m.Round))
			must.True(t, m.InRound() || !m.Unsure)
		}
	})
}
