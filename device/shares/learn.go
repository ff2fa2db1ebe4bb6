// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shares

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/ebbtide/ebbtide/device/fairshare"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/profile"
)

// Profiles are the measurements of jobs, and the store of the coefficients (profile.Store).
type Profiles interface {
	Summaries() []profile.Summary
	Load(name string, into any) error
	Save(name string, v any) error
}

// Properties of a group, besides the number of its jobs.
const (
	application = "application" // the profile key without its arguments
	user        = "user"        // namespace
	input       = "input"       // size of the input, by the job's meta
)

const stored = "coefficients"

// maxGroups bounds the groups with stored coefficients; the least recently seen is dropped.
const maxGroups = 1000

type learned struct {
	// All is the scheme of groups without coefficients of their own.
	All    fairshare.Coefficients       `json:"all"`
	Groups map[string]groupCoefficients `json:"groups"`
}

type groupCoefficients struct {
	Coefficients fairshare.Coefficients `json:"coefficients"`
	Seen         time.Time              `json:"seen"`
}

func (l learned) validate() error {
	if l.All.By != nil || l.All.Scheme == "" {
		return errors.New(`all: must be "count-only" or "equal"`)
	}
	any := fairshare.Property{Value: "any", Rank: 1}
	in := fairshare.AdaptInput{Coefficients: l.All, Params: fairshare.DefaultAdaptParams()}
	for _, id := range slices.Sorted(maps.Keys(l.Groups)) {
		in.Groups = append(in.Groups, fairshare.Group{
			ID: id, Jobs: 1, Coefficients: l.Groups[id].Coefficients,
			Properties: map[string]fairshare.Property{application: any, user: any, input: any},
		})
	}
	return in.Validate()
}

type window struct {
	members map[ledger.ContainerID]member // all that were present
	groups  map[string]*measured
	denied  map[placement]uint64 // the gate's counters at the last sample
}

type placement struct {
	id   ledger.ContainerID
	card ledger.CardID
}

type measured struct {
	granted, peak, minimum int
	waiting                int // maximum of simultaneous requests
	denied                 int
	ended                  int     // jobs with a baseline
	durations, baselines   float64 // totals, in seconds
}

func newWindow() window {
	return window{members: make(map[ledger.ContainerID]member), groups: make(map[string]*measured), denied: make(map[placement]uint64)}
}

func (w window) group(id string) *measured {
	if w.groups[id] == nil {
		w.groups[id] = new(measured)
	}
	return w.groups[id]
}

// Learn enables learning, continuing from the stored coefficients. It is called before the first
// Join. After an error the coefficients start afresh.
func (s *Shares) Learn(p Profiles) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.profiles = p
	var l learned
	err := p.Load(stored, &l)
	if err == nil {
		err = l.validate()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("coefficients start afresh: %w", err)
	}
	s.learned.All = l.All
	maps.Copy(s.learned.Groups, l.Groups)
	return nil
}

// Run samples what the containers hold, and adapts the coefficients after each window, until ctx
// ends. It needs Learn and the adaptive division.
func (s *Shares) Run(ctx context.Context, every, window time.Duration) {
	if s.mode != fairshare.Adaptive {
		return
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	began := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.sample()
		if time.Since(began) >= window {
			began = time.Now()
			s.adapt(began)
		}
	}
}

func (s *Shares) sample() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.profiles == nil {
		return
	}
	known := s.known()
	sums := make(map[string]*measured)
	for _, st := range s.gate.Stats() {
		id := ledger.ContainerID(st.Container.ID)
		for _, u := range st.Usage {
			m, ok := s.members[u.Card][id]
			if !ok {
				continue
			}
			if sums[m.group] == nil {
				sums[m.group] = new(measured)
			}
			sum := sums[m.group]
			sum.granted += int(min(u.Limit, s.cards[u.Card]) / mib)
			sum.peak += ceilMiB(u.Held.CardUsage())
			sum.minimum += known.minimum(m, s.cards[u.Card])
			sum.waiting += u.Waiting
			denied, at := u.Denied+u.TooLong, placement{id, u.Card}
			if before, ok := s.window.denied[at]; ok && denied > before {
				s.window.group(m.group).denied += int(denied - before)
			} else if !ok && m.since.After(s.lastSample) { // it came since the last sample
				s.window.group(m.group).denied += int(denied)
			}
			s.window.denied[at] = denied
		}
	}
	s.lastSample = time.Now()
	for group, sum := range sums {
		g := s.window.group(group)
		g.granted, g.peak, g.minimum = max(g.granted, sum.granted), max(g.peak, sum.peak), max(g.minimum, sum.minimum)
		g.waiting = max(g.waiting, sum.waiting)
	}
}

// recordEnd records a job's duration, from its first use of a card to its end, with pauses and
// waits: they are the cost of scarce memory. Its baseline is the fastest of the latest runs of
// its key.
func (s *Shares) recordEnd(m member, now time.Time) {
	if s.profiles == nil {
		return
	}
	if k, ok := s.known().profiles[m.key]; ok && k.FastestS > 0 {
		g := s.window.group(m.group)
		g.ended++
		g.durations += max(now.Sub(m.since).Seconds(), 1e-3)
		g.baselines += k.FastestS
	}
}

