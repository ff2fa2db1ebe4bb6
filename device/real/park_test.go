// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package real

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/checkpoint/headroom"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/parking"
	"github.com/ebbtide/ebbtide/device/gputest"
	"github.com/ebbtide/ebbtide/device/real/report"
)

// evictor parks processes that have that many bytes; why is the reason where that is impossible.
func evictor(t *testing.T, ctx context.Context, bytes uint64) (e gate.Evictor, why string) {
	t.Helper()
	if !site.IsFake() && os.Geteuid() != 0 {
		return nil, "parking needs root"
	}
	if err := (headroom.Checker{}).Check(map[int]uint64{os.Getpid(): bytes}); err != nil {
		return nil, err.Error()
	}
	e, end, err := site.Evictor(ctx, site.card.UUID, site.card.Driver)
	if errors.Is(err, driver.ErrUnsupported) {
		return nil, err.Error()
	}
	must.NoError(t, err)
	t.Cleanup(end)
	return e, ""
}

func parker(t *testing.T, ctx context.Context, bytes uint64) gate.Evictor {
	t.Helper()
	e, why := evictor(t, ctx, bytes)
	if why != "" {
		t.Skip(why)
	}
	return e
}

// holder is a job of the container "parked" that computes on that many bytes until it is released.
func holder(t *testing.T, ctx context.Context, g *gputest.Gate, bytes int, j gputest.Job) (*gputest.Process, []ledger.ProcessID) {
	t.Helper()
	j.Container, j.Gate = "parked", g
	j.Args = append(j.Args, "--steps", "4", "--bytes", strconv.Itoa(bytes/4), "--count", "60", "--pause-ms", "10", "--windows", "16", "--hold-ms", "-1")
	p := start(t, ctx, j)
	next(t, ctx, p, "round")
	return p, identified(t, p)
}

func identified(t *testing.T, p *gputest.Process) []ledger.ProcessID {
	t.Helper()
	began, err := identify.Finder{}.Start(p.PID)
	must.NoError(t, err)
	return []ledger.ProcessID{{PID: p.PID, Start: began}}
}

// well ends a holder, whose memory must be intact.
func well(t *testing.T, ctx context.Context, p *gputest.Process) {
	t.Helper()
	p.Release()
	next(t, ctx, p, "done")
	must.NoError(t, p.Wait())
}

func TestPark(t *testing.T) {
	for _, size := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(size, " GiB"), func(t *testing.T) {
			ctx := within(t, time.Minute)
			e := parker(t, ctx, 6*gib)
			g := open(t, budget, 6*gib)
			before := usage(t, ctx)
			p, proc := holder(t, ctx, g, size*gib, gputest.Job{})
			var parked, back []float64
			for range 3 {
				next(t, ctx, p, "round")
				full := onCard(t, ctx, before, p)
				must.NoError(t, g.Stop(ctx, "parked"))
				begun := time.Now()
				_, err := e.Park(ctx, proc)
				must.NoError(t, err)
				parked = append(parked, time.Since(begun).Seconds()/float64(full)*gib)
				must.GreaterEq(t, uint64(size*gib), full-min(full, onCard(t, ctx, before, p)), must.Sprint("what came free"))
				begun = time.Now()
				must.NoError(t, e.Restore(ctx, proc))
				back = append(back, time.Since(begun).Seconds()/float64(full)*gib)
				g.Go()
			}
			well(t, ctx, p)
			of := fmt.Sprintf("%d GiB and a context", size)
			record(t, report.Measured("park", "the time to park a process, by what it has on the card", "s/GiB", parked...).For(of))
			record(t, report.Measured("return", "the time until it is back", "s/GiB", back...).For(of))
		})
	}
}

