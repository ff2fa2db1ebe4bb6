// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package ledger accounts for GPU memory: which process holds how much of which card.
//
// All amounts are bytes. A card's capacity is its physical memory less a reserve. Memory is granted
// to a process before it allocates; the process releases what it does not use and what it frees.
// The invariant, whatever the ledger is told, is
//
//	Σ committed ≤ capacity, on each card
//
// All changes go through set, which refuses one that would violate it.
//
// Other holdings are facts that were not requested. They reduce later grants and count against
// their container, but cannot be refused:
//
//   - overhead: what the driver adds for contexts, modules, rounding;
//   - expected: holdings of a process that has lost its connection, until it reconnects or exits;
//   - unverified: what a process claims to hold but was never granted. It counts against its
//     container only: a lie must not take memory from others.
//
// Parked memory is in host memory and takes no room. Memory held by unknown processes is outside:
// it takes room from all.
//
// The ledger is pure: no clock, no I/O. It is not safe for concurrent use.
package ledger

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// CardID is a card's UUID as NVML prints it: "GPU-…".
type CardID string

// ContainerID identifies a container on this host.
type ContainerID string

// ProcessID identifies a process on this host; Start distinguishes reused pids.
type ProcessID struct {
	PID   int    // on the host
	Start uint64 // clock ticks since boot
}

var (
	// ErrUnknown: no such card or process.
	ErrUnknown = errors.New("unknown to the ledger")
	// ErrRoom: the card does not have that much left now.
	ErrRoom = errors.New("no room on the card")
	// ErrLimit: the container would hold more than its limit.
	ErrLimit = errors.New("over the container's limit")
	// ErrAmount: an invalid amount, such as a release of more than is held.
	ErrAmount = errors.New("invalid amount")
)

// Entry is what a process or container holds of a card, in bytes.
type Entry struct {
	Committed  uint64 // granted: allocated, or held to allocate from
	Overhead   uint64 // on the card beyond the grants: contexts, modules
	Expected   uint64 // of disconnected processes
	Unverified uint64 // claimed, and never granted
	Parked     uint64 // formerly committed, in host memory now
}

// LimitUsage returns what counts against a limit.
func (e Entry) LimitUsage() uint64 { return e.CardUsage() + e.Unverified }

// CardUsage returns what counts against the card's capacity.
func (e Entry) CardUsage() uint64 { return e.Committed + e.Overhead + e.Expected }

func (e Entry) replace(before, after Entry) Entry {
	return Entry{
		Committed:  e.Committed - before.Committed + after.Committed,
		Overhead:   e.Overhead - before.Overhead + after.Overhead,
		Expected:   e.Expected - before.Expected + after.Expected,
		Unverified: e.Unverified - before.Unverified + after.Unverified,
		Parked:     e.Parked - before.Parked + after.Parked,
	}
}

type card struct {
	physical, capacity uint64
	outside            uint64
	total              Entry
	containers         map[ContainerID]Entry
	processes          map[ProcessID]Entry
	limits             map[ContainerID]uint64
}

// Ledger accounts for all cards of a host.
type Ledger struct {
	cards     map[CardID]*card
	processes map[ProcessID]ContainerID
}

func New() *Ledger {
	return &Ledger{
		cards:     make(map[CardID]*card),
		processes: make(map[ProcessID]ContainerID),
	}
}

// AddCard adds a card of physical bytes, of which reserve bytes are never granted.
func (l *Ledger) AddCard(id CardID, physical, reserve uint64) error {
	switch {
	case l.cards[id] != nil:
		return fmt.Errorf("card %s: already added", id)
	case physical == 0 || physical > math.MaxInt64 || reserve >= physical:
		return fmt.Errorf("card %s: %w: %d bytes with a reserve of %d", id, ErrAmount, physical, reserve)
	}
	l.cards[id] = &card{
		physical:   physical,
		capacity:   physical - reserve,
		containers: make(map[ContainerID]Entry),
		processes:  make(map[ProcessID]Entry),
		limits:     make(map[ContainerID]uint64),
	}
	return nil
}

