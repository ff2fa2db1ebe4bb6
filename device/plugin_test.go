// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/config"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/device/nvml"
)

type rack struct {
	mu    sync.Mutex
	cards []nvml.Card
	err   error
	hangs chan struct{} // calls block until it is closed, unless nil
}

func (r *rack) set(cards []nvml.Card, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cards, r.err = cards, err
}

func (r *rack) Cards() ([]nvml.Card, error) {
	r.hang()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.cards), r.err
}

func (r *rack) hang() {
	r.mu.Lock()
	hangs := r.hangs
	r.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
}

func (r *rack) Usage(uuid string) (nvml.Usage, error) {
	r.hang()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.cards {
		if c.UUID == uuid {
			return nvml.Usage{Used: c.Memory / 4, Free: c.Memory * 3 / 4, GPU: new(int64(50)), ProcessesKnown: true, Processes: []nvml.Process{{PID: 7}}}, nil
		}
	}
	return nvml.Usage{}, errors.New("GPU is lost")
}

const (
	first  = "GPU-11111111-aaaa-4000-8000-000000000001"
	second = "GPU-22222222-bbbb-4000-8000-000000000002"
)

func twoCards() *rack {
	card := func(uuid string, minor int) nvml.Card {
		return nvml.Card{
			UUID: uuid, Name: "NVIDIA H200", PCIBusID: fmt.Sprintf("0000:0%d:00.0", minor), Driver: "570.1", ComputeMode: "default", Minor: minor, Memory: 64 << 30,
		}
	}
	return &rack{cards: []nvml.Card{card(first, 0), card(second, 1)}}
}

func newPlugin(t *testing.T, r *rack, change ...func(*config.Config)) *Plugin {
	t.Helper()
	p := New(t.Context(), hclog.NewNullLogger())
	p.open = func(string) Cards { return r }
	c := config.Config{
		Enabled: true, Seats: 2, Period: "30s", Inject: "runtime", Mounts: "driver", Preload: "/nowhere/lib.so", Gate: "/dev/null/gate", Division: "seats",
		MaxWait: "90s", Over: "auto", Parking: "false", Turn: "1m", Idle: "30s", StateDir: t.TempDir(),
	}
	for _, f := range change {
		f(&c)
	}
	s, err := c.Validate()
	must.NoError(t, err)
	p.settings, p.cards = s, newTimeoutCards(t.Context(), r)
	t.Cleanup(func() {
		p.awaitGate(context.Background(), time.Minute)
		p.mu.Lock()
		gated := p.gate
		p.mu.Unlock()
		if gated != nil {
			gated.Close() // it keeps a file open in the test's directory
		}
		p.profiling.Wait() // so does this
	})
	return p
}

func shareable(t *testing.T) (change func(*config.Config), lib, at string) {
	lib, at = library(t), filepath.Join(t.TempDir(), "gate")
	return func(c *config.Config) { c.Preload, c.Gate = lib, at }, lib, at
}

func (p *Plugin) seatGroups() []*nomad.DeviceGroup {
	seats, _ := p.groups()
	return seats
}

func (p *Plugin) settled(t *testing.T) []*nomad.DeviceGroup {
	t.Helper()
	p.groups()
	p.awaitGate(t.Context(), time.Minute)
	return p.seatGroups()
}

func TestGroups(t *testing.T) {
	r := twoCards()
	change, _, _ := shareable(t)
	p := newPlugin(t, r, change)
	groups := p.settled(t)
	must.Len(t, 2, groups)
	g := groups[0]
	must.NoError(t, g.Validate())
	must.Eq(t, "nvidia/share/NVIDIA-H200-11111111", g.Vendor+"/"+g.Type+"/"+g.Name)
	must.Eq(t, "NVIDIA-H200-22222222", groups[1].Name)
	must.Len(t, 2, g.Devices)
	must.Eq(t, first+"/1", g.Devices[1].ID)
	must.True(t, g.Devices[1].Healthy)
	must.Eq(t, "0000:00:00.0", g.Devices[1].HwLocality.PciBusID)
	memory, ok := g.Attributes["memory"].GetInt()
	must.True(t, ok)
	must.Eq(t, 64<<10, memory)
	healthy, ok := g.Attributes["healthy"].GetBool()
	must.True(t, ok && healthy)

	// An unsharable card has a reason; a lost one stays, unhealthy.
	for want, change := range map[string]func(*nvml.Card){
		"row remapping": func(c *nvml.Card) { c.Unhealthy = "row remapping" },
		"MIG":           func(c *nvml.Card) { c.MIG = true },
		"forbids use":   func(c *nvml.Card) { c.ComputeMode = "prohibited" },
		"only one":      func(c *nvml.Card) { c.ComputeMode = "exclusive" },
	} {
		r := twoCards()
		change(&r.cards[0])
		g := newPlugin(t, r).seatGroups()[0]
		d := g.Devices[0]
		must.False(t, d.Healthy)
		must.StrContains(t, d.HealthDesc, want)
		healthy, ok := g.Attributes["healthy"].GetBool()
		must.True(t, ok)
		must.False(t, healthy, must.Sprint("jobs that wait for a card are tried again when an attribute changes"))
	}
	r.set(r.cards[1:], nil)
	groups = p.seatGroups()
	must.Len(t, 2, groups)
	must.Eq(t, "it has disappeared", groups[0].Devices[0].HealthDesc)
	must.True(t, groups[1].Devices[0].Healthy)
	r.set(nil, errors.New("driver/library version mismatch"))
	must.Eq(t, "driver/library version mismatch", p.seatGroups()[1].Devices[0].HealthDesc)

	must.Len(t, 1, newPlugin(t, twoCards(), func(c *config.Config) { c.Ignored = []string{first} }).seatGroups())
	must.SliceEmpty(t, newPlugin(t, &rack{err: nvml.ErrNone}).seatGroups())
}

