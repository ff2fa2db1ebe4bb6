// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package device is the device plugin ebbtide-gpu: it tells Nomad of the NVIDIA cards of a
// node, each with several seats, so that several containers can share one.
//
// A card is a device group of its own, with its seats as instances: Nomad fills an ask from
// one group, and picks instances in any order, so that one group for all cards would
// scatter a job over them.
package device

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
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
	"github.com/ebbtide/ebbtide/device/fairshare"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/wire"
	"github.com/ebbtide/ebbtide/device/nvml"
	"github.com/ebbtide/ebbtide/device/seat"
	"github.com/ebbtide/ebbtide/device/shares"
	"github.com/ebbtide/ebbtide/version"
)

// What a job asks for: device "nvidia/share" { count = 1 }.
const (
	Name   = "ebbtide-gpu"
	vendor = "nvidia"
	kind   = "share"
)

// Cards is what the plugin needs of a machine's cards (nvml.Library).
type Cards interface {
	Cards() ([]nvml.Card, error)
	Usage(uuid string) (nvml.Usage, error)
}

// Plugin is the device plugin.
type Plugin struct {
	ctx context.Context // ends with the plugin
	log hclog.Logger
	// open opens the library of the cards.
	open func(path string) Cards

	mu       sync.Mutex
	settings *config.Settings
	cards    Cards
	known    map[string]nvml.Card // all that have been seen, by UUID
	said     string               // what was said last of the cards
	ill      map[string]string    // why cards cannot be used, as was said last, by UUID
	gate     *gate.Gate           // nil without cards, or if it could not be opened
	tried    bool                 // to open it
	learning sync.WaitGroup       // what measures jobs
	unparked error                // why containers cannot be parked; nil if they can
}

var _ nomad.DevicePlugin = (*Plugin)(nil)

