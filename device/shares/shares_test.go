// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package shares

import (
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/fairshare"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
)

const card ledger.CardID = "GPU-1"

type books struct {
	shares map[ledger.ContainerID]uint64 // MiB
	held   map[ledger.ContainerID]uint64 // MiB
	gone   ledger.ContainerID
}

func (b *books) SetShare(id ledger.ContainerID, _ ledger.CardID, bytes uint64) error {
	if id == b.gone {
		return gate.ErrUnknown
	}
	b.shares[id] = bytes / mib
	return nil
}

func (b *books) Stats() (all []gate.Status) {
	for id, held := range b.held {
		all = append(all, gate.Status{
			Container: identify.Container{ID: string(id)}, Usage: []gate.Usage{{Card: card, Held: ledger.Entry{Committed: held * mib}}},
		})
	}
	return all
}

// quiet is a gate without containers.
type quiet struct{}

func (quiet) SetShare(ledger.ContainerID, ledger.CardID, uint64) error { return gate.ErrUnknown }

func (quiet) Stats() []gate.Status { return nil }

func newShares(mode fairshare.Mode) (*Shares, *books) {
	b := &books{shares: make(map[ledger.ContainerID]uint64), held: make(map[ledger.ContainerID]uint64)}
	s := New(mode, 4, hclog.NewNullLogger())
	s.Add(card, 1200*mib)
	s.Use(b)
	return s, b
}

func container(id, job string, meta map[string]string) identify.Container {
	return identify.Container{ID: id, Job: job, Namespace: "ml", Meta: meta}
}

func TestShares(t *testing.T) {
	s, b := newShares(fairshare.Adaptive)
	join := func(c identify.Container) (uint64, int) {
		t.Helper()
		share, err := s.Join(c, card)
		must.NoError(t, err)
		return share.Bytes / mib, share.Priority
	}
	limit, priority := join(container("a", "vae", nil))
	must.Eq(t, 1200, limit)
	must.Eq(t, fairshare.DefaultPriority, priority)
	b.shares["a"] = limit

	limit, _ = join(container("b", "mlp", nil))
	must.Eq(t, 600, limit)
	must.Eq(t, 600, b.shares["a"])

	// Two containers of a group divide the group's part; a task may be capped.
	b.held["a"] = 500
	limit, priority = join(container("c", "mlp", map[string]string{"ebbtide_gpu_memory": "100", "ebbtide_priority": "80"}))
	must.Eq(t, 100, limit)
	must.Eq(t, 80, priority)
	must.Eq(t, 1200, limit+b.shares["a"]+b.shares["b"])
	must.GreaterEq(t, 500, b.shares["a"], must.Sprint("never below what is in use"))

	s.Leave(container("c", "mlp", nil))
	must.Eq(t, 600, b.shares["b"])
	b.gone = "b"
	s.Leave(container("a", "vae", nil))
	s.Leave(container("unknown", "x", nil))

	_, err := s.Join(container("a", "vae", nil), "GPU-2")
	must.ErrorContains(t, err, "card GPU-2 is not shared here")
}

func TestRead(t *testing.T) {
	m, err := readMeta(container("a", "vae", map[string]string{"ebbtide_gpu_group": "us", "ebbtide_gpu_memory": "1G", "ebbtide_priority": "0"}))
	must.ErrorContains(t, err, `meta.ebbtide_gpu_memory: must be a whole number of MiB ≥ 1, got "1G"`)
	must.ErrorContains(t, err, `meta.ebbtide_priority: must be from 1 to 100, got "0"`)
	must.Eq(t, "us", m.group)
	must.Nil(t, m.capMiB)
	must.Eq(t, fairshare.DefaultPriority, m.priority)
	// A dispatch passes omitted optional keys as empty.
	for _, meta := range []map[string]string{nil, {metaGroup: "", metaMemory: "", metaInput: "", metaPriority: ""}} {
		m, err = readMeta(container("a", "vae", meta))
		must.NoError(t, err)
		must.Eq(t, "ml/vae", m.group)
		must.Eq(t, fairshare.DefaultPriority, m.priority)
	}
}

func TestShares_wholeCard(t *testing.T) {
	s, b := newShares(fairshare.WholeCard)
	share, err := s.Join(container("a", "vae", nil), card)
	must.NoError(t, err)
	must.Eq(t, 1200*mib, share.Bytes)
	b.held["a"] = 10
	share, err = s.Join(container("b", "mlp", nil), card)
	must.NoError(t, err)
	must.Eq(t, 0, share.Bytes)
}

// By seats the first container does not take the card, and no share changes.
func TestShares_seats(t *testing.T) {
	s, b := newShares(Seats)
	join := func(id, memory string) uint64 {
		t.Helper()
		share, err := s.Join(container(id, id, map[string]string{metaMemory: memory}), card)
		must.NoError(t, err)
		return share.Bytes / mib
	}
	must.Eq(t, 300, join("alone", ""))
	b.held["alone"] = 1000 // borrowed
	must.Eq(t, 300, join("second", ""))
	must.Eq(t, 500, join("large", "500"))
	must.Eq(t, 100, join("small", "100"))
	must.Eq(t, 300, join("too-large", "1200"), must.Sprint("a seat's part, as the others leave nothing"))
	must.Eq(t, 500, join("large", "500"), must.Sprint("its second process"))
	s.Leave(container("second", "second", nil))
	must.MapEmpty(t, b.shares)
	must.Eq(t, 300, join("next", ""))
}