func TestGroups_unshared(t *testing.T) {
	change, _, at := shareable(t)
	must.NoError(t, os.WriteFile(at, nil, 0o644)) // in its way
	p := newPlugin(t, twoCards(), change)
	d := p.seatGroups()[0].Devices[0]
	must.False(t, d.Healthy)
	must.StrContains(t, d.HealthDesc, "its memory cannot be shared: the gate ")
	must.StrContains(t, p.settled(t)[0].Devices[0].HealthDesc, "the gate cannot be opened: creating the gate's directory: ")
	_, err := p.Reserve([]string{first + "/0"})
	must.ErrorContains(t, err, "the gate cannot be opened")
	must.NoError(t, os.Remove(at))
	must.True(t, p.settled(t)[0].Devices[0].Healthy)

	one := newPlugin(t, twoCards(), func(c *config.Config) { c.Seats = 1 })
	must.True(t, one.settled(t)[0].Devices[0].Healthy)
}

// Parking is off where it has not been tested.
func TestGroups_untested(t *testing.T) {
	change, _, _ := shareable(t)
	p := newPlugin(t, twoCards(), change, func(c *config.Config) { c.Parking = "auto" })
	g := p.settled(t)[0]
	why, ok := g.Attributes["not_parked"].GetString()
	must.True(t, ok)
	must.StrContains(t, why, "it has not been tested on NVIDIA H200 with driver 570")
	over, _ := g.Attributes["over_share"].GetString()
	must.Eq(t, "deny", over)
}

func TestGroups_later(t *testing.T) {
	change, _, _ := shareable(t)
	r := twoCards()
	both := r.cards
	r.set(both[:1], nil)
	p := newPlugin(t, r, change)
	must.Len(t, 1, p.settled(t))
	r.set(both, nil)
	must.True(t, p.seatGroups()[1].Devices[0].Healthy)
	must.True(t, p.gate.Has(ledger.CardID(second)))
}

func TestGroups_hanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := twoCards()
		p := newPlugin(t, r)
		p.settled(t)
		r.mu.Lock()
		r.hangs = make(chan struct{})
		r.mu.Unlock()
		begun := time.Now()
		must.Eq(t, errNoAnswer.Error(), p.seatGroups()[0].Devices[0].HealthDesc)
		must.SliceEmpty(t, p.stats().Groups)
		_, err := p.usage(first)
		must.ErrorIs(t, err, errNoAnswer)
		must.LessEq(t, 5*nvmlTimeout, time.Since(begun))
		close(r.hangs)
		r.mu.Lock()
		r.hangs = nil
		r.mu.Unlock()
		synctest.Wait()
		must.Len(t, 3, p.stats().Groups)
	})
}

func TestFingerprint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rack{err: nvml.ErrNone}
		p := newPlugin(t, r)
		ctx, cancel := context.WithCancel(t.Context())
		told, err := p.Fingerprint(ctx)
		must.NoError(t, err)
		must.SliceEmpty(t, (<-told).Devices)
		begun := time.Now()
		go func() {
			time.Sleep(100 * time.Second)
			r.set(twoCards().cards, nil)
		}()
		must.Len(t, 3, (<-told).Devices)
		must.Eq(t, 120*time.Second, time.Since(begun))
		must.StrContains(t, (<-told).Devices[0].Devices[0].HealthDesc, "cannot be opened") // at once
		must.Eq(t, 120*time.Second, time.Since(begun))
		cancel()
		_, open := <-told
		must.False(t, open)
	})
	p := newPlugin(t, twoCards(), func(c *config.Config) { c.Enabled = false })
	_, err := p.Fingerprint(t.Context())
	must.ErrorIs(t, err, nomad.ErrPluginDisabled)
	_, err = p.Stats(t.Context(), time.Second)
	must.ErrorIs(t, err, nomad.ErrPluginDisabled)
}

