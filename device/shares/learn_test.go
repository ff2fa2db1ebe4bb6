// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shares

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/fairshare"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/profile"
)

type measures struct {
	mu    sync.Mutex
	sums  []profile.Summary
	files map[string][]byte
	full  error // of Save
}

func (p *measures) Summaries() []profile.Summary {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]profile.Summary(nil), p.sums...)
}

func (p *measures) Load(name string, into any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b, ok := p.files[name]; ok {
		return json.Unmarshal(b, into)
	}
	return fs.ErrNotExist
}

func (p *measures) Save(name string, v any) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full != nil {
		return p.full
	}
	if p.files == nil {
		p.files = make(map[string][]byte)
	}
	p.files[name], err = json.Marshal(v)
	return err
}

func (p *measures) measured(job, namespace string, peak, working uint64, fastest float64, runs int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sums = append(p.sums, profile.Summary{
		Key: profile.Key{Namespace: namespace, Job: job}, Measured: runs, Peak: peak * mib, Working: working * mib, FastestS: fastest,
	})
}

func of(id, namespace, job string, meta map[string]string) identify.Container {
	return identify.Container{ID: id, Namespace: namespace, Job: job, Meta: meta}
}

func join(t *testing.T, s *Shares, c identify.Container) uint64 {
	t.Helper()
	share, err := s.Join(c, card)
	must.NoError(t, err)
	return share.Limit / mib
}

func TestShares_properties(t *testing.T) {
	s, b := newShares(fairshare.Adaptive)
	p := &measures{}
	p.measured("big", "ann", 800, 300, 10, 1)
	p.measured("small", "ann", 100, 50, 10, 1)
	p.measured("other", "bob", 900, 5000, 10, 1)
	must.NoError(t, s.Learn(p))
	join(t, s, of("a", "ann", "big", map[string]string{metaInput: "20.0"}))
	join(t, s, of("b", "ann", "small/dispatch-1784550000-0a1b2c3d", map[string]string{metaInput: "5"}))
	join(t, s, of("c", "ann", "small/dispatch-1784550000-0a1b2c3e", map[string]string{metaInput: "7"}))
	join(t, s, of("d", "bob", "other", nil))
	b.held["a"] = 1
	in := s.snapshot(card)
	must.NoError(t, in.Validate())
	must.Eq(t, []fairshare.Group{
		{ID: "ann/big", Jobs: 1, Properties: map[string]fairshare.Property{
			"application": {Value: "ann/big//", Rank: 2}, "user": {Value: "ann", Rank: 1}, "input": {Value: "20", Rank: 3},
		}},
		{ID: "ann/small", Jobs: 2, Properties: map[string]fairshare.Property{
			"application": {Value: "ann/small//", Rank: 1}, "user": {Value: "ann", Rank: 1},
		}},
		{ID: "bob/other", Jobs: 1, Properties: map[string]fairshare.Property{
			"application": {Value: "bob/other//", Rank: 3}, "user": {Value: "bob", Rank: 2},
		}},
	}, in.Groups)
	must.Eq(t, fairshare.Coefficients{Scheme: fairshare.CountOnly}, in.Coefficients)
	var minima []int
	for _, c := range in.Containers {
		minima = append(minima, c.MinimumMiB)
	}
	must.Eq(t, []int{300, 50, 50, 1200}, minima, must.Sprint("the working set, and no more than the card"))

	// Own coefficients of properties that the group no longer has are scaled away.
	s.learned.Groups["ann/small"] = groupCoefficients{Coefficients: fairshare.Coefficients{By: map[string]float64{"count": 0.25, "input": 0.5, "user": 0.25}}}
	s.learned.Groups["bob/other"] = groupCoefficients{Coefficients: fairshare.Coefficients{By: map[string]float64{"input": 1}}}
	in = s.snapshot(card)
	must.NoError(t, in.Validate())
	must.Eq(t, map[string]float64{"count": 0.5, "user": 0.5}, in.Groups[1].Coefficients.By)
	must.Nil(t, in.Groups[2].Coefficients.By)
}