// AddProcess registers a process of a container, which cannot change.
func (l *Ledger) AddProcess(p ProcessID, c ContainerID) error {
	if have, known := l.processes[p]; known && have != c {
		return fmt.Errorf("process %d is in container %s, not in %s", p.PID, have, c)
	}
	l.processes[p] = c
	return nil
}

// SetLimit sets how much a container may hold of a card; default: all. The limit may be below
// current usage.
func (l *Ledger) SetLimit(c ContainerID, id CardID, bytes uint64) error {
	k, err := l.card(id)
	if err != nil {
		return err
	}
	k.limits[c] = min(bytes, k.capacity)
	return nil
}

// Limit returns how much a container may hold of a card.
func (l *Ledger) Limit(c ContainerID, id CardID) uint64 {
	k := l.cards[id]
	if k == nil {
		return 0
	}
	if limit, set := k.limits[c]; set {
		return limit
	}
	return k.capacity
}

func (l *Ledger) Forget(c ContainerID) {
	for _, k := range l.cards {
		delete(k.limits, c)
	}
}

// Fits returns nil if a container may be granted bytes now, else ErrRoom or ErrLimit; ErrAmount
// if bytes exceeds the limit itself.
func (l *Ledger) Fits(c ContainerID, id CardID, bytes uint64) error {
	k, err := l.card(id)
	limit := l.Limit(c, id)
	switch {
	case err != nil:
		return err
	case bytes > limit:
		return fmt.Errorf("%w: %d bytes of a limit of %d", ErrAmount, bytes, limit)
	case bytes > remaining(limit, k.containers[c].LimitUsage()):
		return ErrLimit
	case bytes > k.free():
		return ErrRoom
	}
	return nil
}

// Room returns how much of a card a container could be granted now.
func (l *Ledger) Room(c ContainerID, id CardID) uint64 {
	k := l.cards[id]
	if k == nil {
		return 0
	}
	return min(remaining(l.Limit(c, id), k.containers[c].LimitUsage()), k.free())
}

func remaining(all, taken uint64) uint64 { return all - min(all, taken) }

// Grant commits memory to a process. Its errors are those of Fits.
func (l *Ledger) Grant(p ProcessID, id CardID, bytes uint64) error {
	c, known := l.processes[p]
	if !known {
		return fmt.Errorf("process %d: %w", p.PID, ErrUnknown)
	}
	if bytes == 0 {
		return fmt.Errorf("%w: 0 bytes", ErrAmount)
	}
	if err := l.Fits(c, id, bytes); err != nil {
		return err
	}
	e := l.cards[id].processes[p]
	e.Committed += bytes
	return l.set(p, id, e)
}

// Release releases memory: unverified first, parked last.
func (l *Ledger) Release(p ProcessID, id CardID, bytes uint64) error {
	k, err := l.card(id)
	if err != nil {
		return err
	}
	e := k.processes[p]
	if bytes > e.Committed+e.Unverified+e.Parked {
		return fmt.Errorf("%w: process %d releases %d bytes but holds %d", ErrAmount, p.PID, bytes, e.Committed+e.Unverified+e.Parked)
	}
	for _, part := range []*uint64{&e.Unverified, &e.Committed, &e.Parked} {
		n := min(bytes, *part)
		*part -= n
		bytes -= n
	}
	return l.set(p, id, e)
}

// Park records that all that a process holds is in host memory.
func (l *Ledger) Park(p ProcessID) {
	for id, k := range l.cards {
		e, ok := k.processes[p]
		if !ok {
			continue
		}
		e.Parked += e.Committed + e.Expected
		e.Committed, e.Expected = 0, 0
		_ = l.set(p, id, e)
	}
}