func library(t *testing.T) string {
	t.Helper()
	h := elf.Header64{Type: uint16(elf.ET_DYN), Version: 1, Ehsize: 64}
	switch runtime.GOARCH {
	case "amd64":
		h.Machine = uint16(elf.EM_X86_64)
	case "arm64":
		h.Machine = uint16(elf.EM_AARCH64)
	}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	var data bytes.Buffer
	must.NoError(t, binary.Write(&data, binary.LittleEndian, h))
	path := filepath.Join(t.TempDir(), "lib.so")
	must.NoError(t, os.WriteFile(path, data.Bytes(), 0o755))
	return path
}

func handed(t *testing.T, res *nomad.ContainerReservation) handoff.Handoff {
	t.Helper()
	h, given, err := handoff.Take(maps.Clone(res.Envs))
	must.NoError(t, err)
	must.True(t, given)
	return h
}

// A whole card is offered while no seat on it is taken, and its seats while it is not taken whole.
func TestWhole(t *testing.T) {
	change, _, at := shareable(t)
	p := newPlugin(t, twoCards(), change, func(c *config.Config) { c.Spread = true })
	p.settled(t)
	offered := func() (seats, cards string) {
		t.Helper()
		row := func(groups []*nomad.DeviceGroup) (row string) {
			for _, g := range groups {
				must.NoError(t, g.Validate())
				for _, d := range g.Devices {
					row += map[bool]string{true: "o", false: "."}[d.Healthy]
				}
			}
			return row
		}
		s, w := p.groups()
		must.Len(t, 1, w)
		must.Eq(t, "nvidia/gpu/NVIDIA-H200", w[0].Vendor+"/"+w[0].Type+"/"+w[0].Name)
		n, ok := w[0].Attributes["offered"].GetInt()
		must.True(t, ok)
		must.Eq(t, strings.Count(row(w), "o"), int(n))
		return row(s), row(w)
	}
	shows := func(seats, cards string) {
		t.Helper()
		s, w := offered()
		must.Eq(t, []string{seats, cards}, []string{s, w})
	}
	shows("o.o.", "oo")
	res, err := p.Reserve([]string{first})
	must.NoError(t, err)
	must.Eq(t, first, res.Envs["NVIDIA_VISIBLE_DEVICES"])
	must.Eq(t, handoff.Handoff{MemoryMiB: 64 << 10, Tasks: at + ".tasks", Cards: []string{first}, Seats: []string{first}, Whole: true}, handed(t, res))
	shows("..oo", "oo")
	_, err = p.Reserve([]string{first + "/0"})
	must.EqError(t, err, "card "+first+" cannot be shared: a container has the whole card")
	_, err = p.Reserve([]string{first})
	must.NoError(t, err, must.Sprint("a restarted task"))

	_, err = p.Reserve([]string{second + "/1"})
	must.NoError(t, err)
	shows("..oo", "o.")
	_, err = p.Reserve([]string{first, second})
	must.EqError(t, err, "card "+second+" cannot be had whole: a container has a seat on it")

	// Without a gate cards cannot be shared, but be had whole.
	p = newPlugin(t, twoCards())
	p.settled(t)
	shows("....", "oo")
	_, err = p.Reserve([]string{first, second})
	must.NoError(t, err)

	p = newPlugin(t, twoCards(), func(c *config.Config) { c.Mounts = "device" })
	_, cards := p.groups()
	must.SliceEmpty(t, cards)
}

func TestReserve(t *testing.T) {
	// The first call goes to a plugin that Nomad has restarted. A card with one seat needs no
	// gate.
	r := twoCards()
	r.cards[1].Memory = 80 << 30
	p := newPlugin(t, r, func(c *config.Config) { c.Seats = 1 })
	res, err := p.Reserve([]string{second + "/0", first + "/0"})
	must.NoError(t, err)
	must.Eq(t, second+","+first, res.Envs["NVIDIA_VISIBLE_DEVICES"])
	got := handed(t, res)
	must.StrContains(t, got.Notice, "the gate cannot be opened: ")
	must.Eq(t, handoff.Handoff{MemoryMiB: 80 << 10, Cards: []string{second, first}, Notice: got.Notice}, got)
	must.MapLen(t, 2, res.Envs)
	must.SliceEmpty(t, res.Mounts)

	change, lib, at := shareable(t)
	p = newPlugin(t, twoCards(), change)
	res, err = p.Reserve([]string{first + "/0", first + "/1"})
	must.NoError(t, err)
	must.NotNil(t, p.gate)
	must.Eq(t, handoff.Handoff{Preload: lib, Gate: at, MemoryMiB: 64 << 10, WaitMS: 90000, Reports: at + ".reports", Tasks: at + ".tasks", Cards: []string{first}, Seats: []string{first + "/0", first + "/1"}}, handed(t, res))
	must.SliceEmpty(t, res.Mounts, must.Sprint("they would take the place of volumes"))
}