func TestRead_input(t *testing.T) {
	for _, text := range []string{"0", "-1", "x", "inf", "NaN", "1e999", " 1"} {
		m, err := readMeta(container("a", "vae", map[string]string{metaInput: text}))
		must.ErrorContains(t, err, fmt.Sprintf("meta.ebbtide_gpu_input: must be a number > 0, got %q", text))
		must.Eq(t, 0, m.input)
	}
	m, err := readMeta(container("a", "vae", map[string]string{metaInput: "1.5e6"}))
	must.NoError(t, err)
	must.Eq(t, 1.5e6, m.input)
}

type figures struct {
	mu     sync.Mutex
	limits map[ledger.ContainerID]uint64
	usage  map[ledger.ContainerID]gate.Usage
}

func (f *figures) SetLimit(id ledger.ContainerID, _ ledger.CardID, bytes uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limits[id] = bytes
	return nil
}

func (f *figures) Stats() (all []gate.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, u := range f.usage {
		u.Card, u.Limit = card, f.limits[id]
		all = append(all, gate.Status{Container: identify.Container{ID: string(id)}, Usage: []gate.Usage{u}})
	}
	return all
}

func (f *figures) set(id ledger.ContainerID, held uint64, denied uint64, waiting int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.usage[id] = gate.Usage{Held: ledger.Entry{Committed: held * mib}, Waiting: waiting, Counts: gate.Counts{Denied: denied}}
}

func (f *figures) limit(id ledger.ContainerID) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.limits[id] / mib
}

type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text.String()
	l.text.Reset()
	return text
}

// Only the count matters until enough jobs have been measured, then all properties equally; then
// the coefficients move, and survive a restart.
func TestShares_adapts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told lines
		log := hclog.New(&hclog.LoggerOptions{Output: &told, Level: hclog.Info})
		g := &figures{limits: make(map[ledger.ContainerID]uint64), usage: make(map[ledger.ContainerID]gate.Usage)}
		p := &measures{}
		p.measured("big", "ann", 800, 300, 100, 2)
		p.measured("small", "bob", 100, 50, 100, 2)
		open := func() *Shares {
			s := New(fairshare.Adaptive, 4, log)
			s.Add(card, 1200*mib)
			s.Use(g)
			must.NoError(t, s.Learn(p))
			return s
		}
		s := open()
		begin := func() func() {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); s.Run(ctx, time.Second, 10*time.Minute) }()
			return func() { cancel(); <-done }
		}
		window := func() { time.Sleep(10*time.Minute + time.Millisecond); synctest.Wait() }
		end := begin()
		window()
		must.Eq(t, "", told.take(), must.Sprint("there was no container"))

		for _, c := range []identify.Container{of("a", "ann", "big", nil), of("b", "bob", "small", nil), of("c", "bob", "small", nil)} {
			g.limits[ledger.ContainerID(c.ID)] = join(t, s, c) * mib
			g.set(ledger.ContainerID(c.ID), 100, 0, 0)
		}
		must.Eq(t, 400, g.limit("a"), must.Sprint("a third of the jobs"))
		window()
		must.Eq(t, 400, g.limit("a"), must.Sprint("4 of 5 have been measured"))
		p.measured("third", "eve", 100, 50, 100, 1)
		window()
		must.StrContains(t, told.take(), "5 profiles are enough: each of its 3 properties has the same weight")
		before := g.limit("a")
		must.Greater(t, 400, before, must.Sprint("it needs more by what was measured"))
		in := s.snapshot(card)
		must.Eq(t, fairshare.Equal, in.Coefficients.Scheme)

		// The group was denied memory: what would have given it more gains weight.
		g.set("a", before, 3, 1)
		window()
		must.StrContains(t, told.take(), "4 requests denied: Set = ")
		after := s.snapshot(card).Groups[0].Coefficients.By
		must.MapLen(t, 3, after)
		must.Less(t, 1.0/3, after["count"])
		must.Greater(t, before, g.limit("a"))
		end()

		s = open()
		for _, id := range []string{"a", "b", "c"} {
			join(t, s, map[string]identify.Container{"a": of("a", "ann", "big", nil), "b": of("b", "bob", "small", nil), "c": of("c", "bob", "small", nil)}[id])
		}
		must.Eq(t, after, s.snapshot(card).Groups[0].Coefficients.By)

		end = begin()
		defer end()
		p.mu.Lock()
		p.full = errors.New("the disk is full")
		p.mu.Unlock()
		window()
		must.StrContains(t, told.take(), "coefficients cannot be stored")
		must.Greater(t, 400, g.limit("a"))
	})
}

