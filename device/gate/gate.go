// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package gate is where the GPU memory of a host is asked for.
//
// The preload library of each process connects to the gate's Unix socket. Before it
// allocates, it asks; the gate grants, lets it wait for a bounded time, or denies. The
// package ledger keeps the books, queue decides who is next, peer tells who asks, and
// wire is what is said. This package joins them: one lock guards all state, and nothing
// is done under it that waits for anybody but the state file.
//
// A client can only harm itself. It is known by what the kernel says of it; its messages
// have a fixed length; what it may ask, hold, leave open and send is bounded; a message
// that cannot be ends its connection. What a process holds stays on the books until it is
// gone, which the kernel tells, with or without a connection. So a client that is killed
// at any point gives everything back, and one that is cut off gains nothing.
//
// A gate that was restarted knows by its state file who may hold how much at most. Until
// these processes are back, or gone, that much is not given to others. Where the file
// cannot be read, nothing at all is given for Options.Grace.
//
// With an Evictor a container can be parked, to make room: its processes are paused, their
// memory goes to the host's, and comes back when there is room for all of it (park.go). So
// a request that fits on the card by itself need not be denied.
package gate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/peer"
	"github.com/ebbtide/ebbtide/device/gate/queue"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

var (
	// ErrUnknown says that no process of such a container has said hello, or no such card
	// is there.
	ErrUnknown = errors.New("unknown to the gate")
	// ErrPinned says that a process's memory cannot be moved, and never will.
	ErrPinned = errors.New("its memory cannot be moved")
	// ErrLost says that a process cannot go on: its memory did not come back.
	ErrLost = errors.New("its memory is lost")
	// ErrUnsure says that it is not known whether a process can go on: CUDA does not answer.
	ErrUnsure = errors.New("how it is with it is not known")
)

// Card is a GPU whose memory is given.
type Card struct {
	UUID     wire.UUID
	Physical uint64 // bytes
	Reserve  uint64 // bytes that are never given: for contexts, and for what the driver takes
}

// Share is what a container may have of a card.
type Share struct {
	Limit    uint64 // bytes
	Most     uint64 // bytes that it never gets more than, also of a soft share; 0: the card's
	Priority int    // more is sooner
}

// Shares divides cards among containers.
type Shares interface {
	// Join is told that a container is about to use a card, and says what it may have. It
	// may be told so more than once. With an error the container may not use the card.
	// It may call the gate.
	Join(peer.Container, ledger.CardID) (Share, error)
	// Leave is told that the last process of a container is gone.
	Leave(peer.Container)
}

// Evictor moves the memory that processes hold on cards to the host's memory, and back.
type Evictor interface {
	// Park moves all that the processes hold, on all cards. They are one container's and
	// have been paused. It returns how many bytes came free on each card, as far as the card
	// tells. With an error all is as it was before, unless the error wraps ErrLost or
	// ErrUnsure. With ErrPinned it is not tried again.
	Park(ctx context.Context, processes []ledger.ProcessID) (map[ledger.CardID]uint64, error)
	// Return moves it back. There is room for it, and no other process is granted any until
	// Return returns. A process that holds nothing away (it was never parked, or only
	// locked) is unlocked and otherwise left alone, so that Return also repairs what a gate
	// has left that ended in between. With an error the processes are parked still, unless
	// it wraps ErrLost.
	Return(ctx context.Context, processes []ledger.ProcessID) error
}

// Life is a process that may end.
type Life interface {
	// Wait returns nil when it has ended, and an error after Close.
	Wait() error
	// Kill ends it.
	Kill() error
	Close()
}

