// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/profile"
)

const card ledger.CardID = "GPU-1"

// job is a job on a fake card, simulated in seconds.
type job struct {
	id       string
	key      string // of job
	priority int
	needs    func(second int) uint64 // MiB
	seconds  int
	late     int  // seconds until it starts
	silent   bool // it does not answer a pause
	halted   bool // paused for another reason

	arrived   time.Time
	ran       int
	held      uint64 // MiB
	planned   bool
	stopped   bool // it has answered
	since     time.Time
	pausedFor time.Duration
	pauses    int
	failed    bool // its request did not fit
	ended     bool
}

// fake is a card on which what does not fit fails.
type fake struct {
	mu     sync.Mutex
	memory uint64 // MiB
	jobs   []*job
	refuse error // of Resume
}

func (f *fake) Stats() (all []gate.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range f.jobs {
		if j.arrived.IsZero() || j.ended {
			continue
		}
		all = append(all, gate.Status{
			Container: identify.Container{ID: j.id, Namespace: "md", Job: j.key}, Priority: j.priority, Processes: 1, Arrived: j.arrived,
			Paused: j.planned || j.halted, Planned: j.planned, PausedFor: j.pausedFor,
			Usage: []gate.Usage{{Card: card, Held: ledger.Entry{Committed: j.held * mib}}},
		})
	}
	return all
}

func (f *fake) Cards() []gate.CardStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	return []gate.CardStatus{{Card: card, Physical: f.memory * mib, Free: (f.memory - f.held()) * mib, Held: ledger.Entry{Committed: f.held() * mib}}}
}

func (f *fake) held() (sum uint64) {
	for _, j := range f.jobs {
		sum += j.held
	}
	return sum
}

func (f *fake) find(id ledger.ContainerID) *job {
	i := slices.IndexFunc(f.jobs, func(j *job) bool { return j.id == string(id) && !j.ended && !j.arrived.IsZero() })
	if i < 0 {
		return nil
	}
	return f.jobs[i]
}

func (f *fake) Pause(ctx context.Context, id ledger.ContainerID, reason string) error {
	f.mu.Lock()
	j := f.find(id)
	switch {
	case j == nil:
		f.mu.Unlock()
		return gate.ErrUnknown
	case j.planned || reason != gate.PausePlan:
		f.mu.Unlock()
		return gate.ErrPaused
	}
	j.planned, j.since = true, time.Now()
	j.pauses++
	silent := j.silent
	f.mu.Unlock()
	if silent {
		<-ctx.Done()
		_ = f.Resume(id, reason)
		return ctx.Err()
	}
	time.Sleep(300 * time.Millisecond) // until its submitted work is done
	f.mu.Lock()
	defer f.mu.Unlock()
	j.stopped = j.planned
	return nil
}

func (f *fake) Resume(id ledger.ContainerID, reason string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := f.find(id)
	switch {
	case j == nil:
		return gate.ErrUnknown
	case f.refuse != nil:
		return f.refuse
	}
	if j.planned && reason == gate.PausePlan {
		j.planned, j.stopped = false, false
		j.pausedFor += time.Since(j.since)
	}
	return nil
}

func (f *fake) now(i int) job {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *f.jobs[i]
}

func (f *fake) set(refuse error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refuse = refuse
}

func (f *fake) second(now int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range f.jobs {
		if j.arrived.IsZero() && now >= j.late {
			j.arrived = time.Now()
		}
		if j.arrived.IsZero() || j.ended || j.stopped || j.halted {
			continue
		}
		if j.ran == j.seconds {
			j.ended, j.held = true, 0
			continue
		}
		want := j.needs(j.ran)
		if want > j.held && f.held()+want-j.held > f.memory {
			j.failed, j.ended, j.held = true, true, 0
			continue
		}
		j.held = want
		j.ran++
	}
}

// pass simulates some seconds, offset from the watcher's passes.
func (f *fake) pass(seconds int) {
	time.Sleep(500 * time.Millisecond)
	for now := range seconds {
		f.second(now)
		time.Sleep(time.Second)
	}
}

// lammps needs 1.7 GB, and 8.3 GB from 1180 s to 1195 s, as in the paper.
func lammps(second int) uint64 {
	if second < 1180 {
		return 1700
	}
	return 8300
}

func newLAMMPS(id string, late int) *job {
	return &job{id: id, key: "lammps", priority: 50, needs: lammps, seconds: 1195, late: late}
}

