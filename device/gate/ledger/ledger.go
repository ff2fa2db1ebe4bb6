// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package ledger keeps the books of GPU memory: who holds how much of which card.
//
// All amounts are bytes. What may be given of a card is its capacity: its physical
// memory less a reserve. A process is granted memory before it allocates; a grant counts as
// committed at once, and the process returns what it does not use and what it frees. The
// one promise, at all times and whatever is said to the ledger:
//
//	Σ committed ≤ capacity, on each card
//
// It is checked in one place, set, which every change goes through; a change that would
// break it is refused and changes nothing.
//
// Besides what was granted there are facts that nobody asked the ledger for. They take
// room from later grants and count as held by their container, but cannot be refused:
//
//   - overhead, what the driver adds to what was asked for: contexts, modules, rounding;
//   - expected, what a process holds that has lost its connection: it is not heard of
//     until it is back or gone;
//   - unproven, what a process says it holds and was never granted, as far as can be
//     known. It counts for its container only: a lie must not take room from others.
//
// What is parked is in the host's memory and takes no room, until it is brought back. What
// processes hold that the ledger does not know is outside: it takes room from all.
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

// CardID names a card, as NVML does: "GPU-…".
type CardID string

// ContainerID names a container on this host.
type ContainerID string

// ProcessID names a process on this host: the start tells processes apart that have had
// the same pid one after the other.
type ProcessID struct {
	PID   int    // on the host
	Start uint64 // clock ticks since the machine's start
}

var (
	// ErrUnknown: no such card or process.
	ErrUnknown = errors.New("unknown to the ledger")
	// ErrRoom: the card has not that much left now.
	ErrRoom = errors.New("no room on the card")
	// ErrLimit: the container would hold more than its limit.
	ErrLimit = errors.New("over the container's limit")
	// ErrAmount: an amount that cannot be, such as a return of more than is held.
	ErrAmount = errors.New("impossible amount")
)

// Entry is what somebody holds of a card, in bytes.
type Entry struct {
	Committed  uint64 // granted: allocated, or kept to be allocated from
	Overhead   uint64 // what the card shows beyond what was granted: contexts, modules
	Expected   uint64 // of processes without a connection
	Unverified uint64 // said to be held, and never granted
	Parked     uint64 // committed before, and in the host's memory now
}

// LimitUsage is what counts against a limit.
func (e Entry) LimitUsage() uint64 { return e.CardUsage() + e.Unverified }

// CardUsage is what counts against the card's capacity.
func (e Entry) CardUsage() uint64 { return e.Committed + e.Overhead + e.Expected }

// replace returns e with one of its parts, before, replaced by after.
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

// Ledger is the books of all cards of a host.
type Ledger struct {
	cards     map[CardID]*card
	processes map[ProcessID]ContainerID
}

// New returns a ledger without cards.
func New() *Ledger {
	return &Ledger{
		cards:     make(map[CardID]*card),
		processes: make(map[ProcessID]ContainerID),
	}
}

