// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/parking"
	"github.com/ebbtide/ebbtide/device/gate/queue"
	"github.com/ebbtide/ebbtide/device/gate/wire"
)

// chaos is a host on which everything fails at random: processes exit and lose their connections,
// parks and restores fail, containers wait for their turn, the gate restarts. It tracks what is
// really on the cards. In most runs processes hold more than was granted, CUDA and NVML may not
// answer, and a full card refuses memory.
type chaos struct {
	*testing.T
	opts  Options
	begun time.Time

	mu      sync.Mutex
	random  *rand.Rand
	gate    *Gate // nil: restarting
	workers map[int]*worker
	on      map[ledger.CardID]uint64 // bytes
	moves   int
	fails   int // percent of moves
	more    bool
	stalled map[ledger.CardID]stall
	history []string
}

// happened adds to the history, which a failure logs. mu is held.
func (h *chaos) happened(what string, card ledger.CardID, bytes int64) {
	h.history = append(h.history, fmt.Sprintf("%v: %s: card %s: %d MiB, %d on it", time.Since(h.begun), what, card, bytes/mib, h.on[card]/mib))
}

// stall is a card whose first request would fit, if grants were not stopped there.
type stall struct {
	gate  *Gate
	id    uint64 // of the request
	since time.Time
}

const (
	longestMove = 15 * time.Second
	longestHang = 5 * time.Second // of NVML
	// longestStall is a restore with its measurement, or two measurements.
	longestStall = longestMove + restoreCheckWithin + time.Second
)

// chaosLife is a process that must not be killed: no move fails for good here.
type chaosLife struct {
	*life
	*worker
}

func (l chaosLife) Wait() error { return l.life.Wait() }

func (l chaosLife) Kill() error {
	l.Errorf("%v: process %d is killed", time.Since(l.begun), l.proc.PID)
	return nil
}

func (w *worker) life() Life {
	return chaosLife{&life{over: w.over, closed: make(chan struct{})}, w}
}

func (h *chaos) chance(n int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.random.IntN(100) < n
}

func (h *chaos) upTo(most time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Duration(h.random.Int64N(int64(most)))
}

// put adds memory to a card, or removes it. mu is held.
func (h *chaos) put(card ledger.CardID, bytes int64) {
	h.on[card] += uint64(bytes)
	h.happened("put", card, bytes)
	if h.on[card] > 1000*mib {
		h.Log(strings.Join(h.history[max(0, len(h.history)-60):], "\n"))
		h.Errorf("%v: %d MiB are on card %s", time.Since(h.begun), int64(h.on[card])/mib, card)
	}
}