func bubble(t *testing.T, f func(t *testing.T, s *profile.Store, dir string)) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "profiles")
	synctest.Test(t, func(t *testing.T) {
		s, err := profile.Open(dir, func(err error) { t.Error(err) })
		must.NoError(t, err)
		f(t, s, dir)
	})
}

type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

func begin(t *testing.T, g Gate, s Store) (*lines, func()) {
	t.Helper()
	var told lines
	w := New(g, s, hclog.New(&hclog.LoggerOptions{Output: &told, Level: hclog.Debug}), Default())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx, time.Second) }()
	return &told, func() { cancel(); <-done }
}

// The paper's LAMMPS jobs, whose late peaks collide: without profiles the second one fails; with
// the profile of a first run it is paused in time, and both finish.
func TestWatcher_lammps(t *testing.T) {
	bubble(t, func(t *testing.T, s *profile.Store, _ string) {
		const memory = 12288
		run := func(jobs ...*job) *lines {
			f := &fake{memory: memory, jobs: jobs}
			told, end := begin(t, f, s)
			f.pass(3000)
			end()
			for _, j := range jobs {
				must.True(t, j.ended)
			}
			return told
		}
		a, b := newLAMMPS("a", 0), newLAMMPS("b", 5)
		run(a, b)
		must.False(t, a.failed)
		must.True(t, b.failed)

		a, b = newLAMMPS("a", 0), newLAMMPS("b", 5)
		told := run(a, b)
		must.False(t, a.failed)
		must.False(t, b.failed)
		must.Eq(t, 0, a.pauses)
		must.Eq(t, 1, b.pauses, must.Sprint("no more than once"))
		must.Less(t, 120*time.Second, b.pausedFor)
		must.Eq(t, 1, told.count("a container is paused"))
		must.Eq(t, 1, told.count("a container is resumed"))

		a, b = newLAMMPS("a", 0), newLAMMPS("b", 5)
		b.priority = 80
		run(a, b)
		must.False(t, a.failed || b.failed)
		must.Eq(t, 1, a.pauses)
		must.Eq(t, 0, b.pauses)

		var jobs []*job
		for i := range 3 {
			jobs = append(jobs, newLAMMPS(fmt.Sprint("j", i), i))
		}
		run(jobs...)
		for _, j := range jobs {
			must.False(t, j.failed, must.Sprint(j.id))
		}
		sum := s.Summaries()[0]
		must.Eq(t, 8300*mib, sum.Peak)
		must.Eq(t, 1700*mib, sum.Working)
		must.InDelta(t, 1195, sum.FastestS, 3, must.Sprint("pauses do not count"))
		must.Eq(t, 9, sum.Measured)
	})
}

// A job that does not answer does not keep others from being measured, and the back-off is logged
// once.
func TestWatcher_silent(t *testing.T) {
	bubble(t, func(t *testing.T, s *profile.Store, _ string) {
		one := newLAMMPS("one", 0)
		f := &fake{memory: 12288, jobs: []*job{one}}
		_, end := begin(t, f, s)
		f.pass(1300)
		end()

		a, b := newLAMMPS("a", 0), newLAMMPS("b", 5)
		b.silent = true
		b.seconds = 1180 // its rise does not come this time
		c := &job{id: "c", key: "other", priority: 50, needs: func(int) uint64 { return 100 }, seconds: 1250}
		f = &fake{memory: 12288, jobs: []*job{a, b, c}}
		told, end := begin(t, f, s)
		f.pass(1300)
		end()
		must.False(t, a.failed)
		must.True(t, c.ended)
		must.Between(t, 1, b.pauses, 3)
		must.Eq(t, 1, told.count("cannot pause a container"))
		p, ok := s.Profile(profile.Key{Namespace: "md", Job: "other"})
		must.True(t, ok)
		must.InDelta(t, 1250, p.Runs[0].Seconds, 3)
	})
}

func collide(t *testing.T, s *profile.Store, w Store) (*fake, *lines, func()) {
	t.Helper()
	first := &fake{memory: 12288, jobs: []*job{newLAMMPS("one", 0)}}
	_, end := begin(t, first, s)
	first.pass(1300)
	end()
	f := &fake{memory: 12288, jobs: []*job{newLAMMPS("a", 0), newLAMMPS("b", 5)}}
	told, end := begin(t, f, w)
	f.pass(1150)
	must.True(t, f.now(1).planned)
	must.True(t, f.now(1).stopped)
	return f, told, end
}

