// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/config"
	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/device/nvml"
)

func TestOfferedSeats(t *testing.T) {
	card := func(uuid, name string) nvml.Card { return nvml.Card{UUID: uuid, Name: name, Memory: 1 << 30} }
	four := []nvml.Card{card("a", "H200"), card("b", "H200"), card("c", "H200"), card("d", "H200")}
	for _, tc := range []struct {
		cards []nvml.Card
		taken string
		want  string // o is offered, a point is not
		level int
	}{
		{four, "", "o.. o.. o.. o..", 0},
		{four, "a0 c0", "o.. o.. o.. o..", 0},
		{four, "a0 b0 c0", "o.. o.. o.. o..", 0},
		{four, "a0 b0 c0 d0", "oo. oo. oo. oo.", 1},
		{four, "a0 b1 c2 d0", "oo. oo. o.o oo.", 1},
		{four, "a0 a1 b0 c0 d0", "oo. oo. oo. oo.", 1},
		{four, "a0 a1 a2 c0", "ooo o.. o.. o..", 0},
		{four, "a0 a1 a2 b0 b1 b2 c0 c1 c2 d0 d1 d2", "ooo ooo ooo ooo", 3},
		{four[:1], "a1", "ooo", 1},
		{[]nvml.Card{four[0], four[1], card("e", "L4")}, "a0 b0", "oo. oo. ooo", 1},
	} {
		taken := make(map[string]bool)
		for _, id := range strings.Fields(tc.taken) {
			taken[id[:1]+"/"+id[1:]] = true
		}
		offered, level := offeredSeats(tc.cards, 3, taken)
		var got []string
		for _, c := range tc.cards {
			row := ""
			for i := range 3 {
				mark := "."
				if offered[seatID(c.UUID, i)] {
					mark = "o"
				}
				row += mark
			}
			got = append(got, row)
		}
		must.Eq(t, tc.want, strings.Join(got, " "), must.Sprint(tc.taken))
		must.Eq(t, tc.level, level["a"])
	}
}

// A seat counts as taken from its reservation until the driver removes the task's identity.
func TestSpread(t *testing.T) {
	change, _, at := shareable(t)
	p := newPlugin(t, twoCards(), change, func(c *config.Config) { c.Seats, c.Spread = 3, true })
	offered := func() (rows []string) {
		for _, g := range p.seatGroups() {
			n, ok := g.Attributes["offered"].GetInt()
			must.True(t, ok)
			row := fmt.Sprint(n, " ")
			for _, d := range g.Devices {
				if d.Healthy {
					row += "o"
					continue
				}
				must.Eq(t, notOffered, d.HealthDesc)
				row += "."
			}
			rows = append(rows, row)
		}
		return rows
	}
	must.Len(t, 2, p.settled(t))
	must.False(t, p.seatsChange())
	must.Eq(t, []string{"1 o..", "1 o.."}, offered())
	<-p.changed // the gate is open
	reserve := func(uuid string, i int) {
		_, err := p.Reserve([]string{seatID(uuid, i)})
		must.NoError(t, err)
		<-p.changed
	}
	reserve(first, 0)
	must.Eq(t, []string{"1 o..", "1 o.."}, offered())
	reserve(second, 0)
	must.Eq(t, []string{"2 oo.", "2 oo."}, offered())
	reserve(second, 2) // Nomad had placed it before the update
	must.Eq(t, []string{"2 oo.", "2 o.o"}, offered())

	tells := func(task, uuid string) string {
		path := handoff.IdentityPath(tasksDir(at), "alloc", task)
		must.NoError(t, handoff.WriteIdentity(path, handoff.Identity{Seats: []string{seatID(uuid, 0)}}))
		return path
	}
	one, other := tells("one", first), tells("other", second)
	must.False(t, p.seatsChange(), must.Sprint("they were known to be taken"))
	must.NoError(t, handoff.RemoveIdentity(one))
	must.True(t, p.seatsChange())
	must.Eq(t, []string{"1 o..", "1 o.o"}, offered())
	must.NoError(t, handoff.RemoveIdentity(other))
	must.True(t, p.seatsChange())
	must.Eq(t, []string{"1 o..", "1 ..o"}, offered())

	tells("one", first)
	p.seats.reserved = map[string]time.Time{}
	must.True(t, p.seatsChange())
	must.Eq(t, []string{"1 o..", "1 o.."}, offered())

	p.settings.Spread = false
	for _, g := range p.seatGroups() {
		must.MapNotContainsKey(t, g.Attributes, "offered")
		must.True(t, g.Devices[2].Healthy)
	}
}

// A seat whose task never starts is free again; one whose task has started stays taken.
func TestSeats_unstarted(t *testing.T) {
	dir, now := t.TempDir(), time.Unix(1e9, 0)
	s := seats{reserved: make(map[string]time.Time), tasks: make(map[string][]string)}
	s.reserve(now, []string{"a/0", "a/1"})
	must.NoError(t, handoff.WriteIdentity(handoff.IdentityPath(dir, "alloc", "task"), handoff.Identity{Seats: []string{"a/1"}}))
	for after, want := range map[time.Duration]map[string]bool{unstarted: {"a/0": true, "a/1": true}, unstarted + 1: {"a/1": true}} {
		s := seats{reserved: maps.Clone(s.reserved), tasks: maps.Clone(s.tasks)}
		changed, err := s.read(now.Add(after), dir)
		must.NoError(t, err)
		must.Eq(t, want, s.taken())
		must.Eq(t, after > unstarted, changed)
	}
}

type late struct{ *rack }

func (l late) Cards() ([]nvml.Card, error) {
	time.Sleep(10 * time.Millisecond)
	return l.rack.Cards()
}

// Seats taken and released are noticed however often the cards are checked.
func TestSpread_period(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := filepath.Join(t.TempDir(), "gate")
		must.NoError(t, os.WriteFile(at, nil, 0o600)) // no gate: its socket would stop the bubble's time
		must.NoError(t, os.Mkdir(tasksDir(at), 0o700))
		p := newPlugin(t, twoCards(), func(c *config.Config) { c.Seats, c.Spread, c.Gate, c.Period = 3, true, at, "1s" })
		p.cards = newTimeoutCards(t.Context(), late{twoCards()})
		told, err := p.Fingerprint(t.Context())
		must.NoError(t, err)
		<-told
		go func() { // Nomad reads on: the gate that cannot be opened is a change as well
			for range told {
			}
		}()
		must.NoError(t, handoff.WriteIdentity(handoff.IdentityPath(tasksDir(at), "alloc", "task"), handoff.Identity{Seats: []string{seatID(first, 0)}}))
		time.Sleep(3 * seatsInterval)
		synctest.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		must.MapLen(t, 1, p.seats.tasks)
	})
}