// A parked process is restored to a card that has as much free as the gate wants: what it had,
// and a margin. What happens with less is reported: without the margin it may be lost.
func TestRestore(t *testing.T) {
	if others := site.before.Used - min(site.before.Used, site.card.Reserved); others > gib {
		t.Skipf("it fills the card, of which others have %d MiB", others/mib)
	}
	const what = "whether a parked process came back to a card with as much free as it had and that much more: 1 it did, 0 it did not"
	for _, spare := range []int{256, 64, 0, -64} {
		of := fmt.Sprintf("%+d MiB", spare)
		t.Run(of, func(t *testing.T) {
			ctx := within(t, time.Minute)
			e := parker(t, ctx, 4*gib)
			g := open(t, budget, 4*gib)
			before := usage(t, ctx)
			p, proc := holder(t, ctx, g, 2*gib, gputest.Job{})
			had := onCard(t, ctx, before, p)
			must.NoError(t, g.Stop(ctx, "parked"))
			_, err := e.Park(ctx, proc)
			must.NoError(t, err)
			filler := start(t, ctx, gputest.Job{Container: "filler", Args: []string{
				"--mode", "fill", "--bytes", strconv.Itoa(gib), "--least", strconv.Itoa(2 * mib), "--leave", strconv.Itoa(int(had) + spare*mib), "--hold-ms", "-1",
			}})
			next(t, ctx, filler, "got")
			u := usage(t, ctx)
			record(t, report.Measured("free", "what NVML said was free then, beyond what it had", "MiB", inMiB(u.Total-u.Used)-inMiB(had)).For(of))
			err = e.Restore(ctx, proc)
			record(t, report.Measured("came back", what, "", map[bool]float64{true: 1}[err == nil]).For(of))
			if errors.Is(err, parking.ErrLost) && spare >= 0 && spare < 256 {
				t.Skip("it is lost, as a process is that returns to a full card: ", err)
			}
			must.False(t, errors.Is(err, parking.ErrLost), must.Sprint(err))
			if spare == 256 {
				must.NoError(t, err)
			}
			if spare < 0 {
				must.Error(t, err)
			}
			filler.Release()
			must.NoError(t, filler.Wait())
			if err != nil {
				must.NoError(t, e.Restore(ctx, proc), must.Sprint("with all of the card free"))
			}
			g.Go()
			well(t, ctx, p)
		})
	}
}

// memoryCgroup makes a cgroup with memory accounting, and returns how to read that, or skips the
// test.
func memoryCgroup(t *testing.T) (dir string, charged func() uint64) {
	t.Helper()
	parent, file := "/sys/fs/cgroup", "memory.current"
	if _, err := os.Stat(filepath.Join(parent, "cgroup.controllers")); err != nil { // version 1, or none
		parent, file = "/sys/fs/cgroup/memory", "memory.usage_in_bytes"
	}
	dir, err := os.MkdirTemp(parent, "ebbtide-test")
	if err != nil {
		t.Skip("no memory cgroup is available: ", err)
	}
	t.Cleanup(func() { must.NoError(t, os.Remove(dir)) })
	if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
		t.Skip("the memory of cgroups is not counted here: ", err)
	}
	return dir, func() uint64 {
		text, err := os.ReadFile(filepath.Join(dir, file))
		must.NoError(t, err)
		n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
		must.NoError(t, err)
		return n
	}
}

// Parked memory counts in the process's memory cgroup: at most what the process had on the card,
// and 64 MiB, as the check of a task's limit assumes.
func TestCharge(t *testing.T) {
	const data = 2 * gib
	const what = "what the container's memory cgroup is charged with more than before it was parked, of what it had on the card"
	ctx := within(t, time.Minute)
	e := parker(t, ctx, 4*gib)
	dir, charged := memoryCgroup(t)
	g := open(t, budget, 4*gib)
	before := usage(t, ctx)
	p, proc := holder(t, ctx, g, data, gputest.Job{Program: "/bin/sh", Args: []string{"-c", `echo $$ >"$0"/cgroup.procs && exec "$@"`, dir, site.Workload()}})
	had := onCard(t, ctx, before, p)
	running := charged()
	must.Positive(t, running)
	must.NoError(t, g.Stop(ctx, "parked"))
	_, err := e.Park(ctx, proc)
	must.NoError(t, err)
	parked := charged()
	must.NoError(t, e.Restore(ctx, proc))
	g.Go()
	next(t, ctx, p, "round")
	returned := charged()
	well(t, ctx, p)
	part := func(now uint64) float64 { return 100 * (float64(now) - float64(running)) / float64(had) }
	if site.IsFake() {
		const why = "the fake card's memory is the process's own: it is not moved"
		record(t, report.Missing("charge", what, "%", why))
		t.Skip("of the charge: " + why)
	}
	record(t, report.Measured("charge", what, "%", part(parked)).For("parked"))
	record(t, report.Measured("charge", what, "%", part(returned)).For("back again"))
	must.LessEq(t, running+had+64*mib, parked, must.Sprint("a task's memory limit would be exceeded"))
	must.GreaterEq(t, running+data*9/10, parked, must.Sprint("another cgroup is charged"))
}