func TestWatcher_ends(t *testing.T) {
	bubble(t, func(t *testing.T, s *profile.Store, _ string) {
		f, told, end := collide(t, s, s)
		f.set(errors.New("not now"))
		f.pass(60)
		must.Eq(t, 1, told.count("could not be resumed"), must.Sprint("tried again and again, and said once"))
		must.True(t, f.now(1).planned)
		f.set(nil)
		f.pass(5)
		must.False(t, f.now(1).planned)
		end()

		f, _, end = collide(t, s, s)
		end()
		must.False(t, f.now(1).planned)

		a, b := newLAMMPS("a", 0), newLAMMPS("b", 5)
		b.silent = true
		f = &fake{memory: 12288, jobs: []*job{a, b}}
		_, end = begin(t, f, s)
		f.pass(1135)
		must.True(t, f.now(1).planned)
		must.False(t, f.now(1).stopped)
		end()
		must.False(t, b.planned)
	})
}

func TestWatcher_gateResumes(t *testing.T) {
	bubble(t, func(t *testing.T, s *profile.Store, _ string) {
		f, told, end := collide(t, s, s)
		defer end()
		must.NoError(t, f.Resume("b", gate.PausePlan))
		time.Sleep(1500 * time.Millisecond)
		must.Eq(t, 1, told.count("the gate has ended its pause"))
		time.Sleep(30 * time.Second)
		must.False(t, f.now(1).planned, must.Sprint("it rests"))
		time.Sleep(60 * time.Second)
		must.True(t, f.now(1).planned)
	})
}

type failing struct {
	*profile.Store
	mu  sync.Mutex
	err error
}

func (f *failing) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *failing) Save(name string, v any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	return f.Store.Save(name, v)
}

func TestWatcher_storeFails(t *testing.T) {
	bubble(t, func(t *testing.T, s *profile.Store, _ string) {
		full := &failing{Store: s}
		f, told, end := collide(t, s, full)
		defer end()
		full.set(errors.New("the disk is full"))
		time.Sleep(100 * time.Second)
		must.False(t, f.now(1).planned)
		must.Eq(t, 1, told.count("profiles cannot be stored"))
		full.set(nil)
		time.Sleep(100 * time.Second)
		must.True(t, f.now(1).planned)
		must.Eq(t, 1, told.count("can be stored again"))
	})
}

// slow is a store whose disk answers only at the end.
type slow struct {
	*profile.Store
	end chan struct{}
}

func (s *slow) Save(name string, v any) error {
	<-s.end
	return s.Store.Save(name, v)
}

func TestWatcher_storeHangs(t *testing.T) {
	bubble(t, func(t *testing.T, s *profile.Store, _ string) {
		hangs := &slow{s, make(chan struct{})}
		defer close(hangs.end)
		collide(t, s, hangs) // a container is paused in time
	})
}

// Measurements survive a kill of the plugin, and its successor knows how long a job has run.
func TestWatcher_killed(t *testing.T) {
	bubble(t, func(t *testing.T, s *profile.Store, dir string) {
		a := newLAMMPS("a", 0)
		gone := &job{id: "gone", key: "gone", needs: func(int) uint64 { return 77 }, seconds: 610}
		f := &fake{memory: 12288, jobs: []*job{a, gone}}
		_, end := begin(t, f, s)
		f.pass(600)
		copied := dir + ".copy" // the disk at the moment of the kill
		must.NoError(t, os.CopyFS(copied, os.DirFS(dir)))
		end()
		f.pass(20) // without a watcher
		late := &job{id: "late", key: "late", needs: func(int) uint64 { return 50 }, seconds: 100, arrived: time.Now(), held: 50}
		f.mu.Lock()
		f.jobs = append(f.jobs, late)
		f.mu.Unlock()
		next, err := profile.Open(copied, func(err error) { t.Error(err) })
		must.NoError(t, err)
		told, end := begin(t, f, next)
		f.pass(700)
		end()
		must.True(t, a.ended && gone.ended && late.ended)
		p, ok := next.Profile(profile.Key{Namespace: "md", Job: "lammps"})
		must.True(t, ok)
		must.True(t, p.Runs[0].Whole)
		must.InDelta(t, 1195, p.Runs[0].Seconds, 5)
		must.Eq(t, 8300*mib, p.Runs[0].Peak())
		p, ok = next.Profile(profile.Key{Namespace: "md", Job: "gone"})
		must.True(t, ok)
		must.False(t, p.Runs[0].Whole, must.Sprint("its end was not observed"))
		must.Eq(t, 77*mib, p.Runs[0].Peak())
		_, ok = next.Profile(profile.Key{Namespace: "md", Job: "late"})
		must.False(t, ok, must.Sprint("its start was not observed"))
		must.Eq(t, 0, told.count("[WARN]")+told.count("[ERROR]"))

		must.NoError(t, next.Save(running, []saved{{ID: "x"}, {ID: "a", Key: profile.Key{Namespace: "md", Job: "lammps"}}}))
		f = &fake{memory: 12288, jobs: []*job{newLAMMPS("a", 0)}}
		f.second(0)
		told, end = begin(t, f, next)
		f.pass(10)
		end()
		must.Eq(t, 1, told.count("an earlier run is not measured"))
		must.Eq(t, 0, told.count("[ERROR]"))
		must.NoError(t, os.WriteFile(filepath.Join(copied, running+".json"), []byte("[{"), 0o600))
		told, end = begin(t, f, next)
		f.pass(10)
		end()
		must.Eq(t, 1, told.count("cannot load earlier runs; not measuring them"))
	})
}