func (h *chaos) measure(card ledger.CardID) (Measured, error) {
	if h.chance(1) {
		time.Sleep(h.upTo(longestHang))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.random.IntN(100) < 2 {
		return Measured{}, errors.New("NVML does not answer")
	}
	h.happened("measured", card, 0)
	m := Measured{Free: 1000*mib - min(1000*mib, h.on[card]), By: make(map[int]uint64)}
	for pid, w := range h.workers {
		if n := w.held[card] + w.more[card]; n > 0 && !w.parked {
			m.By[pid] = n
		}
	}
	return m, nil
}

func (h *chaos) stranger() {
	const bytes = 40 * mib
	card := ledger.CardID(h.opts.Cards[int(h.upTo(2))].UUID.String())
	h.mu.Lock()
	fits := h.on[card]+bytes <= 1000*mib
	if fits {
		h.put(card, bytes)
	}
	h.mu.Unlock()
	if fits {
		time.Sleep(h.upTo(2 * time.Minute))
		h.mu.Lock()
		h.put(card, -bytes)
		h.mu.Unlock()
	}
}

// takes simulates the duration of a move. The error means that it was cancelled.
func (h *chaos) takes(ctx context.Context) error {
	select {
	case <-time.After(h.upTo(longestMove)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Park implements gate.Evictor. When the gate closes, the move may or may not have been done.
func (h *chaos) Park(ctx context.Context, processes []ledger.ProcessID) (map[ledger.CardID]uint64, error) {
	err := h.takes(ctx)
	if err == nil && h.chance(h.fails) || err != nil && h.chance(50) {
		return nil, cmpErr(err, errors.New("no memory on the host"))
	}
	if err == nil && h.more && h.chance(h.fails) {
		err = parking.ErrUnsure
		if h.chance(50) {
			return nil, err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moves++
	freed := make(map[ledger.CardID]uint64)
	for _, id := range processes {
		w := h.workers[id.PID]
		if w == nil || w.parked {
			continue
		}
		w.parked = true
		for card, bytes := range w.held {
			h.put(card, -int64(bytes+w.more[card]))
			freed[card] += bytes + w.more[card]
		}
	}
	return freed, err
}

func (h *chaos) Restore(ctx context.Context, processes []ledger.ProcessID) error {
	err := h.takes(ctx)
	if err == nil && h.chance(h.fails) || err != nil && h.chance(50) {
		return cmpErr(err, errors.New("CUDA does not answer"))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moves++
	for _, id := range processes {
		w := h.workers[id.PID]
		if w == nil || !w.parked {
			continue
		}
		w.parked = false
		for card, bytes := range w.held {
			h.put(card, int64(bytes+w.more[card])) // a full card would break it forever
		}
	}
	return err
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

type worker struct {
	*chaos
	proc    identify.Process
	cards   []wire.UUID
	need    map[ledger.CardID]uint64
	pinned  bool
	over    chan struct{} // closed when it exits
	held    map[ledger.CardID]uint64
	more    map[ledger.CardID]uint64 // overhead
	parked  bool
	dead    bool
	gate    *Gate // of its connection
	session *session
	handles map[ledger.CardID]uint64
	seq     uint64
	paused  bool
	answers map[uint64]wire.Message
	changed *sync.Cond
}

func (h *chaos) worker(pid int, container string, need map[ledger.CardID]uint64) *worker {
	w := &worker{
		chaos: h, over: make(chan struct{}), need: need, held: make(map[ledger.CardID]uint64), more: make(map[ledger.CardID]uint64),
		proc:    identify.Process{PID: pid, Start: 1, Container: identify.Container{ID: container, Alloc: "alloc-" + container, Task: "train"}},
		changed: sync.NewCond(&h.mu),
	}
	for _, u := range []wire.UUID{uuid0, uuid1} {
		if _, ok := need[ledger.CardID(u.String())]; ok {
			w.cards = append(w.cards, u)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.workers[pid] = w
	return w
}

// die ends the process. mu is held.
func (w *worker) die() {
	if w.dead {
		return
	}
	w.dead = true
	for card, bytes := range w.held {
		if !w.parked {
			w.put(card, -int64(bytes+w.more[card]))
		}
	}
	delete(w.workers, w.proc.PID)
	close(w.over)
	w.changed.Broadcast()
}

// connect plays the library's thread: it connects, listens, and reconnects until the process
// ends.
func (w *worker) connect() {
	for {
		w.mu.Lock()
		g := w.chaos.gate
		w.mu.Unlock()
		if g != nil {
			s := newSession(w.proc, w.life())
			if w.introduce(g, s) {
				w.listen(g, s)
			}
			s.cut()
			g.disconnected(s, nil)
			w.mu.Lock()
			w.session, w.gate, w.paused = nil, nil, false
			w.changed.Broadcast()
			w.mu.Unlock()
		}
		select {
		case <-w.over:
			return
		case <-time.After(time.Millisecond + w.upTo(2*time.Second)):
		}
	}
}

func (w *worker) introduce(g *Gate, s *session) bool {
	if g.receive(s, wire.Message{Type: wire.Hello, Seq: 1, Arg: wire.Version}) != nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handles = make(map[ledger.CardID]uint64)
	for _, u := range w.cards {
		id, arg := u.Words()
		if g.receive(s, wire.Message{Type: wire.Attach, Seq: 1, ID: id, Arg: arg}) != nil {
			return false
		}
		card := ledger.CardID(u.String())
		w.handles[card] = g.handle(card)
		if w.held[card] > 0 && g.receive(s, wire.Message{Type: wire.Holds, Device: w.handles[card], Bytes: w.held[card]}) != nil {
			return false
		}
	}
	if w.pinned && g.receive(s, wire.Message{Type: wire.Pinned, Arg: wire.PinnedIPC}) != nil {
		return false
	}
	w.gate, w.session, w.answers = g, s, make(map[uint64]wire.Message)
	for len(s.out) > 0 { // it may have to stop before it starts
		w.recv(g, s, <-s.out)
	}
	w.changed.Broadcast()
	return true
}

// recv handles the gate's messages. mu is held.
func (w *worker) recv(g *Gate, s *session, m wire.Message) {
	switch m.Type {
	case wire.Pause, wire.Resume:
		w.paused = m.Type == wire.Pause
	case wire.Grant, wire.Denied:
		w.answers[m.Seq] = m
	}
	w.changed.Broadcast()
	if m.Type == wire.Pause && w.random.IntN(100) >= 3 { // else it does not answer
		time.AfterFunc(time.Duration(w.random.Int64N(int64(time.Second))), func() {
			_ = g.receive(s, wire.Message{Type: wire.Paused})
		})
	}
}

// listen reads until the connection ends; now and then it closes it itself.
func (w *worker) listen(g *Gate, s *session) {
	lasts := time.After(time.Hour)
	if w.chance(20) {
		lasts = time.After(w.upTo(5 * time.Minute))
	}
	for {
		select {
		case <-w.over:
			return
		case <-lasts:
			return
		case <-s.done:
			return
		case m := <-s.out:
			w.mu.Lock()
			w.recv(g, s, m)
			w.mu.Unlock()
		}
	}
}

// runs waits until the process is connected and may run. mu is held.
func (w *worker) runs() bool {
	for !w.dead && (w.session == nil || w.paused) {
		w.changed.Wait()
	}
	return !w.dead
}

// take takes memory of a card. It returns false if the process is dead or the request denied.
func (w *worker) take(card ledger.CardID, bytes uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	refused := 0
	for w.runs() {
		s, g := w.session, w.gate
		w.seq++
		seq := w.seq + 1
		if g.receive(s, wire.Message{Type: wire.Request, Seq: seq, Device: w.handles[card], Bytes: bytes, Arg: 1 << 40}) != nil {
			s.cut()
			w.mu.Unlock()
			time.Sleep(time.Millisecond)
			w.mu.Lock()
			continue
		}
		answered := func() bool { _, ok := w.answers[seq]; return ok }
		for !w.dead && w.session == s && !answered() {
			w.changed.Wait()
		}
		for !w.dead && w.session == s && w.paused {
			w.changed.Wait()
		}
		if w.dead || w.session != s {
			continue // the grant is gone with the connection
		}
		m := w.answers[seq]
		if m.Type == wire.Denied {
			w.mu.Unlock()
			excused := w.excused(g, card, bytes)
			w.mu.Lock()
			if !excused {
				w.Errorf("%v: process %d is denied %d MiB of %s: %+v", time.Since(w.begun), w.proc.PID, bytes/mib, card, m)
				logStats(w.T, g)
			}
			return false
		}
		if w.on[card]+bytes > 1000*mib && w.chaos.more { // the driver refuses it
			w.happened(fmt.Sprintf("refused to process %d", w.proc.PID), card, int64(bytes))
			if refused++; refused > 3 {
				w.Errorf("%v: process %d is out of memory: %d MiB of %s, on which %d are", time.Since(w.begun), w.proc.PID, bytes/mib, card, w.on[card]/mib)
				return false
			}
			for _, m := range []wire.Message{{Type: wire.Return, Device: w.handles[card], Bytes: bytes}, {Type: wire.Full, Device: w.handles[card]}} {
				if g.receive(s, m) != nil {
					s.cut()
				}
			}
			continue
		}
		w.held[card] += bytes
		w.put(card, int64(bytes))
		return true
	}
	return false
}

// excused reports whether a denial is due to a container that is fixed because its parks
// failed: the process's own, or one that holds what the process needs.
func (w *worker) excused(g *Gate, card ledger.CardID, bytes uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	var gaveUp, needed uint64
	for _, c := range g.containers {
		held := g.ledger.Container(c.id, card).CardUsage()
		own := c.ID == w.proc.Container.ID
		switch failed := c.memory.Fixed(); {
		case own && failed:
			return true
		case failed:
			gaveUp += held
			needed += held
		case own || c.fixed():
			needed += held
		}
	}
	return gaveUp > 0 && needed+g.ledger.Outside(card)+bytes > g.ledger.Capacity(card)
}

// grow loads a module, which no call reports.
func (w *worker) grow() {
	const bytes = 10 * mib
	w.mu.Lock()
	defer w.mu.Unlock()
	for card := range w.held {
		if w.runs() && w.chaos.more && w.random.IntN(20) == 0 && w.more[card] < 30*mib {
			w.more[card] += bytes
			w.put(card, bytes) // the reserve is for that
		}
	}
}

func (w *worker) work(each time.Duration, steps int) {
	const step = 100 * mib
	for more := true; more; {
		more = false
		for card, need := range w.need {
			w.mu.Lock()
			held := w.held[card]
			w.mu.Unlock()
			if held >= need {
				continue
			}
			more = true
			if !w.take(card, min(step, need-held)) {
				w.mu.Lock()
				w.die()
				w.mu.Unlock()
				return
			}
			w.grow()
			time.Sleep(each)
		}
	}
	for i := range steps {
		w.grow()
		w.mu.Lock()
		if !w.runs() {
			w.mu.Unlock()
			return
		}
		if w.parked {
			w.Errorf("%v: process %d runs while its memory is parked", time.Since(w.begun), w.proc.PID)
		}
		m := wire.Message{Type: wire.Active}
		for card := range w.held {
			if i%10 == 9 && w.held[card] > step { // and no longer needs it
				w.held[card] -= step
				w.put(card, -step)
				m = wire.Message{Type: wire.Return, Device: w.handles[card], Bytes: step}
			}
		}
		if w.gate.receive(w.session, m) != nil {
			w.session.cut()
		}
		w.mu.Unlock()
		time.Sleep(each)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.die()
}

func logStats(t *testing.T, g *Gate) {
	for _, s := range g.Stats() {
		t.Logf("%s: pids %v, %d absent, paused %t, stopped %t, %s", s.Container.ID, s.PIDs, s.Disconnected, s.Paused, s.Stopped, s.Parking.State)
		for _, u := range s.Usage {
			t.Logf("    %s: %+v, %d waiting", u.Card, u.Held, u.Waiting)
		}
	}
}

func (h *chaos) start() {
	g, err := New(h.opts)
	must.NoError(h, err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gate = g
	go g.Watch(g.parkCtx)
}

// current returns the gate; nil while it restarts.
func (h *chaos) current() *Gate {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gate
}

func (h *chaos) look() {
	g := h.current()
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.ledger.Check(); err != nil {
		h.Error(err)
	}
	for _, c := range g.containers {
		if c.pause != nil && c.pause.reasons[pausePark] != c.memory.InRound() {
			h.Errorf("%v: container %s: parked is %+v, pause %+v", time.Since(h.begun), c.id, c.memory, c.pause)
		}
		for _, card := range g.cards {
			if n := g.ledger.Container(c.id, card).Parked; n > 0 && !c.memory.InRound() {
				h.Errorf("%v: container %s is there, and %d bytes of it are not", time.Since(h.begun), c.id, n)
			}
		}
	}
}

// stalls checks that no card is without grants for longer than a restore takes.
func (h *chaos) stalls() {
	g := h.current()
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, card := range g.cards {
		r, stopped := g.stoppedFirst(card)
		switch s := h.stalled[card]; {
		case !stopped:
			delete(h.stalled, card)
		case s.gate != g || s.id != r.ID:
			h.stalled[card] = stall{g, r.ID, time.Now()}
		case time.Since(s.since) > longestStall:
			h.Errorf("%v: nothing is granted of card %s since %v: restoring %d, suspect %t, first %+v",
				time.Since(h.begun), card, time.Since(s.since), g.restoringOn[card], g.suspect[card], r)
			delete(h.stalled, card)
		}
	}
}

// stoppedFirst returns the first request of a card, if it fits and grants are stopped there.
func (g *Gate) stoppedFirst(card ledger.CardID) (queue.Request, bool) {
	v := view{g, time.Now()}
	for r := range g.queue.All {
		if r.Card != card || errors.Is(v.Fits(r), queue.ErrParked) {
			continue
		}
		restoring, suspect := g.restoringOn[card], g.suspect[card]
		g.restoringOn[card], g.suspect[card] = 0, false
		fits := v.Fits(r) == nil
		g.restoringOn[card], g.suspect[card] = restoring, suspect
		return r, fits && (restoring > 0 || suspect)
	}
	return queue.Request{}, false
}

// Whatever fails: the ledger's invariant holds, no card is over-committed or long without grants,
// every process that survives finishes, none is killed, and nothing is left behind.
func TestPark_chaos(t *testing.T) {
	for seed := range uint64(120) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { runChaos(t, seed, seed < 100) })
		})
	}
}

// runChaos runs it once; more: with uncounted memory and contexts that grow.
func runChaos(t *testing.T, seed uint64, more bool) {
	random := rand.New(rand.NewPCG(seed, 3))
	h := &chaos{
		T: t, opts: options(), begun: time.Now(), random: rand.New(rand.NewPCG(seed, 4)),
		workers: make(map[int]*worker), on: make(map[ledger.CardID]uint64), fails: 10 * random.IntN(3),
		more: more, stalled: make(map[ledger.CardID]stall),
	}
	most := 10 // pieces that a container needs of a card
	if h.more {
		most = 8
		h.opts.Measure = h.measure
		for i := range h.opts.Cards {
			h.opts.Cards[i].Reserve = 100 * mib
		}
	}
	h.opts.Evictor, h.opts.Soft, h.opts.Lazy, h.opts.MaxWait = h, true, seed%2 == 0, 1000*time.Hour
	h.opts.State = filepath.Join(t.TempDir(), "state")
	h.opts.Open = func(pid int, _ uint64) (Life, error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if w := h.workers[pid]; w != nil {
			return w.life(), nil
		}
		return nil, identify.ErrGone
	}
	h.start()
	stuck := time.AfterFunc(100*time.Hour, func() {
		logStats(t, h.gate)
		panic("it does not come to an end")
	})

	var all, others sync.WaitGroup
	done := make(chan struct{})
	every := func(most time.Duration, f func()) {
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(h.upTo(most)):
					f()
				}
			}
		})
	}
	every(10*time.Second, h.look)
	every(time.Second, h.stalls)
	every(3*time.Minute, func() { // the driver decides whose turn it is, then ends
		some := h.upTo(1 << 32)
		for range h.upTo(2*time.Minute) / time.Second {
			if g := h.current(); g != nil {
				g.SetTurns(func(c identify.Container) bool { return some>>(len(c.ID)+int(c.ID[len(c.ID)-1]))%32&1 == 1 })
			}
			time.Sleep(time.Second)
		}
		if g := h.current(); g != nil {
			g.SetTurns(func(identify.Container) bool { return false })
		}
	})
	every(5*time.Minute, func() { // a process dies
		h.mu.Lock()
		defer h.mu.Unlock()
		for pid := 1 + h.random.IntN(40); pid <= 40; pid++ {
			if w := h.workers[pid]; w != nil {
				w.die()
				return
			}
		}
	})
	if h.more {
		every(3*time.Minute, h.stranger)
	}
	if seed%2 == 1 {
		every(10*time.Minute, func() { // the gate restarts
			h.mu.Lock()
			g := h.gate
			h.gate = nil
			h.mu.Unlock()
			g.Close()
			time.Sleep(time.Millisecond + h.upTo(5*time.Second))
			h.start()
		})
	}
	pid := 0
	for i := range 3 + random.IntN(10) {
		left := map[ledger.CardID]int{}
		for _, c := range h.opts.Cards {
			left[ledger.CardID(c.UUID.String())] = most
		}
		pinned := i == 0 && random.IntN(4) == 0
		for range 1 + random.IntN(2) {
			pid++
			need := make(map[ledger.CardID]uint64)
			for _, u := range []wire.UUID{uuid0, uuid1} {
				card := ledger.CardID(u.String())
				if n := random.IntN(left[card] + 1); n > 0 && (random.IntN(3) > 0 || u == uuid0) {
					need[card] = uint64(n) * 100 * mib
					left[card] -= n
				}
			}
			w := h.worker(pid, fmt.Sprint("c", i), need)
			w.pinned = pinned
			each, steps := time.Duration(1+random.IntN(20))*time.Second, random.IntN(60)
			others.Go(w.connect)
			all.Go(func() { w.work(each, steps) })
		}
		time.Sleep(time.Duration(random.IntN(60)) * time.Second)
	}
	all.Wait()
	close(done)
	others.Wait()
	stuck.Stop()
	time.Sleep(time.Minute) // operations in progress finish
	synctest.Wait()
	h.gate.mu.Lock()
	must.MapEmpty(t, h.gate.containers)
	must.Zero(t, h.gate.queue.Len())
	for _, card := range h.gate.cards {
		must.Eq(t, []any{0, 0, ledger.Entry{}, uint64(0)}, []any{h.gate.parkingOn[card], h.gate.restoringOn[card], h.gate.ledger.Total(card), h.on[card]})
	}
	h.gate.mu.Unlock()
	t.Logf("%v, %d moves", time.Since(h.begun), h.moves)
	h.gate.Close()
	time.Sleep(time.Hour) // no timer is left that matters
	synctest.Wait()
}