func TestReserve_mounts(t *testing.T) {
	device := func(c *config.Config) { c.Mounts = "device" }
	p := newPlugin(t, twoCards(), device, func(c *config.Config) { c.Seats = 1 })
	res, err := p.Reserve([]string{second + "/0"})
	must.NoError(t, err)
	must.Eq(t, map[string]string{"NVIDIA_VISIBLE_DEVICES": second}, res.Envs, must.Sprint("without a gate it gets the card as it is"))
	must.SliceEmpty(t, res.Mounts)

	change, lib, at := shareable(t)
	p = newPlugin(t, twoCards(), device, change, func(c *config.Config) { c.Inject = "devices" })
	res, err = p.Reserve([]string{first + "/0"})
	must.NoError(t, err)
	must.Eq(t, map[string]string{
		"EBBTIDE_GATE": "/run/ebbtide/gate.sock", "EBBTIDE_GATE_WAIT_MS": "90000",
	}, res.Envs)
	must.Eq(t, []*nomad.Mount{
		{TaskPath: "/usr/lib/ebbtide/libebbtide-cuda.so", HostPath: lib, ReadOnly: true}, {TaskPath: "/run/ebbtide", HostPath: at, ReadOnly: true},
		{TaskPath: "/etc/ld.so.preload", HostPath: at + "/ld.so.preload", ReadOnly: true},
	}, res.Mounts)
	must.Eq(t, &nomad.DeviceSpec{TaskPath: "/dev/nvidia0", HostPath: "/dev/nvidia0", CgroupPerms: "rw"}, res.Devices[len(res.Devices)-1])
}

func TestReserve_refused(t *testing.T) {
	p := newPlugin(t, twoCards())
	for id, want := range map[string]string{"GPU-3/0": "there is no seat or card", "GPU-3": "there is no seat or card"} {
		_, err := p.Reserve([]string{id})
		must.ErrorContains(t, err, want)
	}
	bad := twoCards()
	bad.cards[0].MIG = true
	p = newPlugin(t, bad)
	_, err := p.Reserve([]string{first + "/0"})
	must.ErrorContains(t, err, "card "+first+" cannot be used: it is divided by MIG")
}

func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := twoCards()
		p := newPlugin(t, r)
		p.settled(t)
		r.set(r.cards[:1], nil) // the other one is lost
		ctx, cancel := context.WithCancel(t.Context())
		all, err := p.Stats(ctx, time.Second)
		must.NoError(t, err)
		res := <-all
		must.Len(t, 2, res.Groups)
		must.Eq(t, "gpu", res.Groups[1].Type)
		must.NotNil(t, res.Groups[1].InstanceStats[first])
		must.MapLen(t, 2, res.Groups[0].InstanceStats)
		seat := res.Groups[0].InstanceStats[first+"/0"]
		must.Eq(t, 16<<10, *seat.Summary.IntNumeratorVal)
		must.Eq(t, 64<<10, *seat.Summary.IntDenominatorVal)
		must.Eq(t, 50, *seat.Stats.Attributes["GPU utilization"].IntNumeratorVal)
		must.MapNotContainsKey(t, seat.Stats.Attributes, "Power usage")
		cancel()
		<-all
	})
}

func TestSetConfig(t *testing.T) {
	p := New(t.Context(), hclog.NewNullLogger())
	_, err := p.Fingerprint(t.Context())
	must.ErrorIs(t, err, errNotConfigured)
	_, err = p.Reserve([]string{"x"})
	must.ErrorIs(t, err, errNotConfigured)
	var data []byte
	must.NoError(t, base.MsgPackEncode(&data, config.Config{Seats: 0, Period: "soon"}))
	err = p.SetConfig(&base.Config{PluginConfig: data})
	must.ErrorContains(t, err, "seats_per_gpu: must be from 1 to 64, got 0")
	must.ErrorContains(t, err, `fingerprint_period: must be a duration like 30s, got "soon"`)
}

func TestPluginInfo(t *testing.T) {
	info, err := New(t.Context(), hclog.NewNullLogger()).PluginInfo()
	must.NoError(t, err)
	must.RegexMatch(t, regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`), info.PluginVersion)
	must.Eq(t, Name, info.Name)
}
