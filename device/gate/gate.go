// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package gate controls the allocation of GPU memory on a host.
//
// Each process's preload library connects to the gate's Unix socket and requests memory before it
// allocates. The gate grants, queues or denies the request. Package ledger does the accounting,
// queue orders the requests, identify names the clients, wire is the protocol. One lock guards
// all state; the only I/O under it is writing the state file.
//
// A client can harm only itself: the kernel identifies it, all that it can do is bounded, and its
// memory stays charged until the kernel reports its exit.
//
// After a restart, what a process may hold by the state file stays reserved until it reconnects
// or exits.
//
// With an Evictor the gate can park a container to make room (park.go), so that a request that
// fits on an empty card need not be denied.
package gate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/parking"
	"github.com/ebbtide/ebbtide/device/gate/queue"
	"github.com/ebbtide/ebbtide/device/gate/wire"
	"github.com/ebbtide/ebbtide/device/metrics"
)

// ErrUnknown: no process of the container has said hello, or there is no such card.
var ErrUnknown = errors.New("unknown to the gate")

// Card is a GPU whose memory the gate controls.
type Card struct {
	UUID     wire.UUID
	Physical uint64 // bytes
	Reserve  uint64 // bytes that are never granted: contexts and the driver's own memory
}

// Share is a container's entitlement on a card.
type Share struct {
	Bytes    uint64
	Most     uint64 // bytes; the limit, with soft shares; 0: the card's capacity
	Priority int    // higher is served first
}

// Shares divides cards among containers.
type Shares interface {
	// Join returns the share of a container that is about to use a card, or denies it the card.
	// It may be called repeatedly, and may call the gate.
	Join(identify.Container, ledger.CardID) (Share, error)
	// Leave is called when the last process of a container has exited.
	Leave(identify.Container)
}

// Evictor moves the GPU memory of processes to host memory and back.
type Evictor interface {
	// Park moves all that the processes of a paused container hold, on all cards. It returns the
	// bytes freed on each card, as far as known. An error changes nothing, unless it wraps
	// parking.ErrLost or ErrUnsure. parking.ErrPinned is not retried.
	Park(ctx context.Context, processes []ledger.ProcessID) (map[ledger.CardID]uint64, error)
	// Restore moves the memory back, while the gate grants nothing on these cards. Processes with
	// nothing parked are just unlocked, which repairs what a crashed gate left behind. After an
	// error the processes are still parked, unless it wraps parking.ErrLost.
	Restore(ctx context.Context, processes []ledger.ProcessID) error
}

// Life is a handle on a running process.
type Life interface {
	// Wait returns nil when the process has exited, and an error after Close.
	Wait() error
	// Kill kills the process.
	Kill() error
	Close()
}

// Options configure a gate.
type Options struct {
	Cards []Card
	// Shares divides the cards. Without it each container may hold all of each card.
	Shares Shares
	// Evictor parks containers. Without it requests are denied instead.
	Evictor Evictor
	// RestoreOnly uses the Evictor only for containers that an earlier gate has parked.
	RestoreOnly bool
	// Soft lets a container that can be parked hold more than its share while no other container
	// wants the memory.
	Soft bool
	// Lazy restores a container that was idle when parked after all others, until it submits
	// work.
	Lazy bool
	// Measure returns a card's own view of its memory (Watch). Without it the ledger is trusted.
	Measure func(ledger.CardID) (Measured, error)
	// Rules are the timings of the queue.
	Rules queue.Rules
	// MaxWait caps the wait that a request asks for.
	MaxWait time.Duration
	// Credit rounds grants up to a multiple of that many bytes, for requests that accept it while
	// nothing waits.
	Credit uint64
	// State is the path of the state file; "": a restart forgets everything.
	State string
	// Grace is how long nothing is granted after a start with an unreadable state file.
	Grace time.Duration
	// Finder looks up processes.
	Finder identify.Finder
	// Identify identifies a new client (identify.Finder.Identify). Default: Finder's.
	Identify func(conn *net.UnixConn, admit func(id string) error) (identify.Process, Life, error)
	// Open returns a handle on a process from the state file; identify.ErrGone if it has exited.
	// Default: identify.Finder's.
	Open func(pid int, start uint64) (Life, error)
	// Report is called with failures and reasons for cutting connections. It must not call the
	// gate.
	Report func(error)
	// Bounds limit what one client can do.
	Bounds Bounds
	// Metrics count what the gate does.
	Metrics *metrics.Metrics
}

