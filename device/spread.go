// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/ebbtide/ebbtide/device/config"
	"github.com/ebbtide/ebbtide/device/nvml"
	"github.com/ebbtide/ebbtide/device/seat"
)

// Nomad takes a seat of any card that has one: four jobs may come to share a card while
// others are idle. So of cards that are alike each offers one free seat at a time, and only
// those do that have the fewest containers. A seat that is not offered is unhealthy to
// Nomad: no job is placed there, and one that has just been placed there runs.

// seats are those that containers have.
type seats struct {
	// reserved are those that Nomad has reserved and the driver has not given back. What other
	// drivers have of them is not known to end.
	reserved map[string]bool
	// known are those of the tasks of which the driver has told, by the name of its file.
	known map[string][]string
}

// notYet is said of a seat that is not offered.
const notOffered = "it is offered when the other cards have as many containers (spread)"

// spreads says whether seats are offered one at a time.
func (p *Plugin) spreads() bool {
	return p.settings.Spread && p.settings.Seats > 1 && p.settings.Mounts == config.MountsDriver
}

// reserve notes that seats are taken.
func (s *seats) reserve(ids []string) {
	for _, id := range ids {
		s.reserved[id] = true
	}
}

// read reads in a directory what tasks there are, and says whether seats are taken now that
// were not, or the other way round.
func (s *seats) read(dir string) (changed bool, err error) {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("reading which tasks have seats: %w", err)
	}
	before := s.taken()
	gone := maps.Clone(s.known)
	for _, f := range files {
		name := f.Name()
		delete(gone, name)
		if _, known := s.known[name]; known || strings.HasSuffix(name, ".new") {
			continue
		}
		if is, err := seat.ReadIdentity(filepath.Join(dir, name)); err == nil {
			s.known[name] = is.Seats
		}
	}
	for name, ids := range gone {
		delete(s.known, name)
		for _, id := range ids {
			delete(s.reserved, id)
		}
	}
	return !maps.Equal(before, s.taken()), nil
}

// taken are the seats that containers have.
func (s *seats) taken() map[string]bool {
	taken := maps.Clone(s.reserved)
	for _, ids := range s.known {
		for _, id := range ids {
			taken[id] = true
		}
	}
	return taken
}

// seatsEvery is how often it is looked whether tasks have come or gone.
const seatsInterval = time.Second

// seatsChange looks whether tasks have come or gone, and says whether Nomad is to be told.
func (p *Plugin) seatsChange() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.spreads() {
		return false
	}
	changed, err := p.seats.read(tasksDir(p.settings.Gate))
	if err != nil {
		p.logOnce(hclog.Error, err.Error())
	}
	return changed
}

// hide has Nomad place nothing on the seats of a card that are not offered. Nomad tries a job
// that it could not place again when an attribute has changed.
func hideSeats(g *nomad.DeviceGroup, offered map[string]bool, level int) {
	g.Attributes["offered"] = structs.NewIntAttribute(int64(level+1), "")
	for _, d := range g.Devices {
		if d.Healthy && !offered[d.ID] {
			d.Healthy, d.HealthDesc = false, notOffered
		}
	}
}

// offers says which seats of each card are offered: those that are taken, and one more of the
// cards that have the fewest containers of all that are alike. level is how many these have.
func offeredSeats(cards []nvml.Card, perCard int, taken map[string]bool) (offered map[string]bool, level map[string]int) {
	alike := func(c nvml.Card) string { return fmt.Sprint(c.Name, "/", c.Memory) }
	count := func(c nvml.Card) (n int) {
		for i := range perCard {
			if taken[seatID(c.UUID, i)] {
				n++
			}
		}
		return n
	}
	counts := make(map[string][]int)
	for _, c := range cards {
		counts[alike(c)] = append(counts[alike(c)], count(c))
	}
	offered, level = make(map[string]bool), make(map[string]int)
	for _, c := range cards {
		all := counts[alike(c)]
		level[c.UUID] = slices.Min(all)
		free := 0
		switch {
		case len(all) == 1:
			free = perCard // there is none to prefer
		case count(c) == level[c.UUID]:
			free = 1
		}
		for i := range perCard {
			id := seatID(c.UUID, i)
			if !taken[id] && free == 0 {
				continue
			}
			offered[id] = true
			if !taken[id] {
				free--
			}
		}
	}
	return offered, level
}
