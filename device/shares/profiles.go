// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shares

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ebbtide/ebbtide/device/fairshare"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/profile"
)

// Profiles are the measurements of jobs (profile.Store).
type Profiles interface {
	Summaries() []profile.Summary
}

// Properties of a group, besides the number of its jobs.
const (
	application = "application" // the profile key without its arguments
	user        = "user"        // namespace
	input       = "input"       // size of the input, by the job's meta
)

// UseProfiles makes the adaptive division follow what jobs held, as published: each property of a
// group counts alike once enough jobs have been measured, and a container's minimum is its working
// set. It is called before the first Join.
func (s *Shares) UseProfiles(p Profiles) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.profiles = p
}

// known is what has been measured.
type known struct {
	jobs         int // measured to their end
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
		k.jobs += sum.Measured
		k.profiles[sum.Key] = sum
		app := sum.Key.Application()
		k.applications[app] = k.applications[app].add(sum.Peak)
		k.users[sum.Key.Namespace] = k.users[sum.Key.Namespace].add(sum.Peak)
	}
	return k
}

// coefficients returns those of equation 1: until enough jobs have been measured only their number
// counts.
func (s *Shares) coefficients(known known) fairshare.Coefficients {
	if s.profiles != nil && known.jobs >= fairshare.DefaultAdaptParams().Profiles {
		return fairshare.Coefficients{Scheme: fairshare.Equal}
	}
	return fairshare.Coefficients{Scheme: fairshare.CountOnly}
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
	}
	return groups
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