// Options say how a gate works.
type Options struct {
	Cards []Card
	// Shares divides the cards. Without, each container may hold all of each card.
	Shares Shares
	// Evictor makes room. Without, nobody is evicted, and a request is denied instead.
	Evictor Evictor
	// ReturnOnly is whether the Evictor only brings back who was parked by a gate before.
	ReturnOnly bool
	// Soft is whether a container that can be parked may hold more than its share while no
	// other wants it. The share is what it is told either way.
	Soft bool
	// Lazy is whether a container that was idle when it was parked returns after all others,
	// until it wants to submit work.
	Lazy bool
	// Measure tells what a card itself knows of its memory (Watch). Without, the books are
	// believed.
	Measure func(ledger.CardID) (Measured, error)
	// Rules are the times for which requests wait.
	Rules queue.Rules
	// MaxWait bounds how long a request may wait, whatever it says.
	MaxWait time.Duration
	// Lease is what a request is rounded up to, in bytes, if it welcomes that and nobody
	// waits. 0: not at all.
	Lease uint64
	// State is the path of the state file. Without, a restart is like a first start.
	State string
	// Grace is how long nothing is given after a start with an unreadable state file.
	Grace time.Duration
	// Finder finds out about processes.
	Finder peer.Finder
	// Identify tells who has connected. Without, Finder does: see its Identify for admit.
	Identify func(conn *net.UnixConn, admit func(id string) error) (peer.Process, Life, error)
	// Open finds a process again that the gate before this one has known; the error is
	// peer.ErrGone if it has ended. Without, peer.Finder does.
	Open func(pid int, start uint64) (Life, error)
	// Report is told what fails and which connections are cut off. It must not call the
	// gate.
	Report func(error)
	// Bounds of what one client can do.
	Bounds Bounds
}

// Bounds bound what one client or container can do to the gate.
type Bounds struct {
	// Connections of one container at a time; each counts for a second at least.
	Connections int
	// Total is how many connections there may be of all containers. Sure is how many a
	// container may have whatever the others have.
	Total, Sure int
	// Waiting requests of one container.
	Waiting int
	// Rate is how many messages a second are read of one container, and Burst how many may
	// come at once. More of them wait in the sockets.
	Rate, Burst int
	// Hello is how long a connection may be without a first message.
	Hello time.Duration
	// Write is how long a client may leave unread what it is sent.
	Write time.Duration
}

// Default returns options that fit most hosts. Cards, Shares and State are to be set.
func Default() Options {
	return Options{
		Rules: queue.Rules{
			HeadStart: time.Second, Patience: 5 * time.Second, Settle: 250 * time.Millisecond,
			Turn: time.Minute, Idle: 30 * time.Second,
		},
		MaxWait: 10 * time.Minute,
		Lease:   64 << 20,
		Grace:   10 * time.Second,
		Report:  func(error) {},
		Bounds: Bounds{
			Connections: 256, Total: 4096, Sure: 8, Waiting: 256,
			Rate: 10_000, Burst: 5_000, Hello: 5 * time.Second, Write: 5 * time.Second,
		},
	}
}

// Gate gives GPU memory to processes. Its methods are safe for concurrent use.
type Gate struct {
	opts  Options
	boot  string
	cards []ledger.CardID // a handle is an index in it, plus one

	mu         sync.Mutex
	ledger     *ledger.Ledger
	queue      *queue.Queue
	pending    map[uint64]*pending // by queue.Request.ID
	asked      uint64              // the last ID
	processes  map[ledger.ProcessID]*process
	containers map[ledger.ContainerID]*container
	moving     map[ledger.CardID]int // containers that are leaving
	returning  map[ledger.CardID]int // containers whose memory comes back: nobody is granted any
	recalled   map[ledger.CardID]time.Time
	outside    map[ledger.CardID]uint64 // held by processes that do not ask, as last measured
	doubted    map[ledger.CardID]bool   // nothing is granted until the card has been measured
	remeasure  chan struct{}
	rested     time.Time // until then the queue is not looked at again
	graceUntil time.Time // until then nothing is given
	timer      *time.Timer
	evictions  context.Context
	stop       context.CancelFunc
	closed     bool
	left       []*container // who Shares has to be told of

	// restoring is held while memory comes back: of one container at a time.
	restoring chan struct{}

	// sharing has who tells Shares of somebody: that one has come must not be heard after it
	// has left. It is taken before mu.
	sharing chan struct{}

	connections connLimiter
}

// container is one of which a process has said hello and is not gone.
type container struct {
	peer.Container
	id        ledger.ContainerID
	priority  int
	processes map[ledger.ProcessID]*process
	shares    map[ledger.CardID]uint64 // what it is told that it may hold
	arrived   time.Time
	placed    time.Time // it came, or last came back
	active    time.Time // it was last known to submit work
	waiting   int
	pause     *pause
	parking   *parking  // its memory is parked, or on the way
	spared    time.Time // until then it is not evicted: that has failed
	failed    int       // times in a row
	failure   error     // the last one; nil after a success
	lost      error     // why its memory did not come back; nil if it has
	counts    map[ledger.CardID]*Counts
	pauses    int
	pausedFor time.Duration
	parks     int
	parkedFor time.Duration
	faults    int
}