// New returns the plugin.
func New(ctx context.Context, log hclog.Logger) *Plugin {
	return &Plugin{
		ctx: ctx, log: log.Named(Name), known: make(map[string]nvml.Card), ill: make(map[string]string),
		open: func(path string) Cards { return nvml.New(path) },
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
	p.settings, p.cards = s, p.open(s.Library)
	return nil
}

var errNotConfigured = errors.New("the plugin has not been configured")

// Fingerprint implements nomad.DevicePlugin: it tells of the cards, and again whenever
// something of them has changed. Where there are none, there are no devices, and the
// plugin is well all the same.
func (p *Plugin) Fingerprint(ctx context.Context) (<-chan *nomad.FingerprintResponse, error) {
	s, ctx, end, err := p.begin(ctx)
	if err != nil {
		return nil, err
	}
	out := make(chan *nomad.FingerprintResponse)
	go func() {
		defer close(out)
		defer end()
		var last []*nomad.DeviceGroup
		first := true
		for {
			groups := p.groups()
			if first || !reflect.DeepEqual(groups, last) {
				select {
				case out <- nomad.NewFingerprint(groups...):
				case <-ctx.Done():
					return
				}
				first, last = false, groups
			}
			select {
			case <-time.After(s.Period):
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}

// begin begins what Nomad is told of again and again, until ctx or the plugin ends. end
// must be called.
func (p *Plugin) begin(ctx context.Context) (s *config.Settings, _ context.Context, end func(), err error) {
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

// groups are the cards as Nomad is told of them. One that was there and is not any more is
// unhealthy: allocations that have it must not be forgotten.
func (p *Plugin) groups() []*nomad.DeviceGroup {
	p.mu.Lock()
	defer p.mu.Unlock()
	cards, err := p.cards.Cards()
	switch {
	case errors.Is(err, nvml.ErrNone) && len(p.known) == 0:
		p.say(hclog.Info, "there are no cards to be shared: "+err.Error())
	case err != nil:
		p.say(hclog.Error, "the cards cannot be read: "+err.Error())
	default:
		p.say(hclog.Info, fmt.Sprintf("%d cards", len(cards)))
	}
	there := make(map[string]bool)
	for _, c := range cards {
		there[c.UUID] = true
		p.known[c.UUID] = c
	}
	if len(cards) > 0 && !p.tried {
		p.tried = true
		if err := p.openGate(cards); err != nil {
			p.log.Error("cards are handed out whole: there is no gate", "error", err)
		}
	}
	var groups []*nomad.DeviceGroup
	for _, uuid := range slices.Sorted(maps.Keys(p.known)) {
		c := p.known[uuid]
		if slices.Contains(p.settings.Ignored, uuid) {
			continue
		}
		if !there[uuid] {
			c.Unhealthy = "it is not found any more"
			if err != nil {
				c.Unhealthy = err.Error()
			}
		}
		groups = append(groups, p.group(c))
	}
	return groups
}

// say tells something of the cards, once.
func (p *Plugin) say(level hclog.Level, what string) {
	if p.said != what {
		p.said = what
		p.log.Log(level, what)
	}
}

// sayHealth tells that a card cannot be used, or can again, once.
func (p *Plugin) sayHealth(c nvml.Card, bad string) {
	switch last := p.ill[c.UUID]; {
	case bad == last:
	case bad == "":
		p.log.Info("a card can be used again", "card", groupName(c), "uuid", c.UUID)
	default:
		p.log.Warn("a card cannot be used: no more jobs are placed on it, and those that are there are left alone", "card", groupName(c), "uuid", c.UUID, "reason", bad)
	}
	p.ill[c.UUID] = bad
}

// group is a card as Nomad is told of it.
func (p *Plugin) group(c nvml.Card) *nomad.DeviceGroup {
	bad := unfit(c, p.settings.Seats)
	p.sayHealth(c, bad)
	g := &nomad.DeviceGroup{
		Vendor: vendor, Type: kind, Name: groupName(c),
		Attributes: map[string]*structs.Attribute{
			"uuid":           structs.NewStringAttribute(c.UUID),
			"model":          structs.NewStringAttribute(c.Name),
			"memory":         structs.NewIntAttribute(int64(c.Memory>>20), structs.UnitMiB),
			"driver_version": structs.NewStringAttribute(c.Driver),
			"pci_bus_id":     structs.NewStringAttribute(c.PCIBusID),
			"compute_mode":   structs.NewStringAttribute(c.ComputeMode),
			"mig":            structs.NewBoolAttribute(c.MIG),
			"seats":          structs.NewIntAttribute(int64(p.settings.Seats), ""),
			"division":       structs.NewStringAttribute(p.settings.Division),
			"shared":         structs.NewBoolAttribute(p.gate != nil),
			"parking":        structs.NewBoolAttribute(p.gate != nil && p.unparked == nil),
			"over_share":     structs.NewStringAttribute(p.overShare()),
			// Nomad tries a job that it could not place again when attributes have changed.
			// A seat's health is not enough for that.
			"healthy": structs.NewBoolAttribute(bad == ""),
		},
	}
	for i := range p.settings.Seats {
		g.Devices = append(g.Devices, &nomad.Device{
			ID: seatID(c.UUID, i), Healthy: bad == "", HealthDesc: bad, HwLocality: &nomad.DeviceLocality{PciBusID: c.PCIBusID},
		})
	}
	return g
}

// unfit says why a card cannot be shared; "" if it can.
func unfit(c nvml.Card, seats int) string {
	switch {
	case c.Unhealthy != "":
		return c.Unhealthy
	case c.MIG:
		return "it is divided by MIG: its parts are for NVIDIA's own plugin"
	case c.ComputeMode == "prohibited":
		return "its compute mode lets nobody use it (nvidia-smi -c 0)"
	case c.ComputeMode == "exclusive" && seats > 1:
		return "its compute mode lets only one process use it (nvidia-smi -c 0)"
	}
	return ""
}

// groupName is the model with the beginning of the UUID: two cards of a model are two
// groups.
func groupName(c nvml.Card) string {
	id := strings.TrimPrefix(c.UUID, "GPU-")
	return strings.ReplaceAll(strings.TrimSpace(c.Name), " ", "-") + "-" + id[:min(8, len(id))]
}

// seatID names a seat: the card, and which of its seats.
func seatID(uuid string, seat int) string { return uuid + "/" + strconv.Itoa(seat) }

// Reserve implements nomad.DevicePlugin: what a container gets of its seats. Two of one
// card are one to it.
func (p *Plugin) Reserve(ids []string) (*nomad.ContainerReservation, error) {
	if p.begun() {
		// Nomad asks a plugin that it has just started again for seats of the one before.
		p.groups()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settings == nil {
		return nil, errNotConfigured
	}
	if len(ids) == 0 {
		return &nomad.ContainerReservation{}, nil
	}
	var uuids []string
	for _, id := range ids {
		uuid, _, ok := strings.Cut(id, "/")
		c, known := p.known[uuid]
		if !ok || !known {
			return nil, fmt.Errorf("there is no seat %q on this node", id)
		}
		if bad := unfit(c, p.settings.Seats); bad != "" {
			return nil, fmt.Errorf("card %s cannot be used: %s", uuid, bad)
		}
		if !slices.Contains(uuids, uuid) {
			uuids = append(uuids, uuid)
		}
	}
	res := &nomad.ContainerReservation{Envs: make(map[string]string)}
	if p.settings.Inject == config.InjectRuntime {
		res.Envs["NVIDIA_VISIBLE_DEVICES"] = strings.Join(uuids, ",")
	} else {
		p.nodes(res, uuids)
	}
	if err := p.share(res, uuids); err != nil {
		return nil, err
	}
	return res, nil
}

// begun says whether the plugin may look at the cards and has not done so yet.
func (p *Plugin) begun() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settings != nil && len(p.known) == 0
}

// openGate opens the gate for the cards that are there. It ends with the plugin. One that
// comes later is handed out without a share of its memory.
func (p *Plugin) openGate(cards []nvml.Card) error {
	if err := os.MkdirAll(p.settings.Gate, 0o755); err != nil {
		return fmt.Errorf("making the gate's directory: %w", err)
	}
	opts := gate.Default()
	opts.State = filepath.Clean(p.settings.Gate) + ".state" // beside what containers see
	opts.Overhead = 0                                       // the preload library asks for contexts itself
	opts.Report = func(err error) { p.log.Warn("gate", "error", err) }
	budgets := make(map[ledger.CardID]uint64)
	for _, c := range cards {
		uuid, err := wire.ParseUUID(c.UUID)
		if err != nil {
			return fmt.Errorf("card %s: %w", c.UUID, err)
		}
		reserve := min(p.settings.Reserve, c.Memory)
		opts.Cards = append(opts.Cards, gate.Card{UUID: uuid, Physical: c.Memory, Reserve: reserve})
		budgets[ledger.CardID(uuid.String())] = c.Memory - reserve
	}
	opts.Evictor, p.unparked = p.parking(cards)
	if p.unparked != nil {
		opts.ReturnOnly = true
		p.log.Warn("containers are not parked: who finds no memory waits, and is denied it in the end", "reason", p.unparked)
	}
	opts.Soft = p.overShare() == config.OverWait
	opts.Rules.Turn, opts.Rules.Idle, opts.MaxWait = p.settings.Turn, p.settings.Idle, p.settings.MaxWait
	parts := shares.New(fairshare.Mode(p.settings.Division), budgets, p.log.Named("shares"))
	opts.Shares = parts
	g, err := gate.New(opts)
	if err != nil {
		return err
	}
	parts.Use(g)
	l, err := gate.Listen(filepath.Join(p.settings.Gate, seat.Socket))
	if err != nil {
		g.Close()
		return err
	}
	p.learn(parts, g, opts.Soft)
	byID := make(map[ledger.CardID]nvml.Card)
	for _, c := range cards {
		byID[ledger.CardID(c.UUID)] = c
	}
	if err := p.reports(p.ctx, g, reportsDir(p.settings.Gate), byID); err != nil {
		p.log.Warn("the driver is not told how containers fare", "error", err)
	}
	p.gate = g
	go func() {
		if err := g.Serve(p.ctx, l); err != nil {
			p.log.Error("nobody can come to the gate any more", "error", err)
		}
		g.Close()
	}()
	return nil
}

// overShare is what becomes of a request for more than a share here: wait, or deny.
func (p *Plugin) overShare() string {
	switch {
	case p.settings.Over != config.OverAuto:
		return p.settings.Over
	case p.unparked == nil:
		return config.OverWait
	}
	return config.OverDeny
}

// nodes adds the device nodes of cards, and those that all cards share.
func (p *Plugin) nodes(res *nomad.ContainerReservation, uuids []string) {
	paths := []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
	for _, uuid := range uuids {
		paths = append(paths, fmt.Sprintf("/dev/nvidia%d", p.known[uuid].Minor))
	}
	for _, path := range paths {
		res.Devices = append(res.Devices, &nomad.DeviceSpec{TaskPath: path, HostPath: path, CgroupPerms: "rw"})
	}
}

// share adds what a container needs to share its cards, or leaves that to the ebbtide
// driver. Without it the container runs all the same, and nobody keeps it to its share.
func (p *Plugin) share(res *nomad.ContainerReservation, uuids []string) error {
	s := seat.Seat{Preload: filepath.Clean(p.settings.Preload), Gate: filepath.Clean(p.settings.Gate), WaitMS: p.settings.MaxWait.Milliseconds(), Reports: reportsDir(p.settings.Gate)}
	for _, uuid := range uuids {
		s.MemoryMiB = max(s.MemoryMiB, int64(p.known[uuid].Memory>>20))
	}
	if p.unparked != nil && !errors.Is(p.unparked, errParkingOff) {
		s.Unparked = p.unparked.Error()
	}
	err := seat.Check(s.Preload, s.Gate)
	if err == nil && p.gate == nil {
		// The socket may be there still, of a plugin that was before this one.
		err = errors.New("the gate could not be opened, the plugin's log says why")
	}
	if err != nil {
		p.log.Warn("a container gets its card without a share of its memory", "error", err)
		s.Preload, s.Gate, s.Reports, s.Unparked, s.WaitMS, s.Notice = "", "", "", "", 0, err.Error()
	}
	if p.settings.Mounts == config.MountsDriver {
		if res.Envs[seat.Variable], err = s.Encode(); err != nil {
			return fmt.Errorf("telling the driver of a seat: %w", err)
		}
		return nil
	}
	maps.Copy(res.Envs, s.Environment(nil))
	for _, m := range s.Mounts() {
		res.Mounts = append(res.Mounts, &nomad.Mount{TaskPath: m.Task, HostPath: m.Host, ReadOnly: true})
	}
	return nil
}
