// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package device is the device plugin ebbtide-gpu: it offers several seats on each of a node's
// NVIDIA cards, so that containers can share a card.
//
// Each card is a separate device group, with its seats as instances: Nomad fills an ask from
// one group, with any of its instances, so a single group would scatter a job over all cards.
package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	nomad "github.com/hashicorp/nomad/plugins/device"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/ebbtide/ebbtide/device/config"
	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/device/metrics"
	"github.com/ebbtide/ebbtide/device/nvml"
	"github.com/ebbtide/ebbtide/internal/metricsserver"
	"github.com/ebbtide/ebbtide/internal/version"
)

// A job asks for device "nvidia/share" { count = 1 }.
const (
	Name   = "ebbtide-gpu"
	vendor = "nvidia"
	kind   = "share"
)

// Plugin is the device plugin.
type Plugin struct {
	ctx     context.Context // ends with the plugin
	log     hclog.Logger
	metrics *metrics.Metrics
	// open opens NVML.
	open func(path string) Cards

	mu          sync.Mutex
	settings    *config.Settings
	cards       Cards
	known       map[string]nvml.Card // all cards ever seen, by UUID
	lastMessage string               // last logged about the cards
	lastReason  map[string]string    // last logged reason why a card cannot be used, by UUID
	gate        *sharing             // nil before it is open
	opening     chan struct{}        // closed when the attempt to open the gate ends; nil: none in progress
	gateErr     error                // of the last attempt to open the gate
	seats       seats
	changed     chan struct{}      // has an element when Nomad must be notified: of the gate, or of seats
	profiling   sync.WaitGroup     // goroutines that profile jobs
	stopServing context.CancelFunc // of metrics
}

var _ nomad.DevicePlugin = (*Plugin)(nil)

// New returns the plugin.
func New(ctx context.Context, log hclog.Logger) *Plugin {
	return &Plugin{
		ctx: ctx, log: log.Named(Name), metrics: metrics.New(), known: make(map[string]nvml.Card), lastReason: make(map[string]string), changed: make(chan struct{}, 1),
		seats: seats{reserved: make(map[string]time.Time), tasks: make(map[string][]string)},
		open:  func(path string) Cards { return nvml.New(path) },
	}
}

// PluginInfo implements base.BasePlugin.
func (p *Plugin) PluginInfo() (*base.PluginInfoResponse, error) {
	return &base.PluginInfoResponse{
		Type: base.PluginTypeDevice, PluginApiVersions: []string{nomad.ApiVersion010}, PluginVersion: version.Version, Name: Name,
	}, nil
}

// ConfigSchema implements base.BasePlugin.
func (p *Plugin) ConfigSchema() (*hclspec.Spec, error) { return config.Spec(), nil }

// SetConfig implements base.BasePlugin.
func (p *Plugin) SetConfig(cfg *base.Config) error {
	var c config.Config
	if err := base.MsgPackDecode(cfg.PluginConfig, &c); err != nil {
		return fmt.Errorf("decoding the plugin's config: %w", err)
	}
	s, err := c.Validate()
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settings, p.cards = s, newTimeoutCards(p.ctx, p.open(s.Library))
	if cfg.AgentConfig == nil || !s.Enabled { // Nomad only checks the config
		return nil
	}
	if p.stopServing != nil {
		p.stopServing()
	}
	ctx, stop := context.WithCancel(p.ctx)
	p.stopServing = stop
	go metricsserver.Serve(ctx, s.Metrics, p.metrics.Registry, p.log)
	return nil
}

var errNotConfigured = errors.New("the plugin has not been configured")

// Fingerprint implements nomad.DevicePlugin: it sends the cards, and again after each change.
// Without cards it sends no devices and no error.
func (p *Plugin) Fingerprint(ctx context.Context) (<-chan *nomad.FingerprintResponse, error) {
	s, ctx, end, err := p.startUpdates(ctx)
	if err != nil {
		return nil, err
	}
	out := make(chan *nomad.FingerprintResponse)
	go func() {
		defer close(out)
		defer end()
		var last []*nomad.DeviceGroup
		first := true
		due := time.NewTicker(s.Period)
		defer due.Stop()
		look := time.NewTicker(seatsInterval)
		defer look.Stop()
		for {
			groups := slices.Concat(p.groups())
			if first && p.awaitGate(ctx, gateWait) {
				groups = slices.Concat(p.groups())
			}
			if first || !reflect.DeepEqual(groups, last) {
				select {
				case out <- nomad.NewFingerprint(groups...):
				case <-ctx.Done():
					return
				}
				first, last = false, groups
			}
			if !p.changes(ctx, due.C, look.C) {
				return
			}
		}
	}()
	return out, nil
}