// process is one that has said hello and is not gone.
type process struct {
	id        ledger.ProcessID
	container *container
	life      Life
	session   *session // nil: it has no connection
	pinned    uint64   // why it cannot be evicted, or 0
	ceilings  map[ledger.CardID]uint64
}

// pending is a request without an answer.
type pending struct {
	session *session
	seq     uint64
	device  uint64
	lease   bool
	wait    uint64 // ms
}

// New returns a gate that knows what its state file says. Close must be called.
func New(opts Options) (*Gate, error) {
	if opts.Identify == nil {
		opts.Identify = func(c *net.UnixConn, admit func(string) error) (peer.Process, Life, error) {
			p, h, err := opts.Finder.Identify(c, admit)
			if err != nil {
				return p, nil, err // not a nil handle in an interface
			}
			return p, h, nil
		}
	}
	if opts.Open == nil {
		opts.Open = func(pid int, start uint64) (Life, error) {
			h, err := peer.Finder{}.Open(pid, start)
			if err != nil {
				return nil, err
			}
			return h, nil
		}
	}
	g := &Gate{
		opts:        opts,
		ledger:      ledger.New(),
		queue:       queue.New(opts.Rules),
		pending:     make(map[uint64]*pending),
		processes:   make(map[ledger.ProcessID]*process),
		containers:  make(map[ledger.ContainerID]*container),
		moving:      make(map[ledger.CardID]int),
		returning:   make(map[ledger.CardID]int),
		recalled:    make(map[ledger.CardID]time.Time),
		outside:     make(map[ledger.CardID]uint64),
		doubted:     make(map[ledger.CardID]bool),
		remeasure:   make(chan struct{}, 1),
		restoring:   make(chan struct{}, 1),
		sharing:     make(chan struct{}, 1),
		connections: connLimiter{held: make(map[ledger.ContainerID]*connCount)},
	}
	for _, c := range opts.Cards {
		if err := g.AddCard(c); err != nil {
			return nil, fmt.Errorf("opening the gate: %w", err)
		}
	}
	g.evictions, g.stop = context.WithCancel(context.Background())
	g.timer = time.AfterFunc(time.Hour, g.tick)
	if err := g.restore(); err != nil {
		g.Close()
		return nil, fmt.Errorf("opening the gate: %w", err)
	}
	return g, nil
}

// AddCard adds a card.
func (g *Gate) AddCard(c Card) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := ledger.CardID(c.UUID.String())
	if err := g.ledger.AddCard(id, c.Physical, c.Reserve); err != nil {
		return err
	}
	g.cards = append(slices.Clone(g.cards), id) // readers may have the old ones
	return nil
}

// Has says whether the gate has a card.
func (g *Gate) Has(card ledger.CardID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.handle(card) != 0
}

// Close ends all connections. What processes hold stays in the state file.
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

// lock is Lock with a look at the clock.
func (g *Gate) lock() time.Time {
	g.mu.Lock()
	return time.Now()
}

// unlock unlocks, and tells Shares who has left.
func (g *Gate) unlock() {
	left := g.left
	g.left = nil
	g.mu.Unlock()
	if g.opts.Shares == nil {
		return
	}
	for _, c := range left {
		g.tellLeft(c)
	}
}

// tellLeft tells Shares that a container has left, unless another one of that name has joined
// in its place.
func (g *Gate) tellLeft(c *container) {
	g.sharing <- struct{}{}
	defer func() { <-g.sharing }()
	g.mu.Lock()
	next := g.containers[c.id]
	replaced := next != nil && len(next.shares) > 0
	g.mu.Unlock()
	if !replaced {
		g.opts.Shares.Leave(c.Container)
	}
}

// tick is called when time alone has changed something.
func (g *Gate) tick() {
	now := g.lock()
	defer g.unlock()
	g.answer(now)
}

// Containers returns the containers of which processes are known.
func (g *Gate) Containers() []peer.Container {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []peer.Container
	for _, c := range g.containers {
		out = append(out, c.Container)
	}
	return out
}

