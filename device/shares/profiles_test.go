// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shares

import (
	"fmt"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/fairshare"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/profile"
)

type measures struct{ sums []profile.Summary }

func (p *measures) Summaries() []profile.Summary { return p.sums }

func (p *measures) measured(job, namespace string, peak, working uint64, runs int) {
	p.sums = append(p.sums, profile.Summary{
		Key: profile.Key{Namespace: namespace, Job: job}, Measured: runs, Peak: peak * mib, Working: working * mib,
	})
}

func of(id, namespace, job string, meta map[string]string) identify.Container {
	return identify.Container{ID: id, Namespace: namespace, Job: job, Meta: meta}
}

func join(t *testing.T, s *Shares, c identify.Container) uint64 {
	t.Helper()
	share, err := s.Join(c, card)
	must.NoError(t, err)
	return share.Bytes / mib
}

func TestProfiles(t *testing.T) {
	s, b := newShares(fairshare.Adaptive)
	p := &measures{}
	p.measured("big", "ann", 800, 300, 1)
	p.measured("small", "ann", 100, 50, 1)
	p.measured("other", "bob", 900, 5000, 1)
	s.UseProfiles(p)
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
	var minima []int
	for _, c := range in.Containers {
		minima = append(minima, c.MinimumMiB)
	}
	must.Eq(t, []int{300, 50, 50, 1200}, minima, must.Sprint("the working set, and no more than the card"))
}

// Only the count matters until enough jobs have been measured, then all properties equally.
func TestProfiles_enough(t *testing.T) {
	s, b := newShares(fairshare.Adaptive)
	p := &measures{}
	p.measured("big", "ann", 800, 300, 2)
	p.measured("small", "bob", 100, 50, 2)
	s.UseProfiles(p)
	for _, c := range []identify.Container{of("a", "ann", "big", nil), of("b", "bob", "small", nil), of("c", "bob", "small", nil)} {
		share := join(t, s, c)
		b.shares[ledger.ContainerID(c.ID)] = share
	}
	must.Eq(t, 400, b.shares["a"], must.Sprint("a third of the jobs"))
	p.measured("third", "eve", 100, 50, 1)
	must.Eq(t, fairshare.Equal, s.snapshot(card).Coefficients.Scheme)
	s.Leave(of("c", "bob", "small", nil))
	// Of two groups it has half of the jobs, the larger application and the larger user: 1/2 + 2/3 + 2/3 of 3.
	must.Between(t, 730, b.shares["a"], 735)
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

func TestShares_together(t *testing.T) {
	store, err := profile.Open(t.TempDir(), func(err error) { t.Error(err) })
	must.NoError(t, err)
	b := &quiet{}
	s := New(fairshare.Adaptive, 4, hclog.NewNullLogger())
	s.Add(card, 1200*mib)
	s.Use(b)
	s.UseProfiles(store)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			c := of(fmt.Sprint("c", i), "ann", fmt.Sprint("job", i%2), map[string]string{metaInput: fmt.Sprint(i + 1)})
			for range 30 {
				if _, err := s.Join(c, card); err != nil {
					t.Error(err)
				}
				run := profile.Run{WidthS: 1, Bytes: []uint64{uint64(i+1) * mib}, Seconds: 1e-4, Whole: true}
				if err := store.Add(profile.KeyOf(c), run); err != nil {
					t.Error(err)
				}
				s.Leave(c)
			}
		})
	}
	all.Wait()
}