// changes waits for a reason to look for changes; it returns false if ctx ends.
func (p *Plugin) changes(ctx context.Context, due, look <-chan time.Time) bool {
	for {
		select {
		case <-due:
		case <-p.changed:
		case <-look:
			if !p.seatsChange() {
				continue
			}
		case <-ctx.Done():
			return false
		}
		return true
	}
}

func (p *Plugin) notifyNomad() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// gateWait is how long the first update waits for the gate, so that seats are not briefly
// unhealthy at each start.
const gateWait = 5 * time.Second

// startUpdates prepares a stream of updates to Nomad, until ctx or the plugin ends. The caller
// must call end.
func (p *Plugin) startUpdates(ctx context.Context) (s *config.Settings, _ context.Context, end func(), err error) {
	p.mu.Lock()
	s = p.settings
	p.mu.Unlock()
	switch {
	case s == nil:
		return nil, nil, nil, errNotConfigured
	case !s.Enabled:
		return nil, nil, nil, nomad.ErrPluginDisabled
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(p.ctx, cancel)
	return s, ctx, func() { stop(); cancel() }, nil
}

// groups returns the device groups: a card's seats, and whole cards. A card that has disappeared
// stays, unhealthy, because allocations may have it.
func (p *Plugin) groups() (seats, whole []*nomad.DeviceGroup) {
	p.mu.Lock()
	library := p.cards
	p.mu.Unlock()
	cards, err := library.Cards() // may block
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case errors.Is(err, nvml.ErrNone) && len(p.known) == 0:
		p.logOnce(hclog.Info, "there are no cards to be shared: "+err.Error())
	case err != nil:
		p.logOnce(hclog.Error, "cannot read the cards: "+err.Error())
	default:
		p.logOnce(hclog.Info, fmt.Sprintf("%d cards", len(cards)))
	}
	there := make(map[string]bool)
	for _, c := range cards {
		there[c.UUID] = true
		p.known[c.UUID] = c
	}
	if len(cards) > 0 {
		p.ensureGate(cards)
	}
	var all, usable []nvml.Card
	// Why a card cannot be shared, and not even be had whole, by UUID: to know it takes I/O.
	reasons, broken := make(map[string]string), make(map[string]string)
	var shown []metrics.Card
	taken := p.seats.taken()
	for _, uuid := range slices.Sorted(maps.Keys(p.known)) {
		c := p.known[uuid]
		if slices.Contains(p.settings.Ignored, uuid) {
			continue
		}
		if !there[uuid] {
			c.Unhealthy = "it has disappeared"
			if err != nil {
				c.Unhealthy = err.Error()
			}
		}
		all = append(all, c)
		health, reason := p.health(c)
		if reason == "" && !taken[uuid] {
			usable = append(usable, c)
		} else if !there[uuid] {
			health = metrics.Missing
		}
		reasons[uuid] = reason
		_, broken[uuid] = unusable(c)
		shown = append(shown, metrics.Card{UUID: uuid, Model: c.Name, Driver: c.Driver, Health: health})
	}
	p.metrics.UpdateCards(shown)
	offered, level := offeredSeats(usable, p.settings.Seats, taken)
	for _, c := range all {
		g := p.group(c, reasons[c.UUID], taken[c.UUID])
		if p.spreads() {
			hideSeats(g, offered, level[c.UUID])
		}
		seats = append(seats, g)
	}
	return seats, p.wholes(all, broken, taken)
}

func (p *Plugin) logOnce(level hclog.Level, what string) {
	if p.lastMessage != what {
		p.lastMessage = what
		p.log.Log(level, what)
	}
}

func (p *Plugin) logHealth(c nvml.Card, bad string) {
	switch last := p.lastReason[c.UUID]; {
	case bad == last || p.opening != nil && p.gateErr == nil: // still opening
		return
	case bad == "":
		p.log.Info("a card can be used again", "card", groupName(c), "uuid", c.UUID)
	default:
		p.log.Warn("a card cannot be used: no more jobs are placed on it, running ones continue", "card", groupName(c), "uuid", c.UUID, "reason", bad)
	}
	p.lastReason[c.UUID] = bad
}