// SetLimit changes how much a container may hold of a card, in bytes, and tells its
// processes. It may be less than what is held: nothing is granted until that has come
// down.
func (g *Gate) SetLimit(id ledger.ContainerID, card ledger.CardID, bytes uint64) error {
	now := g.lock()
	defer g.unlock()
	c := g.containers[id]
	if c == nil {
		return fmt.Errorf("container %s: %w", id, ErrUnknown)
	}
	before := g.share(c, card)
	if err := g.setShare(c, card, bytes); err != nil {
		return fmt.Errorf("limit of container %s: %w", id, err)
	}
	if after := g.share(c, card); after != before {
		for _, p := range c.processes {
			g.sendLimit(p, card, after)
		}
		g.answer(now)
	}
	return nil
}

// setShare says what a container may hold of a card, or, of soft shares, what it is told.
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

// share is what a container is told that it may hold of a card.
func (g *Gate) share(c *container, card ledger.CardID) uint64 {
	most := g.ledger.Limit(c.id, card)
	if share, set := c.shares[card]; set {
		return min(share, most)
	}
	return most
}

// sendLimit tells a process of its limit, if it uses the card.
func (g *Gate) sendLimit(p *process, card ledger.CardID, bytes uint64) {
	if p.session == nil {
		return
	}
	for device, id := range g.cards {
		if handle := uint64(device + 1); id == card && p.session.attached[handle] != nil {
			p.session.send(wire.Message{Type: wire.Limit, Device: handle, Bytes: bytes})
		}
	}
}

// view is what the queue sees of the gate at a time.
type view struct {
	*Gate
	now time.Time
}

// Fits is the ledger's word, or no room while the gate is blind or somebody's memory comes
// back. A container that comes back is not bound by its limit of now.
func (v view) Fits(r queue.Request) error {
	err := v.ledger.Vacant(r.Card, r.Bytes)
	if !r.Return {
		if v.containers[r.Container].parking != nil {
			return queue.ErrAway
		}
		err = v.ledger.Fits(r.Container, r.Card, r.Bytes)
	}
	if c := v.containers[r.Container]; err == nil && !r.Return && v.opts.Soft && v.never(c) &&
		v.ledger.Container(c.id, r.Card).LimitUsage()+r.Bytes > v.share(c, r.Card) {
		return ledger.ErrLimit // what it borrowed could not be had back
	}
	if errors.Is(err, ledger.ErrLimit) {
		held := v.ledger.Container(r.Container, r.Card)
		if limit, sure := v.ledger.Limit(r.Container, r.Card), held.LimitUsage()-held.Expected; sure <= limit && r.Bytes <= limit-sure {
			return queue.ErrUnheard
		}
	}
	if err == nil && (v.now.Before(v.graceUntil) || v.returning[r.Card] > 0 || v.doubted[r.Card]) {
		return ledger.ErrRoom
	}
	return err
}

// Holders is the ledger's.
func (v view) Holders(id ledger.CardID) []ledger.ProcessID { return v.ledger.Holders(id) }

// Runs says that a process is not paused.
func (v view) Runs(id ledger.ProcessID) bool {
	p := v.processes[id]
	return p == nil || p.container.pause == nil
}

// Alive says that somebody makes room, or that it is about to be known who needs it.
func (v view) Alive(id ledger.CardID) bool {
	return v.moving[id] > 0 || v.returning[id] > 0 || v.doubted[id] || v.now.Before(v.graceUntil)
}

// Hopeless says that a container cannot come back, whoever is parked for it.
func (v view) Hopeless(r queue.Request) bool { return r.Return && v.hopeless(r) }

