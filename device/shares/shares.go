// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package shares divides the memory of each card among its containers: by seats, which never
// changes a share; or by package fairshare, anew whenever one comes or goes. docs/gpu.md lists the
// keys of a job's meta.
package shares

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/device/fairshare"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/profile"
)

const (
	metaMemory   = "ebbtide_gpu_memory"
	metaGroup    = "ebbtide_gpu_group"
	metaInput    = "ebbtide_gpu_input"
	metaPriority = "ebbtide_priority"
)

const mib = 1 << 20

// Seats divides a card by its seats: each container gets one seat's part, or its task's cap. What a
// program has read at its start stays true.
const Seats fairshare.Mode = "seats"

// Gate takes the shares (gate.Gate).
type Gate interface {
	SetShare(ledger.ContainerID, ledger.CardID, uint64) error
	Stats() []gate.Status
}

// Shares divides cards. It implements gate.Shares, and is safe for concurrent use.
type Shares struct {
	mode  fairshare.Mode
	seats int // of a card
	log   hclog.Logger

	mu       sync.Mutex
	cards    map[ledger.CardID]uint64 // bytes that may be granted
	gate     Gate
	members  map[ledger.CardID]map[ledger.ContainerID]member
	profiles Profiles // nil: only the number of jobs counts
}

var _ gate.Shares = (*Shares)(nil)

type member struct {
	group    string
	key      profile.Key
	input    float64 // 0: not given
	capMiB   *int
	priority int
	since    time.Time
	share    uint64 // bytes, by seats; 0: not decided
}

// New returns Shares without cards, which have that many seats.
func New(mode fairshare.Mode, seats int, log hclog.Logger) *Shares {
	return &Shares{
		mode: mode, seats: seats, cards: make(map[ledger.CardID]uint64), log: log, members: make(map[ledger.CardID]map[ledger.ContainerID]member),
	}
}

// Add adds a card of which bytes may be granted.
func (s *Shares) Add(card ledger.CardID, bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cards[card] = bytes
}

// Use sets the gate, before the first Join.
func (s *Shares) Use(g Gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate = g
}

// Join implements gate.Shares. Invalid meta is logged and ignored: it is too late to refuse the
// job.
func (s *Shares) Join(c identify.Container, card ledger.CardID) (gate.Share, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.cards[card]; !ok {
		return gate.Share{}, fmt.Errorf("card %s is not shared here", card)
	}
	m, err := readMeta(c)
	if err != nil {
		s.log.Warn("a container's meta is ignored", "alloc_id", c.Alloc, "task", c.Task, "error", err)
	}
	if s.members[card] == nil {
		s.members[card] = make(map[ledger.ContainerID]member)
	}
	id := ledger.ContainerID(c.ID)
	if old, ok := s.members[card][id]; ok {
		m.since, m.share = old.since, old.share
	}
	s.members[card][id] = m
	bytes, err := s.divide(card, id)
	share := gate.Share{Bytes: bytes, Priority: m.priority}
	if m.capMiB != nil {
		share.Most = uint64(*m.capMiB) * mib
	}
	return share, err
}

// Leave implements gate.Shares.
func (s *Shares) Leave(c identify.Container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for card, members := range s.members { // it may be on several
		if _, ok := members[ledger.ContainerID(c.ID)]; !ok {
			continue
		}
		delete(members, ledger.ContainerID(c.ID))
		if _, err := s.divide(card, ""); err != nil {
			s.log.Error("cannot recompute a card's shares after a container left; keeping the old ones", "card", card, "error", err)
		}
	}
}