// AddCard adds a card of physical bytes, of which reserve bytes are never given.
func (l *Ledger) AddCard(id CardID, physical, reserve uint64) error {
	switch {
	case l.cards[id] != nil:
		return fmt.Errorf("card %s: is there already", id)
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

// AddProcess makes a process of a container known. A known one stays in its container.
func (l *Ledger) AddProcess(p ProcessID, c ContainerID) error {
	if have, known := l.processes[p]; known && have != c {
		return fmt.Errorf("process %d is in container %s, not in %s", p.PID, have, c)
	}
	l.processes[p] = c
	return nil
}

// SetLimit says how much a container may hold of a card. It may be less than what is
// held: then nothing is granted to it until that has come down. Without a limit a
// container may hold all of the card.
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

// Forget drops the limits of a container.
func (l *Ledger) Forget(c ContainerID) {
	for _, k := range l.cards {
		delete(k.limits, c)
	}
}

// Fits says whether a container may be granted bytes now: nil, ErrRoom or ErrLimit. It
// is ErrAmount if the card can never give that much to it under its limit of now.
func (l *Ledger) Fits(c ContainerID, id CardID, bytes uint64) error {
	k, err := l.card(id)
	limit := l.Limit(c, id)
	switch {
	case err != nil:
		return err
	case bytes > limit:
		return fmt.Errorf("%w: %d bytes of a limit of %d", ErrAmount, bytes, limit)
	case bytes > left(limit, k.containers[c].LimitUsage()):
		return ErrLimit
	case bytes > k.free():
		return ErrRoom
	}
	return nil
}

// Room returns how much a container could be granted of a card now.
func (l *Ledger) Room(c ContainerID, id CardID) uint64 {
	k := l.cards[id]
	if k == nil {
		return 0
	}
	return min(left(l.Limit(c, id), k.containers[c].LimitUsage()), k.free())
}

// left returns what is left of all, which may be overdrawn.
func left(all, taken uint64) uint64 { return all - min(all, taken) }

// Grant commits memory to a process. The errors are those of Fits.
func (l *Ledger) Grant(p ProcessID, id CardID, bytes uint64) error {
	c, known := l.processes[p]
	if !known {
		return fmt.Errorf("process %d: %w", p.PID, ErrUnknown)
	}
	if bytes == 0 {
		return fmt.Errorf("%w: nothing", ErrAmount)
	}
	if err := l.Fits(c, id, bytes); err != nil {
		return err
	}
	e := l.cards[id].processes[p]
	e.Committed += bytes
	return l.set(p, id, e)
}

// Return gives back what is held, first what was never granted and last what is parked.
func (l *Ledger) Return(p ProcessID, id CardID, bytes uint64) error {
	k, err := l.card(id)
	if err != nil {
		return err
	}
	e := k.processes[p]
	if bytes > e.Committed+e.Unverified+e.Parked {
		return fmt.Errorf("%w: process %d returns %d bytes of %d", ErrAmount, p.PID, bytes, e.Committed+e.Unverified+e.Parked)
	}
	for _, part := range []*uint64{&e.Unverified, &e.Committed, &e.Parked} {
		n := min(bytes, *part)
		*part -= n
		bytes -= n
	}
	return l.set(p, id, e)
}

// Park is told that what a process holds, of all cards, is in the host's memory.
func (l *Ledger) Park(p ProcessID) {
	for id, k := range l.cards {
		e, ok := k.processes[p]
		if !ok {
			continue
		}
		e.Parked += e.Committed + e.Expected
		e.Committed, e.Expected = 0, 0
		_ = l.set(p, id, e) // less is granted than before
	}
}

// Unpark grants a process what it has parked of a card, whatever its container's limit. If it
// is not known yet what it holds since its connection (Hold), that is expected of it. The
// error is ErrRoom.
func (l *Ledger) Unpark(p ProcessID, id CardID, known bool) error {
	k, err := l.card(id)
	if err != nil {
		return err
	}
	e := k.processes[p]
	if err := l.Vacant(id, e.Parked); err != nil {
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

// Vacant says whether so many bytes of a card can be given now, to whomever: nil, or ErrRoom.
func (l *Ledger) Vacant(id CardID, bytes uint64) error {
	if bytes > l.Free(id) {
		return ErrRoom
	}
	return nil
}

// SetOutside says how much of a card processes hold that the ledger does not know.
func (l *Ledger) SetOutside(id CardID, bytes uint64) error {
	k, err := l.card(id)
	if err != nil {
		return err
	}
	k.outside = min(bytes, k.physical)
	return nil
}

// Outside returns that.
func (l *Ledger) Outside(id CardID) uint64 {
	if k := l.cards[id]; k != nil {
		return k.outside
	}
	return 0
}

// SetOverhead says how much a process has on a card beyond what it was granted.
func (l *Ledger) SetOverhead(p ProcessID, id CardID, bytes uint64) error {
	return l.fact(p, id, bytes, func(e *Entry) { e.Overhead = bytes })
}

// Expect says how much a process holds that has no connection.
func (l *Ledger) Expect(p ProcessID, id CardID, bytes uint64) error {
	return l.fact(p, id, bytes, func(e *Entry) { e.Expected = bytes })
}

func (l *Ledger) fact(p ProcessID, id CardID, bytes uint64, change func(*Entry)) error {
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

// ExpectParked says how much a process has parked of a card, by what was written down.
func (l *Ledger) ExpectParked(p ProcessID, id CardID, bytes uint64) error {
	return l.fact(p, id, bytes, func(e *Entry) { e.Parked = bytes })
}

// Hold takes over what a process says that it holds since before its connection, in
// place of what was expected of it. It is for once, before the first Grant. What is known
// to be parked is still there; what was expected is believed, even beyond the limit, and
// more as far as a request would be granted now. The rest is unproven.
func (l *Ledger) Hold(p ProcessID, id CardID, bytes uint64) error {
	var was uint64
	if err := l.fact(p, id, bytes, func(e *Entry) {
		was, e.Expected, e.Unverified = e.Expected, 0, 0
		e.Parked = min(e.Parked, bytes)
		bytes -= e.Parked
	}); err != nil {
		return err
	}
	k := l.cards[id]
	believed := min(bytes, was, left(k.capacity, k.total.Committed))
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

// Detach is told that a process has lost its connection: what it was granted is expected
// of it from now on.
func (l *Ledger) Detach(p ProcessID) {
	for id, k := range l.cards {
		e, ok := k.processes[p]
		if !ok {
			continue
		}
		e.Expected += e.Committed
		e.Committed = 0
		_ = l.set(p, id, e) // less is granted than before
	}
}

// End is told that a process is gone. Everything that it held is free.
func (l *Ledger) End(p ProcessID) {
	for id, k := range l.cards {
		if _, ok := k.processes[p]; ok {
			_ = l.set(p, id, Entry{}) // less is granted than before
		}
	}
	delete(l.processes, p)
}

// set makes e the entry of a process on a card. It is the only place where an entry
// changes, and sees to the promise of this package.
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

// put keeps no empty entries.
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

// Capacity returns what may be given of a card.
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

// Free returns what can be given of a card now, to whomever.
func (l *Ledger) Free(id CardID) uint64 {
	if k := l.cards[id]; k != nil {
		return k.free()
	}
	return 0
}

func (k *card) free() uint64 { return left(k.capacity, k.total.CardUsage()+k.outside) }

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

// Holders returns the processes that take room on a card, in no order.
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

// Check adds everything up anew and compares. An error is a fault of this package.
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