// Unpark commits a process's parked memory of a card, whatever its limit. If the process has not
// reported its holdings (Hold), it becomes expected instead. The error is ErrRoom.
func (l *Ledger) Unpark(p ProcessID, id CardID, known bool) error {
	k, err := l.card(id)
	if err != nil {
		return err
	}
	e := k.processes[p]
	if err := l.FitsCard(id, e.Parked); err != nil {
		return err
	}
	if known {
		e.Committed += e.Parked
	} else {
		e.Expected += e.Parked
	}
	e.Parked = 0
	return l.set(p, id, e)
}

// FitsCard returns ErrRoom if a card cannot grant that many bytes now.
func (l *Ledger) FitsCard(id CardID, bytes uint64) error {
	if bytes > l.Free(id) {
		return ErrRoom
	}
	return nil
}

// SetOutside sets how much of a card unknown processes hold.
func (l *Ledger) SetOutside(id CardID, bytes uint64) error {
	k, err := l.card(id)
	if err != nil {
		return err
	}
	k.outside = min(bytes, k.physical)
	return nil
}

func (l *Ledger) Outside(id CardID) uint64 {
	if k := l.cards[id]; k != nil {
		return k.outside
	}
	return 0
}

// SetOverhead sets how much a process has on a card beyond its grants.
func (l *Ledger) SetOverhead(p ProcessID, id CardID, bytes uint64) error {
	return l.setFact(p, id, bytes, func(e *Entry) { e.Overhead = bytes })
}

// Expect sets how much a disconnected process holds.
func (l *Ledger) Expect(p ProcessID, id CardID, bytes uint64) error {
	return l.setFact(p, id, bytes, func(e *Entry) { e.Expected = bytes })
}

func (l *Ledger) setFact(p ProcessID, id CardID, bytes uint64, change func(*Entry)) error {
	k, err := l.card(id)
	if err != nil {
		return err
	}
	if _, known := l.processes[p]; !known {
		return fmt.Errorf("process %d: %w", p.PID, ErrUnknown)
	}
	if bytes > k.physical {
		return fmt.Errorf("%w: %d bytes of a card of %d", ErrAmount, bytes, k.physical)
	}
	e := k.processes[p]
	change(&e)
	return l.set(p, id, e)
}

// ExpectParked sets how much a process has parked of a card, by the saved state.
func (l *Ledger) ExpectParked(p ProcessID, id CardID, bytes uint64) error {
	return l.setFact(p, id, bytes, func(e *Entry) { e.Parked = bytes })
}

// Hold records what a process reports to have held since before its connection, in place of what
// was expected. It is called once, before the first Grant. Memory known to be parked remains
// parked; the expected amount is committed even beyond the limit, and more only as far as a
// request would be granted now. The rest is unverified.
func (l *Ledger) Hold(p ProcessID, id CardID, bytes uint64) error {
	var was uint64
	if err := l.setFact(p, id, bytes, func(e *Entry) {
		was, e.Expected, e.Unverified = e.Expected, 0, 0
		e.Parked = min(e.Parked, bytes)
		bytes -= e.Parked
	}); err != nil {
		return err
	}
	k := l.cards[id]
	believed := min(bytes, was, remaining(k.capacity, k.total.Committed))
	e := k.processes[p]
	e.Committed += believed
	if err := l.set(p, id, e); err != nil {
		return err
	}
	more := min(bytes-believed, l.Room(l.processes[p], id))
	e.Committed += more
	e.Unverified += bytes - believed - more
	return l.set(p, id, e)
}

// Detach records a lost connection: the process's grants become expected.
func (l *Ledger) Detach(p ProcessID) {
	for id, k := range l.cards {
		e, ok := k.processes[p]
		if !ok {
			continue
		}
		e.Expected += e.Committed
		e.Committed = 0
		_ = l.set(p, id, e)
	}
}