func TestShares_slow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &figures{limits: make(map[ledger.ContainerID]uint64), usage: make(map[ledger.ContainerID]gate.Usage)}
		s := New(fairshare.Adaptive, 4, hclog.NewNullLogger())
		s.Add(card, 1200*mib)
		s.Use(g)
		p := &measures{}
		p.measured("big", "ann", 800, 300, 100, 9)
		must.NoError(t, s.Learn(p))
		a := of("a", "ann", "big", nil)
		g.limits["a"] = join(t, s, a) * mib
		g.set("a", 1200, 0, 0)
		s.sample()
		time.Sleep(150 * time.Second)
		s.Leave(a)
		m := s.window.groups["ann/big"]
		must.Eq(t, &measured{granted: 1200, peak: 1200, minimum: 300, ended: 1, durations: 150, baselines: 100}, m)
		s.adapt(time.Now())
		must.MapLen(t, 0, s.window.groups)
		must.MapLen(t, 0, s.window.members)
	})
}

func TestLearn_bad(t *testing.T) {
	for name, text := range map[string]string{
		"torn":               `{"all": "eq`,
		"none":               `{}`,
		"numbers for all":    `{"all": {"count": 1}}`,
		"an unknown scheme":  `{"all": "all"}`,
		"sums to more":       `{"all": "equal", "groups": {"a": {"coefficients": {"count": 1, "user": 1}}}}`,
		"negative":           `{"all": "equal", "groups": {"a": {"coefficients": {"count": 2, "user": -1}}}}`,
		"an unknown one":     `{"all": "equal", "groups": {"a": {"coefficients": {"colour": 1}}}}`,
		"a group of no name": `{"all": "equal", "groups": {"": {"coefficients": {"count": 1}}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newShares(fairshare.Adaptive)
			must.ErrorContains(t, s.Learn(&measures{files: map[string][]byte{stored: []byte(text)}}), "coefficients start afresh: ")
			must.Eq(t, 1200, join(t, s, of("a", "ann", "big", nil)))
			must.Eq(t, fairshare.CountOnly, s.snapshot(card).Coefficients.Scheme)
		})
	}
}

func TestForget(t *testing.T) {
	s, _ := newShares(fairshare.Adaptive)
	now := time.Now()
	for i := range maxGroups + 2 {
		s.learned.Groups[fmt.Sprint(i)] = groupCoefficients{Seen: now.Add(time.Duration(i))}
	}
	s.dropOldGroups()
	must.MapLen(t, maxGroups, s.learned.Groups)
	must.MapNotContainsKeys(t, s.learned.Groups, []string{"0", "1"})
}

func TestShares_together(t *testing.T) {
	dir := t.TempDir()
	store, err := profile.Open(dir, func(err error) { t.Error(err) })
	must.NoError(t, err)
	g := &figures{limits: make(map[ledger.ContainerID]uint64), usage: make(map[ledger.ContainerID]gate.Usage)}
	s := New(fairshare.Adaptive, 4, hclog.NewNullLogger())
	s.Add(card, 1200*mib)
	s.Use(g)
	must.NoError(t, s.Learn(store))
	ctx, cancel := context.WithCancel(t.Context())
	var running, all sync.WaitGroup
	running.Go(func() { s.Run(ctx, time.Millisecond, 3*time.Millisecond) })
	for i := range 4 {
		all.Go(func() {
			c := of(fmt.Sprint("c", i), "ann", fmt.Sprint("job", i%2), map[string]string{metaInput: fmt.Sprint(i + 1)})
			for n := range 30 {
				if _, err := s.Join(c, card); err != nil {
					t.Error(err)
				}
				g.set(ledger.ContainerID(c.ID), uint64(10*i), uint64(n), i)
				run := profile.Run{WidthS: 1, Bytes: []uint64{uint64(i+1) * mib}, Seconds: 1e-4, Whole: true}
				if err := store.Add(profile.KeyOf(c), run); err != nil {
					t.Error(err)
				}
				s.Leave(c)
			}
		})
	}
	all.Wait()
	time.Sleep(20 * time.Millisecond)
	cancel()
	running.Wait()
	var l learned
	must.NoError(t, store.Load(stored, &l))
	must.NoError(t, l.validate())
	_, err = os.Stat(filepath.Join(dir, stored+".json"))
	must.NoError(t, err)
}
