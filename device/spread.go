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
	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/device/nvml"
)

// Nomad places a job on any card with a free seat, so four jobs may share one card while others
// are idle. Therefore of identical cards only those with the fewest containers offer a seat,
// one each. Seats not offered are reported as unhealthy: Nomad places no job there, and a job
// that has just been placed there still runs.

type seats struct {
	// reserved is when Nomad has reserved seats whose task has no file yet.
	reserved map[string]time.Time
	// tasks are the seats of tasks, by the name of the driver's file.
	tasks map[string][]string
}

// notOffered is the health description of a seat that is not offered.
const notOffered = "it is offered when the other cards have as many containers (spread)"

func (p *Plugin) spreads() bool {
	return p.settings.Spread && p.settings.Seats > 1 && p.settings.Mounts == config.MountsDriver
}

// unstarted is how long a seat counts as taken before its task starts: it may never do so, and its
// seat would be lost. A task that starts later counts from then on.
const unstarted = 10 * time.Minute

func (s *seats) reserve(now time.Time, ids []string) {
	for _, id := range ids {
		s.reserved[id] = now
	}
}

// read updates the tasks from a directory, and reports whether a seat was taken or released.
func (s *seats) read(now time.Time, dir string) (changed bool, err error) {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("reading the tasks' identities: %w", err)
	}
	before := s.taken()
	gone := maps.Clone(s.tasks)
	for _, f := range files {
		name := f.Name()
		delete(gone, name)
		if _, known := s.tasks[name]; known || strings.HasSuffix(name, ".new") {
			continue
		}
		if is, err := handoff.ReadIdentity(filepath.Join(dir, name)); err == nil {
			s.tasks[name] = is.Seats
		}
	}
	for name, ids := range gone {
		delete(s.tasks, name)
		for _, id := range ids {
			delete(s.reserved, id)
		}
	}
	maps.DeleteFunc(s.reserved, func(_ string, since time.Time) bool { return now.Sub(since) > unstarted })
	return !maps.Equal(before, s.taken()), nil
}

func (s *seats) taken() map[string]bool {
	taken := make(map[string]bool)
	for id := range s.reserved {
		taken[id] = true
	}
	for _, ids := range s.tasks {
		for _, id := range ids {
			taken[id] = true
		}
	}
	return taken
}

const seatsInterval = time.Second

func (p *Plugin) seatsChange() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settings.Mounts != config.MountsDriver {
		return false
	}
	changed, err := p.seats.read(time.Now(), tasksDir(p.settings.Gate))
	if err != nil {
		p.logOnce(hclog.Error, err.Error())
	}
	return changed
}

// hideSeats marks seats that are not offered as unhealthy, and sets an attribute, on whose change
// Nomad retries jobs.
func hideSeats(g *nomad.DeviceGroup, offered map[string]bool, level int) {
	g.Attributes["offered"] = structs.NewIntAttribute(int64(level+1), "")
	for _, d := range g.Devices {
		if d.Healthy && !offered[d.ID] {
			d.Healthy, d.HealthDesc = false, notOffered
		}
	}
}

// offeredSeats returns the seats offered on each card: those taken, and one more on cards with
// the fewest containers among identical ones. level is that number of containers.
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
			free = perCard // no identical card to prefer
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