// Bounds limit what a client or container can do to the gate.
type Bounds struct {
	// Connections per container; each counts for at least a second.
	Connections int
	// Total is the number of connections of all containers; Sure is what each has even beyond
	// that.
	Total, Sure int
	// Waiting requests per container.
	Waiting int
	// Rate is the number of messages per second and container, with bursts of Burst.
	Rate, Burst int
	// Hello is the time limit for the first message.
	Hello time.Duration
	// Write is how long a client may leave its messages unread.
	Write time.Duration
}

// Default returns options that suit most hosts. The caller sets Cards, Shares and State.
func Default() Options {
	return Options{
		Rules: queue.Rules{
			HeadStart: time.Second, Patience: 5 * time.Second, Settle: 250 * time.Millisecond,
			Turn: time.Minute, TurnCosts: 10, Idle: 30 * time.Second,
		},
		MaxWait: time.Hour,
		Credit:  64 << 20,
		Grace:   10 * time.Second,
		Report:  func(error) {},
		Metrics: metrics.New(),
		Bounds: Bounds{
			Connections: 256, Total: 4096, Sure: 8, Waiting: 256,
			Rate: 10_000, Burst: 5_000, Hello: 5 * time.Second, Write: 5 * time.Second,
		},
	}
}

// Gate controls GPU memory. Its methods are safe for concurrent use.
type Gate struct {
	opts  Options
	boot  string
	cards []ledger.CardID // a handle is the index plus one
	// requests counts those for each card.
	requests map[ledger.CardID]metrics.Requests

	mu             sync.Mutex
	ledger         *ledger.Ledger
	queue          *queue.Queue
	pending        map[uint64]*pending // by queue.Request.ID
	lastID         uint64              // of queue.Request.ID
	processes      map[ledger.ProcessID]*process
	containers     map[ledger.ContainerID]*container
	parkingOn      map[ledger.CardID]int // containers being parked
	restoringOn    map[ledger.CardID]int // containers being restored; nothing is granted meanwhile
	lastRecall     map[ledger.CardID]time.Time
	outside        map[ledger.CardID]uint64     // held by processes unknown to the gate, as last measured
	assumed        map[ledger.CardID]assumption // part of outside: what unsure containers may have there
	suspect        map[ledger.CardID]bool       // nothing is granted until the card has been measured
	remeasure      chan struct{}
	throttledUntil time.Time // the queue is not examined before
	graceUntil     time.Time // nothing is granted before
	timer          *time.Timer
	parkCtx        context.Context
	stop           context.CancelFunc
	closed         bool
	departed       []*container // Shares.Leave is due

	// restoreLock serializes restores.
	restoreLock chan struct{}

	// sharesLock serializes calls of Shares: no Join is seen after the Leave. It is taken before
	// mu.
	sharesLock chan struct{}

	connections connLimiter
}

type container struct {
	identify.Container
	id           ledger.ContainerID
	priority     int
	processes    map[ledger.ProcessID]*process
	shares       map[ledger.CardID]uint64 // its share, in bytes
	arrived      time.Time
	placed       time.Time // first start or last restore
	lastActive   time.Time // last known submission of work
	waiting      int
	pause        *pause
	memory       parking.Memory
	yieldsSince  time.Time // start of its wait for its turn, if it waits
	noYieldUntil time.Time // another one waited for its memory
	counts       map[ledger.CardID]*Counts
	pauses       int
	pausedFor    time.Duration
	faults       int
}

type process struct {
	id        ledger.ProcessID
	container *container
	life      Life
	session   *session // nil: disconnected
	pinned    uint64   // wire.Pinned's reason, or 0
	ceilings  map[ledger.CardID]uint64
}

type pending struct {
	session *session
	seq     uint64
	device  uint64
	credit  bool
	wait    uint64 // ms
}