// describe returns the attributes of all cards of a model.
func describe(c nvml.Card) map[string]*structs.Attribute {
	out := map[string]*structs.Attribute{
		"model":          structs.NewStringAttribute(c.Name),
		"memory":         structs.NewIntAttribute(int64(c.Memory>>20), structs.UnitMiB),
		"driver_version": structs.NewStringAttribute(c.Driver),
	}
	for name, a := range map[string]struct {
		value *int64
		unit  string
	}{
		"power": {c.PowerW, structs.UnitW}, "bar1": {c.BAR1MiB, structs.UnitMiB}, "cores_clock": {c.CoresClockMHz, structs.UnitMHz},
		"memory_clock": {c.MemoryClockMHz, structs.UnitMHz}, "pci_bandwidth": {c.PCIeMBps, structs.UnitMBPerS},
	} {
		if a.value != nil {
			out[name] = structs.NewIntAttribute(*a.value, a.unit)
		}
	}
	for name, state := range map[string]string{"display_state": c.Display, "persistence_mode": c.Persistence} {
		if state != "" {
			out[name] = structs.NewStringAttribute(state)
		}
	}
	return out
}

// group returns a card's seats. taken: a container has the whole card.
func (p *Plugin) group(c nvml.Card, bad string, taken bool) *nomad.DeviceGroup {
	p.logHealth(c, bad)
	g := &nomad.DeviceGroup{Vendor: vendor, Type: kind, Name: groupName(c), Attributes: describe(c)}
	maps.Copy(g.Attributes, map[string]*structs.Attribute{
		"uuid":         structs.NewStringAttribute(c.UUID),
		"pci_bus_id":   structs.NewStringAttribute(c.PCIBusID),
		"compute_mode": structs.NewStringAttribute(c.ComputeMode),
		"mig":          structs.NewBoolAttribute(c.MIG),
		"seats":        structs.NewIntAttribute(int64(p.settings.Seats), ""),
		"division":     structs.NewStringAttribute(p.settings.Division),
		"shared":       structs.NewBoolAttribute(p.gate != nil),
		"parking":      structs.NewBoolAttribute(p.gate != nil && p.gate.parkErr == nil),
		"over_share":   structs.NewStringAttribute(p.overShare()),
		// Nomad retries a job that it could not place when an attribute changes, but not when a
		// seat's health does.
		"healthy": structs.NewBoolAttribute(bad == ""),
		"whole":   structs.NewBoolAttribute(taken),
	})
	if bad == "" && taken {
		bad = whole
	}
	if p.gate != nil && p.gate.parkErr != nil {
		g.Attributes["not_parked"] = structs.NewStringAttribute(p.gate.parkErr.Error())
	}
	for i := range p.settings.Seats {
		g.Devices = append(g.Devices, &nomad.Device{
			ID: seatID(c.UUID, i), Healthy: bad == "", HealthDesc: bad, HwLocality: &nomad.DeviceLocality{PciBusID: c.PCIBusID},
		})
	}
	return g
}

// unusable returns why no container can use a card; "" if one can.
func unusable(c nvml.Card) (metrics.Health, string) {
	switch {
	case c.Unhealthy != "":
		return metrics.Faulty, c.Unhealthy
	case c.MIG:
		return metrics.MIG, "it is divided by MIG: its parts are for NVIDIA's own plugin"
	case c.ComputeMode == "prohibited":
		return metrics.ComputeMode, "its compute mode forbids use (nvidia-smi -c 0)"
	}
	return metrics.Healthy, ""
}

// health returns why a card cannot be shared; "" if it can. A card whose shares are not
// enforced takes one container only.
func (p *Plugin) health(c nvml.Card) (metrics.Health, string) {
	switch health, bad := unusable(c); {
	case bad != "" || p.settings.Seats == 1:
		return health, bad
	case c.ComputeMode == "exclusive":
		return metrics.ComputeMode, "its compute mode allows only one process (nvidia-smi -c 0)"
	}
	if err := p.sharingErr(); err != nil {
		return metrics.NotShared, "its memory cannot be shared: " + err.Error()
	}
	return metrics.Healthy, ""
}

func modelName(c nvml.Card) string { return strings.ReplaceAll(strings.TrimSpace(c.Name), " ", "-") }

// groupName distinguishes cards of one model by the beginning of the UUID.
func groupName(c nvml.Card) string { return modelName(c) + "-" + shortID(c.UUID) }

func shortID(uuid string) string {
	id := strings.TrimPrefix(uuid, "GPU-")
	return id[:min(8, len(id))]
}

