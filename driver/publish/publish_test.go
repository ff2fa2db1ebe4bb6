// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package publish

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"
)

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		var sent []string
		e := Events{emit: func(ev Event) { sent = append(sent, ev.Message) }}
		flush := func(at time.Time) {
			e.Flush(at)
			synctest.Wait()
		}
		flush(now)
		must.Len(t, 0, sent)
		e.Enqueue("a", "one")
		flush(now)
		e.Enqueue("category", "two")
		e.Enqueue("b", "other")
		flush(now.Add(eventEvery - 1))
		must.Eq(t, []string{"one"}, sent, must.Sprint("one each 30 s"))
		e.Enqueue("category", "two, newer")
		flush(now.Add(eventEvery))
		must.Eq(t, []string{"one", "two, newer"}, sent, must.Sprint("the newest of a kind, in order"))
		e.Drop("b")
		e.Drop("unknown")
		flush(now.Add(3 * eventEvery))
		must.Len(t, 2, sent)
	})
}

type fakeDrawer struct{ drawn int }

func (p *fakeDrawer) Picture() error { p.drawn++; return nil }

func TestPlots(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a := NewPlots()
	p, q := &fakeDrawer{}, &fakeDrawer{}
	const rich, poor, broke = pictureBurst, pictureBurst / 4, -time.Millisecond
	a.request(p, soon)
	d, _, wait := a.next(now, broke)
	must.Nil(t, d, must.Sprint("milestones wait for the budget, too"))
	must.Eq(t, time.Second/2, wait)
	d, _, _ = a.next(now, poor)
	must.Eq[drawer](t, p, d)
	a.request(p, whenDue)
	a.request(p, whenDue)
	d, _, wait = a.next(now.Add(time.Second), rich)
	must.Nil(t, d)
	must.Eq(t, pictureEvery-time.Second, wait)
	d, _, _ = a.next(now.Add(pictureEvery), poor)
	must.Nil(t, d, must.Sprint("half of what is saved up is for milestones"))
	a.request(q, soon)
	d, _, _ = a.next(now.Add(pictureEvery), rich)
	must.Eq[drawer](t, q, d, must.Sprint("a milestone comes before the others"))
	d, _, _ = a.next(now.Add(pictureEvery), rich)
	must.Eq[drawer](t, p, d)
	a.request(q, last)
	d, _, _ = a.next(now, broke)
	must.Eq[drawer](t, q, d, must.Sprint("the last one does not wait"))
	must.MapNotContainsKey(t, a.drawn, drawer(q))
	_, _, wait = a.next(now, rich)
	must.Eq(t, time.Hour, wait)
}