// New returns a gate that has loaded its state file. The caller must Close it.
func New(opts Options) (*Gate, error) {
	if opts.Identify == nil {
		opts.Identify = func(c *net.UnixConn, admit func(string) error) (identify.Process, Life, error) {
			p, h, err := opts.Finder.Identify(c, admit)
			if err != nil {
				return p, nil, err // a nil *Handle would make a non-nil Life
			}
			return p, h, nil
		}
	}
	if opts.Open == nil {
		opts.Open = func(pid int, start uint64) (Life, error) {
			h, err := identify.Finder{}.Open(pid, start)
			if err != nil {
				return nil, err
			}
			return h, nil
		}
	}
	g := &Gate{
		opts:        opts,
		requests:    make(map[ledger.CardID]metrics.Requests),
		ledger:      ledger.New(),
		queue:       queue.New(opts.Rules),
		pending:     make(map[uint64]*pending),
		processes:   make(map[ledger.ProcessID]*process),
		containers:  make(map[ledger.ContainerID]*container),
		parkingOn:   make(map[ledger.CardID]int),
		restoringOn: make(map[ledger.CardID]int),
		lastRecall:  make(map[ledger.CardID]time.Time),
		outside:     make(map[ledger.CardID]uint64),
		assumed:     make(map[ledger.CardID]assumption),
		suspect:     make(map[ledger.CardID]bool),
		remeasure:   make(chan struct{}, 1),
		restoreLock: make(chan struct{}, 1),
		sharesLock:  make(chan struct{}, 1),
		connections: connLimiter{held: make(map[ledger.ContainerID]*connCount)},
	}
	for _, c := range opts.Cards {
		if err := g.AddCard(c); err != nil {
			return nil, fmt.Errorf("opening the gate: %w", err)
		}
	}
	g.parkCtx, g.stop = context.WithCancel(context.Background())
	g.timer = time.AfterFunc(time.Hour, g.tick)
	if err := g.loadState(); err != nil {
		g.Close()
		return nil, fmt.Errorf("opening the gate: %w", err)
	}
	return g, nil
}

func (g *Gate) AddCard(c Card) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := ledger.CardID(c.UUID.String())
	if err := g.ledger.AddCard(id, c.Physical, c.Reserve); err != nil {
		return err
	}
	g.cards = append(slices.Clone(g.cards), id) // readers may hold the old slice
	g.requests[id] = g.opts.Metrics.Requests(string(id))
	return nil
}

// Has reports whether the gate controls a card.
func (g *Gate) Has(card ledger.CardID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.handle(card) != 0
}

// Close ends all connections. Holdings stay in the state file.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.closed = true
	g.stop()
	g.timer.Stop()
	g.save()
	for _, p := range g.processes {
		if p.session != nil {
			p.session.cut()
		}
		if p.life != nil {
			p.life.Close()
		}
	}
}

func (g *Gate) lock() time.Time {
	g.mu.Lock()
	return time.Now()
}

// unlock unlocks mu and calls Shares.Leave for departed containers.
func (g *Gate) unlock() {
	left := g.departed
	g.departed = nil
	g.mu.Unlock()
	if g.opts.Shares == nil {
		return
	}
	for _, c := range left {
		g.notifyLeave(c)
	}
}

// notifyLeave calls Shares.Leave, unless a container of the same ID has joined.
func (g *Gate) notifyLeave(c *container) {
	g.sharesLock <- struct{}{}
	defer func() { <-g.sharesLock }()
	g.mu.Lock()
	next := g.containers[c.id]
	replaced := next != nil && len(next.shares) > 0
	g.mu.Unlock()
	if !replaced {
		g.opts.Shares.Leave(c.Container)
	}
}

func (g *Gate) tick() {
	now := g.lock()
	defer g.unlock()
	g.answer(now)
}

// Containers returns the known containers.
func (g *Gate) Containers() []identify.Container {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []identify.Container
	for _, c := range g.containers {
		out = append(out, c.Container)
	}
	return out
}

// SetShare changes a container's share of a card, in bytes, also to less than it holds.
func (g *Gate) SetShare(id ledger.ContainerID, card ledger.CardID, bytes uint64) error {
	now := g.lock()
	defer g.unlock()
	c := g.containers[id]
	if c == nil {
		return fmt.Errorf("container %s: %w", id, ErrUnknown)
	}
	before := g.share(c, card)
	if err := g.setShare(c, card, bytes); err != nil {
		return fmt.Errorf("share of container %s: %w", id, err)
	}
	if after := g.share(c, card); after != before {
		for _, p := range c.processes {
			g.sendShare(p, card, after)
		}
		g.answer(now)
	}
	return nil
}