// A task restarted in place has the same container name, and is another run.
func TestWatcher_again(t *testing.T) {
	bubble(t, func(t *testing.T, s *profile.Store, _ string) {
		flat := func(int) uint64 { return 100 }
		f := &fake{memory: 1000, jobs: []*job{{id: "a", key: "k", needs: flat, seconds: 50}, {id: "a", key: "k", needs: flat, seconds: 70, late: 50}}}
		_, end := begin(t, f, s)
		f.pass(200)
		end()
		p, ok := s.Profile(profile.Key{Namespace: "md", Job: "k"})
		must.True(t, ok)
		must.Len(t, 2, p.Runs)
		must.InDelta(t, 50, p.Runs[0].Seconds, 3)
		must.InDelta(t, 70, p.Runs[1].Seconds, 3)
	})
}

func TestWatcher_measuresOnly(t *testing.T) {
	bubble(t, func(t *testing.T, s *profile.Store, _ string) {
		for range 2 {
			a, b := newLAMMPS("a", 0), newLAMMPS("b", 5)
			f := &fake{memory: 12288, jobs: []*job{a, b}}
			opts := Default()
			opts.Plan = false
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); New(f, s, hclog.NewNullLogger(), opts).Run(ctx, time.Second) }()
			f.pass(1300)
			cancel()
			<-done
			must.True(t, b.failed)
			must.Eq(t, 0, a.pauses+b.pauses)
		}
		must.Eq(t, 4, s.Summaries()[0].Measured)
	})
}

func TestWatcher_snapshot(t *testing.T) {
	bubble(t, func(t *testing.T, s *profile.Store, _ string) {
		w := New(&fake{}, s, hclog.NewNullLogger(), Default())
		now := time.Now()
		status := func(id string, held uint64, change func(*gate.Status)) gate.Status {
			st := gate.Status{Container: identify.Container{ID: id}, Processes: 1, Usage: []gate.Usage{{Card: card, Held: ledger.Entry{Committed: held}}}}
			change(&st)
			return st
		}
		stats := []gate.Status{
			status("absent", 1, func(st *gate.Status) { st.Disconnected = 1 }),
			status("elsewhere", 1, func(st *gate.Status) { st.Usage[0].Card = "GPU-2" }),
			status("halted", mib, func(st *gate.Status) { st.Paused = true }),
			status("parked", mib, func(st *gate.Status) { st.Paused, st.Parked = true, true }),
			status("waits", mib+1, func(st *gate.Status) { st.Usage[0].Waiting, st.Usage[0].WaitingBytes = 1, 5*mib }),
		}
		w.measure(now, stats)
		in := w.snapshot(now, gate.CardStatus{Card: card, Free: 7 * mib, Held: ledger.Entry{Committed: 3 * mib, Unverified: mib}}, stats)
		must.NoError(t, in.Validate())
		must.Eq(t, 10, in.MemoryMiB)
		must.Len(t, 3, in.Jobs)
		absent, halted, waits := in.Jobs[0], in.Jobs[1], in.Jobs[2]
		must.True(t, absent.Fixed && absent.HeldMiB == 1 && absent.AheadMiB == nil)
		must.True(t, halted.Halted && !halted.Fixed)
		must.True(t, waits.Fixed)
		must.Eq(t, 2, waits.HeldMiB)
		must.Eq(t, 7, *waits.AheadMiB)

		w.opts.Hard = true
		stats[4].Usage[0].Limit = 4 * mib
		must.Eq(t, 4, *w.snapshot(now, gate.CardStatus{Card: card, Free: 7 * mib}, stats).Jobs[2].AheadMiB)
	})
}