// answer answers all requests that can be answered, and sees to it that it is called when
// time changes that.
func (g *Gate) answer(now time.Time) {
	n := g.queue.Len()
	if g.closed || n == 0 {
		return
	}
	if now.Before(g.rested) {
		g.timer.Reset(g.rested.Sub(now))
		return
	}
	if n > crowd {
		defer func() {
			end := time.Now()
			g.rested = end.Add(restFor * end.Sub(now))
		}()
	}
	for {
		r, a, ok := g.queue.Next(now, view{g, now})
		if !ok {
			break
		}
		if a == queue.Stuck || a == queue.Blocked {
			if g.giveBack(r) || g.unstick(now, r) || g.resumePlanned(now, r.Card) {
				continue
			}
			if a == queue.Blocked || g.later(r.Card) {
				break // it is looked at again
			}
		}
		switch {
		case a == queue.Granted && r.Return:
			g.comeBack(now, r)
		case a == queue.Granted:
			g.grant(now, r)
		case a == queue.Stuck:
			g.queue.Deny(r.ID)
			g.refuse(r, wire.NoMemory)
		case a == queue.TooLong:
			g.refuse(r, wire.TooLong)
		default:
			g.refuse(r, wire.NoMemory)
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
		if g.parks() && !v.Alive(card) && !g.makeRoom(now, r) {
			sooner(now.Add(lookAgain)) // somebody's turn may be over by then, somebody idle
		}
	}
	if ok {
		g.timer.Reset(wake.Sub(now))
	}
}

// A look at a queue of so many requests is paid for by time without another one, so many
// times as long: else the messages of one container, each of which may bring one about,
// would hold up those of all others.
const (
	crowd   = 64
	restFor = 4
)

// recall asks all who hold memory of a card for what they keep without use.
func (g *Gate) recall(now time.Time, card ledger.CardID) {
	if now.Sub(g.recalled[card]) < recallEvery {
		return
	}
	g.recalled[card] = now
	for _, id := range g.ledger.Holders(card) {
		if p := g.processes[id]; p.session != nil && p.session.attached[g.handle(card)] != nil {
			p.session.send(wire.Message{Type: wire.Recall, Device: g.handle(card)})
		}
	}
}

// recallEvery is how often that is done at most.
const recallEvery = time.Second

// lookAgain is how often it is looked whether somebody may be evicted for a request that
// waits.
const lookAgain = 250 * time.Millisecond

// grant grants what was asked, or a lease, and says so.
func (g *Gate) grant(now time.Time, r queue.Request) {
	p := g.settle(r)
	bytes := r.Bytes
	if lease := g.opts.Lease; p.lease && lease > 0 && g.queue.Len() == 0 {
		// Rounded up as far as there is room.
		more := (lease - bytes%lease) % lease
		bytes += min(more, g.ledger.Room(r.Container, r.Card)-bytes)
	}
	if err := g.ledger.Grant(r.Process, r.Card, bytes); err != nil {
		// The queue has just seen that it fits.
		g.opts.Report(fmt.Errorf("granting %d bytes to process %d: %w", bytes, r.Process.PID, err))
		p.session.send(wire.Message{Type: wire.Refused, Seq: p.seq, Device: p.device, Arg: uint64(wire.NoMemory)})
		return
	}
	p.session.process.container.active = now
	g.cover(p.session.process, r.Card)
	n := g.counts(r)
	n.Granted++
	n.GrantedBytes += bytes
	n.Waited += now.Sub(r.Since)
	p.session.send(wire.Message{Type: wire.Grant, Seq: p.seq, Device: p.device, Bytes: bytes})
}

// refuse denies a request. A container that was to come back stays away, and tries again.
func (g *Gate) refuse(r queue.Request, why wire.Reason) {
	if r.Return {
		g.stayAway(g.containers[r.Container])
		return
	}
	p := g.settle(r)
	n := g.counts(r)
	switch {
	case p.wait == 0:
		why = wire.NoMemory // it was only to be seen whether there is room: it is asked again
	case why == wire.TooLong:
		n.TooLong++
	default:
		n.Denied++
	}
	p.session.send(wire.Message{Type: wire.Refused, Seq: p.seq, Device: p.device, Arg: uint64(why)})
}

// settle takes a request off the pending ones.
func (g *Gate) settle(r queue.Request) *pending {
	p := g.pending[r.ID]
	delete(g.pending, r.ID)
	delete(p.session.open, p.seq)
	p.session.process.container.waiting--
	return p
}

func (g *Gate) counts(r queue.Request) *Counts { return g.containers[r.Container].count(r.Card) }

// count returns the figures of a container on a card.
func (c *container) count(card ledger.CardID) *Counts {
	n := c.counts[card]
	if n == nil {
		n = new(Counts)
		c.counts[card] = n
	}
	return n
}