// setShare sets a container's share, and without soft shares its limit.
func (g *Gate) setShare(c *container, card ledger.CardID, bytes uint64) error {
	if g.handle(card) == 0 {
		return fmt.Errorf("card %q: %w", card, ErrUnknown)
	}
	if !g.opts.Soft {
		if err := g.ledger.SetLimit(c.id, card, bytes); err != nil {
			return err
		}
	}
	c.shares[card] = bytes
	return nil
}

func (g *Gate) share(c *container, card ledger.CardID) uint64 {
	most := g.ledger.Limit(c.id, card)
	if share, set := c.shares[card]; set {
		return min(share, most)
	}
	return most
}

func (g *Gate) sendShare(p *process, card ledger.CardID, bytes uint64) {
	if p.session == nil {
		return
	}
	for device, id := range g.cards {
		if handle := uint64(device + 1); id == card && p.session.attached[handle] != nil {
			p.session.send(wire.Message{Type: wire.Share, Device: handle, Bytes: bytes})
		}
	}
}

type view struct {
	*Gate
	now time.Time
}

// Fits asks the ledger, but reports no room during the grace period or a restore, or on a suspect
// card. Limits do not apply to a restore.
func (v view) Fits(r queue.Request) error {
	err := v.ledger.FitsCard(r.Card, r.Bytes)
	if !r.Restore {
		if v.containers[r.Container].stopped() {
			return queue.ErrParked
		}
		err = v.ledger.Fits(r.Container, r.Card, r.Bytes)
	}
	if c := v.containers[r.Container]; err == nil && !r.Restore && v.opts.Soft && c.fixed() &&
		v.ledger.Container(c.id, r.Card).LimitUsage()+r.Bytes > v.share(c, r.Card) {
		return ledger.ErrLimit // it cannot be parked, so memory beyond its share could not be reclaimed
	}
	if errors.Is(err, ledger.ErrLimit) {
		held := v.ledger.Container(r.Container, r.Card)
		if limit, sure := v.ledger.Limit(r.Container, r.Card), held.LimitUsage()-held.Expected; sure <= limit && r.Bytes <= limit-sure {
			return queue.ErrUnreported
		}
	}
	if err == nil && (v.now.Before(v.graceUntil) || v.restoringOn[r.Card] > 0 || v.suspect[r.Card]) {
		return ledger.ErrRoom
	}
	return err
}

// Holders implements queue.View.
func (v view) Holders(id ledger.CardID) []ledger.ProcessID { return v.ledger.Holders(id) }

func (v view) Runs(id ledger.ProcessID) bool {
	p := v.processes[id]
	return p == nil || p.container.pause == nil
}

// Alive reports whether memory is about to come free: a park, restore or measurement is due.
func (v view) Alive(id ledger.CardID) bool {
	return v.parkingOn[id] > 0 || v.restoringOn[id] > 0 || v.suspect[id] || v.now.Before(v.graceUntil)
}

// Unservable reports whether no parking could make room for a restore.
func (v view) Unservable(r queue.Request) bool { return r.Restore && v.cannotFit(r) }

// answer answers all requests that can be, and arms the timer for the next deadline.
func (g *Gate) answer(now time.Time) {
	n := g.queue.Len()
	if g.closed || n == 0 {
		return
	}
	if now.Before(g.throttledUntil) {
		g.timer.Reset(g.throttledUntil.Sub(now))
		return
	}
	if n > longQueue {
		defer func() {
			end := time.Now()
			g.throttledUntil = end.Add(restFactor * end.Sub(now))
		}()
	}
	for {
		r, a, ok := g.queue.Next(now, view{g, now})
		if !ok {
			break
		}
		if a == queue.Stuck || a == queue.Blocked {
			if g.revokeRoom(r) || g.breakDeadlock(now, r) || g.resumeHolders(now, r.Card) {
				continue
			}
			if a == queue.Blocked || g.mayFreeLater(r.Card) {
				break // it is retried
			}
		}
		switch {
		case a == queue.Granted && r.Restore:
			g.admitRestore(now, r)
		case a == queue.Granted:
			g.grant(now, r)
		case a == queue.Stuck:
			g.queue.Deny(r.ID)
			g.deny(r, wire.NoMemory)
		case a == queue.TooLong:
			g.deny(r, wire.TooLong)
		default:
			g.deny(r, wire.NoMemory)
		}
	}
	wake, ok := g.queue.Wake(now)
	sooner := func(t time.Time) {
		if t.After(now) && (!ok || t.Before(wake)) {
			wake, ok = t, true
		}
	}
	sooner(g.graceUntil)
	for _, card := range g.cards {
		v := view{g, now}
		r, waits := g.queue.First(card, v)
		if !waits {
			continue
		}
		g.recall(now, card)
		if g.canPark() && !v.Alive(card) && !g.makeRoom(now, r) {
			sooner(now.Add(victimInterval)) // by then a turn may be over or a container idle
		}
	}
	if ok {
		g.timer.Reset(wake.Sub(now))
	}
}