// Twenty jobs that want twice the card, or twice the 24 GiB that they get of a larger one, all finish.
// Their memory grows, if they can be parked and the host has room; else they take it at once, as
// growing jobs may wait for each other.
func TestTwenty(t *testing.T) {
	const jobs, unit, most = 20, 16 * mib, 24 * gib
	ctx := within(t, 3*time.Minute)
	room := min(site.before.Free-reserve, most)
	if contexts := jobs * site.Context(); contexts > room*2/3 {
		t.Skipf("the contexts of %d jobs take %d MiB, of %d that are free", jobs, contexts/mib, room/mib)
	}
	steps := uint64(4)
	e, why := evictor(t, ctx, room)
	if why != "" {
		t.Log("none is parked: ", why)
		steps = 1
	}
	var failures atomic.Int64
	open := func() *gputest.Gate {
		return open(t, physical(), physical(), func(o *gate.Options) {
			o.Cards[0].Reserve = physical() - room
			o.Evictor, o.Measure = e, site.Measure
			o.Rules.Turn, o.Rules.Idle = 5*time.Second, time.Second
			o.Report = func(err error) { // that one was not parked is no job's loss
				t.Log(err)
				failures.Add(1)
			}
		})
	}
	each := 2*room/jobs - site.Context()
	piece := (each/steps + unit - 1) / unit * unit
	job := func(g *gputest.Gate, i int) gputest.Job {
		return gputest.Job{Container: fmt.Sprintf("job%d", i), Gate: g, Env: []string{"EBBTIDE_GATE_WAIT_MS=170000"}, Args: []string{
			"--steps", strconv.FormatUint(steps, 10), "--bytes", strconv.FormatUint(piece, 10), "--windows", "8", "--count", "100", "--pause-ms", "20", "--seed", strconv.Itoa(i),
		}}
	}
	p := start(t, ctx, job(open(), 0))
	must.NoError(t, p.Wait())
	alone := p.Ended.Sub(p.Begun)

	g := open()
	begun := time.Now()
	var all []*gputest.Process
	for i := range jobs {
		all = append(all, start(t, ctx, job(g, i)))
	}
	watching, stop := context.WithCancel(ctx)
	parks := make(chan int, 1)
	go func() {
		of := make(map[string]int)
		for watching.Err() == nil {
			for _, s := range g.Stats() {
				of[s.Container.ID] = max(of[s.Container.ID], s.Parks)
			}
			time.Sleep(50 * time.Millisecond)
		}
		n := 0
		for _, k := range of {
			n += k
		}
		parks <- n
	}()
	for _, p := range all {
		must.NoError(t, p.Wait(), must.Sprint("status 2 is out of memory"))
	}
	took := time.Since(begun)
	stop()
	wanted := float64(jobs*(steps*piece+site.Context())) / float64(room)
	must.GreaterEq(t, 2, wanted)
	record(t, report.Measured("wanted", "what twenty jobs want together, with their contexts, by what the card has", "times", wanted))
	record(t, report.Measured("pieces", "in which each takes its memory; 1 where none can be parked", "", float64(steps)))
	record(t, report.Measured("alone", "the time of one of them alone", "s", alone.Seconds()))
	record(t, report.Measured("together", "the time until all have ended well, none with an out-of-memory error", "s", took.Seconds()))
	record(t, report.Measured("batches", "the same, by twice one of them alone: 1 is as good as two batches of ten", "times", took.Seconds()/(2*alone.Seconds())))
	if why != "" {
		record(t, report.Missing("parks", "how often one of them was parked meanwhile", "times", why))
		return
	}
	record(t, report.Measured("parks", "how often one of them was parked meanwhile", "times", float64(<-parks)))
	record(t, report.Measured("failures", "how often that failed, or the gate complained otherwise", "times", float64(failures.Load())))
}