// End removes a process that has exited, and frees its holdings.
func (l *Ledger) End(p ProcessID) {
	for id, k := range l.cards {
		if _, ok := k.processes[p]; ok {
			_ = l.set(p, id, Entry{}) // cannot fail: less is committed
		}
	}
	delete(l.processes, p)
}

// set makes e the entry of a process on a card. No other function changes entries.
func (l *Ledger) set(p ProcessID, id CardID, e Entry) error {
	k, c := l.cards[id], l.processes[p]
	was := k.processes[p]
	total := k.total.replace(was, e)
	if total.Committed > k.capacity {
		return fmt.Errorf("card %s: %w: %d bytes granted of %d", id, ErrRoom, total.Committed, k.capacity)
	}
	k.total = total
	put(k.processes, p, e)
	put(k.containers, c, k.containers[c].replace(was, e))
	return nil
}

func put[K comparable](m map[K]Entry, key K, e Entry) {
	if e == (Entry{}) {
		delete(m, key)
		return
	}
	m[key] = e
}

func (l *Ledger) card(id CardID) (*card, error) {
	if k := l.cards[id]; k != nil {
		return k, nil
	}
	return nil, fmt.Errorf("card %q: %w", id, ErrUnknown)
}

// Cards returns the IDs of all cards, in order.
func (l *Ledger) Cards() []CardID { return slices.Sorted(maps.Keys(l.cards)) }

// Capacity returns how much of a card can be granted in total.
func (l *Ledger) Capacity(id CardID) uint64 {
	if k := l.cards[id]; k != nil {
		return k.capacity
	}
	return 0
}

// Physical returns the memory of a card.
func (l *Ledger) Physical(id CardID) uint64 {
	if k := l.cards[id]; k != nil {
		return k.physical
	}
	return 0
}

// Free returns how much of a card can be granted now, to any container.
func (l *Ledger) Free(id CardID) uint64 {
	if k := l.cards[id]; k != nil {
		return k.free()
	}
	return 0
}

func (k *card) free() uint64 { return remaining(k.capacity, k.total.CardUsage()+k.outside) }

// Total returns what is held of a card.
func (l *Ledger) Total(id CardID) Entry {
	if k := l.cards[id]; k != nil {
		return k.total
	}
	return Entry{}
}

// Container returns what a container holds of a card.
func (l *Ledger) Container(c ContainerID, id CardID) Entry {
	if k := l.cards[id]; k != nil {
		return k.containers[c]
	}
	return Entry{}
}

// Process returns what a process holds of a card.
func (l *Ledger) Process(p ProcessID, id CardID) Entry {
	if k := l.cards[id]; k != nil {
		return k.processes[p]
	}
	return Entry{}
}

// Holders returns the processes that take room on a card, unordered.
func (l *Ledger) Holders(id CardID) []ProcessID {
	var out []ProcessID
	if k := l.cards[id]; k != nil {
		for p, e := range k.processes {
			if e.CardUsage() > 0 {
				out = append(out, p)
			}
		}
	}
	return out
}

// Check recomputes all sums and compares. An error is a bug in this package.
func (l *Ledger) Check() error {
	var errs []error
	for id, k := range l.cards {
		var total Entry
		containers := make(map[ContainerID]Entry)
		for p, e := range k.processes {
			c, known := l.processes[p]
			if !known {
				errs = append(errs, fmt.Errorf("card %s: process %d is unknown", id, p.PID))
			}
			total = total.replace(Entry{}, e)
			containers[c] = containers[c].replace(Entry{}, e)
		}
		if total != k.total || !maps.Equal(containers, k.containers) {
			errs = append(errs, fmt.Errorf("card %s: the sums differ: %+v and %+v", id, total, k.total))
		}
		if total.Committed > k.capacity {
			errs = append(errs, fmt.Errorf("card %s: %d bytes granted of %d", id, total.Committed, k.capacity))
		}
	}
	return errors.Join(errs...)
}