func seatID(uuid string, seat int) string { return uuid + "/" + strconv.Itoa(seat) }

// Reserve implements nomad.DevicePlugin. IDs are seats, of which two on one card count as one, or
// whole cards.
func (p *Plugin) Reserve(ids []string) (*nomad.ContainerReservation, error) {
	if p.neverListed() {
		// A restarted plugin may be asked before it has listed the cards.
		p.groups()
	}
	p.awaitGate(p.ctx, helperWithin)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settings == nil {
		return nil, errNotConfigured
	}
	defer p.notifyNomad()
	if len(ids) == 0 {
		return &nomad.ContainerReservation{}, nil
	}
	if _, err := p.seats.read(time.Now(), tasksDir(p.settings.Gate)); err != nil {
		p.logOnce(hclog.Error, err.Error())
	}
	var uuids []string
	taken := p.seats.taken()
	for _, id := range ids {
		uuid, _, seat := strings.Cut(id, "/")
		c, known := p.known[uuid]
		if !known {
			return nil, fmt.Errorf("there is no seat or card %q on this node", id)
		}
		if err := p.conflict(id, taken); err != nil {
			return nil, err
		}
		_, bad := unusable(c)
		if seat {
			_, bad = p.health(c)
		}
		if bad != "" {
			return nil, fmt.Errorf("card %s cannot be used: %s", uuid, bad)
		}
		if !slices.Contains(uuids, uuid) {
			uuids = append(uuids, uuid)
		}
	}
	p.seats.reserve(time.Now(), ids)
	res := &nomad.ContainerReservation{Envs: make(map[string]string)}
	if p.settings.Inject == config.InjectRuntime {
		res.Envs["NVIDIA_VISIBLE_DEVICES"] = strings.Join(uuids, ",")
	} else {
		p.addNodes(res, uuids)
	}
	if err := p.addShare(res, ids, uuids); err != nil {
		return nil, err
	}
	return res, nil
}

func (p *Plugin) neverListed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settings != nil && len(p.known) == 0
}

func (p *Plugin) addNodes(res *nomad.ContainerReservation, uuids []string) {
	paths := []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
	for _, uuid := range uuids {
		paths = append(paths, fmt.Sprintf("/dev/nvidia%d", p.known[uuid].Minor))
	}
	for _, path := range paths {
		res.Devices = append(res.Devices, &nomad.DeviceSpec{TaskPath: path, HostPath: path, CgroupPerms: "rw"})
	}
}

// addShare adds what a container needs to share its cards, or leaves that to the ebbtide driver.
func (p *Plugin) addShare(res *nomad.ContainerReservation, ids, uuids []string) error {
	s := handoff.Handoff{Preload: filepath.Clean(p.settings.Preload), Gate: filepath.Clean(p.settings.Gate), WaitMS: p.settings.MaxWait.Milliseconds(), Reports: reportsDir(p.settings.Gate), Tasks: tasksDir(p.settings.Gate), Cards: uuids, Seats: ids}
	for _, uuid := range uuids {
		s.MemoryMiB = max(s.MemoryMiB, int64(p.known[uuid].Memory>>20))
	}
	err := p.sharingErr()
	if s.Whole = !strings.Contains(ids[0], "/"); s.Whole {
		s.Preload, s.Gate, s.Reports, s.WaitMS = "", "", "", 0 // the card is its alone
	} else if err != nil {
		p.log.Warn("a container gets its card without a memory share", "error", err)
		s.Preload, s.Gate, s.Reports, s.Tasks, s.Seats, s.WaitMS, s.Notice = "", "", "", "", nil, 0, err.Error()
	} else if not := p.gate.parkErr; not != nil && !errors.Is(not, errParkingOff) {
		s.Unparked = not.Error()
	}
	if p.settings.Mounts == config.MountsDriver {
		// A task with several device blocks keeps a variable for each.
		if res.Envs[handoff.Variable+"_"+strings.ToUpper(shortID(uuids[0]))], err = s.Encode(); err != nil {
			return fmt.Errorf("handing a card over to the driver: %w", err)
		}
		return nil
	}
	maps.Copy(res.Envs, s.Environment(nil, true))
	mounts := s.Mounts()
	if s.Shares() {
		mounts = append(mounts, s.Loader())
	}
	for _, m := range mounts {
		res.Mounts = append(res.Mounts, &nomad.Mount{TaskPath: m.Task, HostPath: m.Host, ReadOnly: true})
	}
	return nil
}