// readMeta reads a container's job and meta. After an error the valid rest counts.
func readMeta(c identify.Container) (member, error) {
	var errs []error
	m := member{group: c.Meta[metaGroup], key: profile.KeyOf(c), priority: fairshare.DefaultPriority, since: time.Now()}
	if m.group == "" {
		m.group = m.key.Namespace + "/" + m.key.Job // all dispatches of a job are one group
	}
	if text := c.Meta[metaMemory]; text != "" {
		if n, err := strconv.Atoi(text); err != nil || n < 1 {
			errs = append(errs, fmt.Errorf("meta.%s: must be a whole number of MiB ≥ 1, got %q", metaMemory, text))
		} else {
			m.capMiB = &n
		}
	}
	if text := c.Meta[metaInput]; text != "" {
		if f, err := strconv.ParseFloat(text, 64); err != nil || !(f > 0) || math.IsInf(f, 0) {
			errs = append(errs, fmt.Errorf("meta.%s: must be a number > 0, got %q", metaInput, text))
		} else {
			m.input = f
		}
	}
	if text := c.Meta[metaPriority]; text != "" {
		if n, err := strconv.Atoi(text); err != nil || n < 1 || n > 100 {
			errs = append(errs, fmt.Errorf("meta.%s: must be from 1 to 100, got %q", metaPriority, text))
		} else {
			m.priority = n
		}
	}
	return m, errors.Join(errs...)
}

// divide recomputes the shares of a card and updates the gate, except for the container asks,
// whose share it returns.
func (s *Shares) divide(card ledger.CardID, asks ledger.ContainerID) (own uint64, err error) {
	if s.mode == Seats {
		return s.bySeat(card, asks), nil
	}
	in := s.snapshot(card)
	if err := in.Validate(); err != nil {
		return 0, fmt.Errorf("dividing card %s: %w", card, err)
	}
	var errs []error
	for _, share := range fairshare.Decide(in).Containers {
		id, bytes := ledger.ContainerID(share.ID), uint64(share.ShareMiB)*mib
		if id == asks {
			own = bytes
			continue
		}
		// A container that has left needs no share.
		if err := s.gate.SetShare(id, card, bytes); err != nil && !errors.Is(err, gate.ErrUnknown) {
			errs = append(errs, fmt.Errorf("setting the share of container %s: %w", id, err))
		}
		s.log.Debug("share", "card", card, "container", id, "mib", share.ShareMiB, "why", share.Why)
	}
	return own, errors.Join(errs...)
}

// bySeat decides a container's share once. A cap above a seat's part gets what the others' shares
// leave, and that part at least.
func (s *Shares) bySeat(card ledger.CardID, asks ledger.ContainerID) uint64 {
	m, asked := s.members[card][asks]
	if !asked || m.share > 0 {
		return m.share
	}
	part, left := s.cards[card]/uint64(s.seats), s.cards[card]
	for _, other := range s.members[card] {
		left -= min(left, other.share)
	}
	m.share = part
	if m.capMiB != nil {
		m.share = min(uint64(*m.capMiB)*mib, max(part, left))
	}
	s.members[card][asks] = m
	return m.share
}

func (s *Shares) snapshot(card ledger.CardID) fairshare.Input {
	held := make(map[ledger.ContainerID]int)
	for _, st := range s.gate.Stats() {
		for _, u := range st.Usage {
			if u.Card == card {
				held[ledger.ContainerID(st.Container.ID)] = ceilMiB(u.Held.CardUsage())
			}
		}
	}
	members, known := s.members[card], s.known()
	in := fairshare.Input{
		MemoryMiB: int(s.cards[card] / mib), Mode: s.mode,
		Groups: s.groups(members, known), Coefficients: s.coefficients(known), Params: fairshare.DefaultParams(),
	}
	for _, id := range slices.Sorted(maps.Keys(members)) {
		m := members[id]
		in.Containers = append(in.Containers, fairshare.Container{
			ID: string(id), Group: m.group, CapMiB: m.capMiB, MinimumMiB: known.minimum(m, s.cards[card]), Priority: m.priority,
			InUseMiB: held[id], ArrivedS: float64(m.since.UnixMilli()) / 1000,
		})
	}
	return in
}

func ceilMiB(bytes uint64) int { return int((bytes + mib - 1) / mib) }
