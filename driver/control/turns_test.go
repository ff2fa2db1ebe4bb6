// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
)

// card is a card whose time its jobs share, and a device plugin that follows the driver's turns.
type card struct {
	t    *testing.T
	dir  string
	jobs []*cardJob
}

type cardJob struct {
	*fake
	utilisation  float64 // when nothing else runs
	perStep      float64 // seconds of the card
	steps        int
	done         float64
	noYield      string
	silent, left bool
	waited       int // seconds
}

func (c *card) add(n *node, name string, utilisation float64, steps int) *cardJob {
	j := &cardJob{fake: n.task(name), utilisation: utilisation, perStep: 0.5, steps: steps}
	j.Turns = c.dir
	j.GPU = func() (handoff.Report, error) {
		if j.left {
			return handoff.Report{}, fs.ErrNotExist
		}
		r := handoff.Report{State: handoff.Running, Cards: []handoff.Card{{UUID: "card"}}, BusyS: new(j.done), NoYield: j.noYield}
		if j.silent {
			r.BusyS = nil
		}
		if c.yields(j) {
			r.State = handoff.Yielding
		}
		return r, nil
	}
	n.start(j.fake)
	c.jobs = append(c.jobs, j)
	return j
}

func (c *card) yields(j *cardJob) bool {
	turns, err := handoff.ReadTurns(c.dir)
	must.True(c.t, err == nil || errors.Is(err, fs.ErrNotExist))
	return j.noYield == "" && turns.Yields(time.Now(), j.AllocID, j.Name)
}

// second lets the jobs compute for a second; ended ones leave.
func (c *card) second(n *node) {
	wants := 0.0
	for _, j := range c.jobs {
		if !c.yields(j) {
			wants += j.utilisation
		}
	}
	do := make(behaviour)
	var here []*cardJob
	for _, j := range c.jobs {
		switch {
		case c.yields(j):
			j.waited++
		case j.done >= float64(j.steps)*j.perStep:
			n.remove(j.fake)
			continue
		default:
			j.done += j.utilisation / max(wants, 1)
			do[j.fake] = func() (float64, string) {
				step := int(j.done / j.perStep)
				return 0.3, fmt.Sprintf("step=%d/%d loss=%.4f", step, j.steps, 1/(1+j.done))
			}
		}
		here = append(here, j)
	}
	c.jobs = here
	n.second(do)
}

func (c *card) seconds(n *node, count int) {
	for range count {
		c.second(n)
	}
}

func newCard(t *testing.T, prefer fsp.Prefer) (*node, *card) {
	n := newNode(t, func(o *Options) { o.Policy, o.Turns = decider(t, "auto"), prefer })
	return n, &card{t: t, dir: t.TempDir()}
}

// Of two that fill the card the longer one waits until the other has ended, and goes on at once.
func TestTurns(t *testing.T) {
	bubble(func(t *testing.T) {
		n, c := newCard(t, fsp.Completion)
		long := c.add(n, "long", 1, 600)
		c.seconds(n, 30)
		must.InDelta(t, 0, float64(n.c.find(long.ID).turnStatus().AheadS), 1, must.Sprint("alone it has all that it can use"))
		short := c.add(n, "short", 1, 150)
		c.seconds(n, 60)
		must.True(t, c.yields(long))
		must.False(t, c.yields(short))
		s, l := n.c.find(short.ID).turnStatus(), n.c.find(long.ID).turnStatus()
		must.False(t, s.Yields)
		must.StrContains(t, s.Why, "s ahead of its fair share")
		must.True(t, l.Yields)
		must.StrContains(t, l.Why, "waits, as others come first on its card: it has ")
		must.StrContains(t, l.Why, "s behind its fair share")
		must.InDelta(t, 300-long.done, float64(l.RemainingS), 15)
		must.Eq(t, 1, s.Utilisation)
		task := n.c.find(long.ID)
		card, before := &task.gpu.Cards[0], *task.cardLeft()
		card.ParkedMiB, card.WaitingMiB = 20*1024, 10*1024
		must.InDelta(t, float64(before)+30, float64(*task.cardLeft()), 1e-9, must.Sprint("a second per GiB"))
		card.ParkedMiB, card.WaitingMiB = 0, 0
		for len(c.jobs) == 2 {
			c.second(n)
		}
		must.False(t, c.yields(long), must.Sprint("at once"))
		for len(c.jobs) > 0 {
			must.False(t, c.yields(long))
			c.second(n)
		}
	})(t)
}

// Those that leave the card idle run together.
func TestTurns_together(t *testing.T) {
	bubble(func(t *testing.T) {
		n, c := newCard(t, fsp.Completion)
		a, b, large := c.add(n, "a", 0.3, 300), c.add(n, "b", 0.4, 300), c.add(n, "large", 0.6, 900)
		c.seconds(n, 150)
		must.False(t, c.yields(a))
		must.False(t, c.yields(b))
		must.False(t, c.yields(large), must.Sprint("the two leave a third of the card idle"))
		must.Less(t, 60, large.waited, must.Sprint("until it was seen how much the others use"))
		for len(c.jobs) > 1 {
			c.second(n)
		}
		must.False(t, c.yields(large))
	})(t)
}

// Whose size or use is unknown, on whom others may depend, or who is stopped or moved does not wait.
func TestTurns_runs(t *testing.T) {
	for name, change := range map[string]func(*node, *cardJob){
		"no policy of turns": func(n *node, _ *cardJob) { n.c.opts.Turns = "" },
		"noYield":            func(_ *node, j *cardJob) { j.noYield = "its memory is shared" },
		"silent":             func(_ *node, j *cardJob) { j.silent = true },
		"stopping":           func(n *node, j *cardJob) { n.c.Stopping(j.ID) },
	} {
		t.Run(name, bubble(func(t *testing.T) {
			n, c := newCard(t, fsp.Completion)
			long := c.add(n, "long", 1, 600)
			c.add(n, "short", 1, 300)
			change(n, long)
			c.seconds(n, 60)
			must.False(t, c.yields(long))
			must.Eq(t, 0, long.waited)
		}))
	}
}

// A task that has left its card, or ended, lets the next one in at once.
func TestTurns_leave(t *testing.T) {
	bubble(func(t *testing.T) {
		n, c := newCard(t, fsp.Completion)
		long, short, other := c.add(n, "long", 1, 600), c.add(n, "short", 1, 200), c.add(n, "other", 1, 300)
		c.seconds(n, 62)
		must.Eq(t, []bool{true, false, true}, []bool{c.yields(long), c.yields(short), c.yields(other)})
		short.left = true
		n.seconds(2, nil)
		must.Eq(t, []bool{true, false}, []bool{c.yields(long), c.yields(other)})
		n.remove(other.fake)
		must.False(t, c.yields(long))
	})(t)
}

// The turns end by themselves if the driver does.
func TestTurns_driverEnds(t *testing.T) {
	bubble(func(t *testing.T) {
		n, c := newCard(t, fsp.Completion)
		long := c.add(n, "long", 1, 600)
		c.add(n, "short", 1, 300)
		c.seconds(n, 60)
		must.True(t, c.yields(long))
		n.stop()
		time.Sleep(turnsLast)
		must.False(t, c.yields(long))
	})(t)
}