// A queue longer than longQueue is next examined after restFactor times the duration, lest one
// container's messages delay all others.
const (
	longQueue  = 64
	restFactor = 4
)

func (g *Gate) recall(now time.Time, card ledger.CardID) {
	if now.Sub(g.lastRecall[card]) < recallEvery {
		return
	}
	g.lastRecall[card] = now
	for _, id := range g.ledger.Holders(card) {
		if p := g.processes[id]; p.session != nil && p.session.attached[g.handle(card)] != nil {
			p.session.send(wire.Message{Type: wire.Recall, Device: g.handle(card)})
		}
	}
}

const recallEvery = time.Second

const victimInterval = 250 * time.Millisecond

// grant grants a request, rounded up to the credit if it accepts more.
func (g *Gate) grant(now time.Time, r queue.Request) {
	p := g.takePending(r)
	bytes := r.Bytes
	if credit := g.opts.Credit; p.credit && credit > 0 && g.queue.Len() == 0 {
		more := (credit - bytes%credit) % credit
		bytes += min(more, g.ledger.Room(r.Container, r.Card)-bytes)
	}
	if err := g.ledger.Grant(r.Process, r.Card, bytes); err != nil {
		// The queue has just checked that it fits.
		g.opts.Report(fmt.Errorf("granting %d bytes to process %d: %w", bytes, r.Process.PID, err))
		p.session.send(wire.Message{Type: wire.Denied, Seq: p.seq, Device: p.device, Arg: uint64(wire.NoMemory)})
		return
	}
	p.session.process.container.lastActive = now
	g.ensureSaved(p.session.process, r.Card)
	n := g.counts(r)
	n.Granted++
	n.GrantedBytes += bytes
	n.Waited += now.Sub(r.Since)
	total := g.requests[r.Card]
	total.Granted.Inc()
	total.GrantedBytes.Add(float64(bytes))
	g.opts.Metrics.Wait.Observe(now.Sub(r.Since).Seconds())
	p.session.send(wire.Message{Type: wire.Grant, Seq: p.seq, Device: p.device, Bytes: bytes})
}

// deny denies a request. A restore is queued again.
func (g *Gate) deny(r queue.Request, why wire.Reason) {
	if r.Restore {
		g.requeueRestore(g.containers[r.Container])
		return
	}
	p := g.takePending(r)
	n := g.counts(r)
	switch {
	case p.wait == 0:
		why = wire.NoMemory // a probe for free memory; the client asks again
	case why == wire.TooLong:
		n.TooLong++
		g.requests[r.Card].TooLong.Inc()
	default:
		n.Denied++
		g.requests[r.Card].Denied.Inc()
	}
	p.session.send(wire.Message{Type: wire.Denied, Seq: p.seq, Device: p.device, Arg: uint64(why)})
}

func (g *Gate) takePending(r queue.Request) *pending {
	p := g.pending[r.ID]
	delete(g.pending, r.ID)
	delete(p.session.open, p.seq)
	p.session.process.container.waiting--
	return p
}

func (g *Gate) counts(r queue.Request) *Counts { return g.containers[r.Container].count(r.Card) }

func (c *container) count(card ledger.CardID) *Counts {
	n := c.counts[card]
	if n == nil {
		n = new(Counts)
		c.counts[card] = n
	}
	return n
}