// adapt moves the coefficients at the end of a window, and divides the cards again.
func (s *Shares) adapt(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.window
	s.window = newWindow()
	s.window.denied = w.denied
	for _, members := range s.members {
		maps.Copy(s.window.members, members)
	}
	if s.profiles == nil || len(w.members) == 0 {
		return
	}
	known := s.known()
	in := fairshare.AdaptInput{Groups: s.groups(w.members, known), Coefficients: s.learned.All, Params: fairshare.DefaultAdaptParams()}
	for _, k := range known.profiles {
		in.Profiles += k.Measured
	}
	for _, g := range in.Groups {
		m := w.groups[g.ID]
		if m == nil {
			continue
		}
		mean := func(sum float64) *float64 {
			if m.ended == 0 {
				return nil
			}
			sum /= float64(m.ended)
			return &sum
		}
		in.Measured = append(in.Measured, fairshare.Measured{
			Group: g.ID, GrantedMiB: m.granted, PeakMiB: m.peak, MinimumMiB: m.minimum,
			DurationS: mean(m.durations), BaselineS: mean(m.baselines), Denied: m.denied + m.waiting,
		})
	}
	if err := in.Validate(); err != nil {
		s.log.Error("coefficients are unchanged", "error", err)
		return
	}
	out := fairshare.Adapt(in)
	for _, move := range out.Groups {
		tell := s.log.Debug
		if o, ok := s.learned.Groups[move.ID]; ok {
			o.Seen = now
			s.learned.Groups[move.ID] = o
		}
		if move.Step > 0 {
			s.learned.Groups[move.ID] = groupCoefficients{Coefficients: move.Coefficients, Seen: now}
		}
		if move.Step > 0 || move.Rule == fairshare.RuleEnough {
			tell = s.log.Info
		}
		tell("coefficients", "group", move.ID, "rule", move.Rule, "property", move.Property, "step", move.Step, "coefficients", move.Coefficients.By, "why", move.Why)
	}
	s.learned.All = out.Coefficients
	s.dropOldGroups()
	if err := s.profiles.Save(stored, s.learned); err != nil {
		s.log.Error("coefficients cannot be stored", "error", err)
	}
	for card := range s.members {
		if _, err := s.divide(card, ""); err != nil {
			s.log.Error("cannot recompute a card's shares after a window; keeping the old ones", "card", card, "error", err)
		}
	}
}

func (s *Shares) dropOldGroups() {
	for len(s.learned.Groups) > maxGroups {
		var oldest string
		for id, o := range s.learned.Groups {
			if before, ok := s.learned.Groups[oldest]; !ok || o.Seen.Before(before.Seen) || o.Seen.Equal(before.Seen) && id < oldest {
				oldest = id
			}
		}
		delete(s.learned.Groups, oldest)
	}
}

func (s *Shares) groups(members map[ledger.ContainerID]member, known known) []fairshare.Group {
	const by = "group"
	var jobs []fairshare.Job
	name := make(map[string]string) // by the ID that Window makes
	for _, id := range slices.Sorted(maps.Keys(members)) {
		m := members[id]
		job := fairshare.Job{Properties: map[string]fairshare.Value{by: {Name: m.group}}}
		if s.profiles != nil {
			maps.Copy(job.Properties, known.properties(m))
		}
		jobs = append(jobs, job)
		name[fairshare.Key(job, []string{by})] = m.group
	}
	groups := fairshare.Window(jobs, []string{by})
	for i, g := range groups {
		delete(g.Properties, by) // it only repeats the group's identity
		groups[i].ID = name[g.ID]
		groups[i].Coefficients = applicable(s.learned.Groups[name[g.ID]].Coefficients, g)
	}
	return groups
}

func applicable(c fairshare.Coefficients, g fairshare.Group) fairshare.Coefficients {
	by, sum := make(map[string]float64), 0.0
	for name, value := range c.By {
		if _, has := g.Properties[name]; has || name == fairshare.Count {
			by[name] = value
			sum += value
		}
	}
	if !(sum > 0) {
		return fairshare.Coefficients{}
	}
	for name := range by {
		by[name] /= sum
	}
	return fairshare.Coefficients{By: by}
}

type known struct {
	profiles     map[profile.Key]profile.Summary
	applications map[string]mean
	users        map[string]mean
}

type mean struct {
	sum float64
	n   int
}

func (m mean) add(bytes uint64) mean { return mean{m.sum + float64(bytes)/mib, m.n + 1} }

func (m mean) value() float64 {
	if m.n == 0 {
		return 0
	}
	return m.sum / float64(m.n)
}

func (s *Shares) known() known {
	k := known{profiles: make(map[profile.Key]profile.Summary), applications: make(map[string]mean), users: make(map[string]mean)}
	if s.profiles == nil {
		return k
	}
	for _, sum := range s.profiles.Summaries() {
		k.profiles[sum.Key] = sum
		app := sum.Key.Application()
		k.applications[app] = k.applications[app].add(sum.Peak)
		k.users[sum.Key.Namespace] = k.users[sum.Key.Namespace].add(sum.Peak)
	}
	return k
}

// properties returns the properties of a container's job, scored by memory demand: the mean
// measured peak of the keys with the same value, or the input's size itself.
func (k known) properties(m member) map[string]fairshare.Value {
	app, namespace := m.key.Application(), m.key.Namespace
	values := map[string]fairshare.Value{
		application: {Name: app, Score: k.applications[app].value()},
		user:        {Name: namespace, Score: k.users[namespace].value()},
	}
	if m.input > 0 {
		values[input] = fairshare.Value{Name: fmt.Sprint(m.input), Score: m.input}
	}
	return values
}

// minimum is the working set of a container's key, in MiB, at most the card's memory.
func (k known) minimum(m member, most uint64) int {
	return int(min(k.profiles[m.key].Working, most) / mib)
}

func ceilMiB(bytes uint64) int { return int((bytes + mib - 1) / mib) }
