// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package config reads the shim's HCL configuration over defaults and validates it.
package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclparse"

	"github.com/ebbtide/ebbtide/shim/migration"
	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/shim/relocate"
)

type Config struct {
	// Interval is the time between two passes.
	Interval time.Duration
	// DryRun decides and logs, but changes nothing.
	DryRun   bool
	LogLevel string

	Nomad      Nomad
	Leader     Leader
	Web        Web
	UI         UI
	Relocation Relocation
	Placement  Placement
	Migration  Migration
	Rebalance  Rebalance
	Queue      Queue
	Limits     Limits
	// Windows are the times when moves may start; none means always.
	Windows []Window
}

// Nomad is the connection to the cluster. Empty fields default to the environment, as in Nomad's
// CLI (NOMAD_ADDR etc.).
type Nomad struct {
	Address       string
	Region        string
	Token         string // from the command line; files use TokenFile
	TokenFile     string
	CAFile        string
	CertFile      string
	KeyFile       string
	TLSServerName string
}

// Leader configures leader election.
type Leader struct {
	Namespace string
	Path      string // of the variable; the shim's other variables are below it
	TTL       time.Duration
	Delay     time.Duration // after a lost lock, before another process may acquire it
}

type Web struct {
	Address string // host:port; "" disables serving
}

// Relocation configures moves of tasks that would finish sooner on another node.
type Relocation struct {
	Enabled  bool
	Interval time.Duration
	// Margin is the fraction of a task's remaining time that a move must save.
	Margin float64
}

// Placement configures the placement of new tasks (FlowCon, Algorithm 4).
type Placement struct {
	Enabled       bool
	CapacityAware bool
	// Window is the age up to which a task that has reported may be moved, while little work would
	// be lost.
	Window time.Duration
	// Margin is the fraction by which another node must be better.
	Margin float64
	// HoldTimeout is the time after which a held job is left to Nomad's scheduler.
	HoldTimeout time.Duration
}

// Migration configures moves of converged tasks (SpeCon, Algorithm 2).
type Migration struct {
	Enabled bool
	Weights migration.Weights
}

// Rebalance configures moves once all tasks have converged (SpeCon, Algorithm 3).
type Rebalance struct {
	Enabled  bool
	Interval time.Duration
}

// Queue configures the order in which jobs get their places (package queue).
type Queue struct {
	Enabled bool
	// Cost is what an interruption of a job costs before it was measured.
	Cost time.Duration
	// Probe is the first quantum of a job of unknown size; Patience bounds the wait for the next save of a
	// task that saves by itself.
	Probe, Patience time.Duration
	// Weights are the owners' parts of the cluster; others weigh 1.
	Weights map[string]float64
}

// Limits bound the moves of all policies.
type Limits struct {
	MovesPerMinute int
	InFlight       int // concurrent moves
	PerNode        int // concurrent moves from or to one node
	// Cooldown is the minimum time between two moves of a job.
	Cooldown time.Duration
	// Backoff is the wait after a failed move; it doubles with each consecutive failure.
	Backoff time.Duration
}

// Default returns the configuration without a file. The papers' policies are disabled: with fair
// finish on the nodes they delay jobs (docs/evaluation.md).
func Default() Config {
	return Config{
		Interval:   10 * time.Second,
		LogLevel:   "info",
		Leader:     Leader{Namespace: "default", Path: "ebbtide/shim", TTL: 15 * time.Second, Delay: 15 * time.Second},
		Web:        Web{Address: "127.0.0.1:9646"},
		Relocation: Relocation{Enabled: true, Interval: 30 * time.Second, Margin: relocate.DefaultParams().Margin},
		Placement:  Placement{CapacityAware: true, Window: 2 * time.Minute, Margin: 0.2, HoldTimeout: 30 * time.Second},
		Migration:  Migration{Weights: migration.DefaultParams().Weights},
		Rebalance:  Rebalance{Interval: 5 * time.Minute},
		Queue: Queue{
			Enabled: true, Cost: time.Duration(queue.DefaultParams().CostS) * time.Second, Probe: time.Duration(queue.DefaultParams().ProbeS) * time.Second,
			Patience: 30 * time.Minute,
		},
		Limits: Limits{MovesPerMinute: 6, InFlight: 2, PerNode: 1, Cooldown: 10 * time.Minute, Backoff: time.Minute},
	}
}

// file is the schema; unset options are nil.
type file struct {
	Preset   *string `hcl:"preset,optional"`
	Interval *string `hcl:"interval,optional"`
	DryRun   *bool   `hcl:"dry_run,optional"`
	LogLevel *string `hcl:"log_level,optional"`
	Nomad    *struct {
		Address       *string `hcl:"address,optional"`
		Region        *string `hcl:"region,optional"`
		TokenFile     *string `hcl:"token_file,optional"`
		CAFile        *string `hcl:"ca_file,optional"`
		CertFile      *string `hcl:"cert_file,optional"`
		KeyFile       *string `hcl:"key_file,optional"`
		TLSServerName *string `hcl:"tls_server_name,optional"`
	} `hcl:"nomad,block"`
	Leader *struct {
		Namespace *string `hcl:"namespace,optional"`
		Path      *string `hcl:"path,optional"`
		TTL       *string `hcl:"ttl,optional"`
		Delay     *string `hcl:"delay,optional"`
	} `hcl:"leader,block"`
	Web *struct {
		Address *string `hcl:"address,optional"`
	} `hcl:"web,block"`
	UI *struct {
		Address  *string `hcl:"address,optional"`
		CertFile *string `hcl:"cert_file,optional"`
		KeyFile  *string `hcl:"key_file,optional"`
	} `hcl:"ui,block"`
	Relocation *struct {
		Enabled  *bool    `hcl:"enabled,optional"`
		Interval *string  `hcl:"interval,optional"`
		Margin   *float64 `hcl:"margin,optional"`
	} `hcl:"relocation,block"`
	Placement *struct {
		Enabled       *bool    `hcl:"enabled,optional"`
		CapacityAware *bool    `hcl:"capacity_aware,optional"`
		Window        *string  `hcl:"window,optional"`
		Margin        *float64 `hcl:"margin,optional"`
		HoldTimeout   *string  `hcl:"hold_timeout,optional"`
	} `hcl:"placement,block"`
	Migration *struct {
		Enabled *bool `hcl:"enabled,optional"`
		Weights *struct {
			PC *float64 `hcl:"PC,optional"`
			WC *float64 `hcl:"WC,optional"`
			CC *float64 `hcl:"CC,optional"`
		} `hcl:"weights,block"`
	} `hcl:"migration,block"`
	Rebalance *struct {
		Enabled  *bool   `hcl:"enabled,optional"`
		Interval *string `hcl:"interval,optional"`
	} `hcl:"rebalance,block"`
	Queue *struct {
		Enabled  *bool   `hcl:"enabled,optional"`
		Cost     *string `hcl:"cost,optional"`
		Probe    *string `hcl:"probe,optional"`
		Patience *string `hcl:"patience,optional"`
		Owners   []struct {
			Name   string  `hcl:"name,label"`
			Weight float64 `hcl:"weight"`
		} `hcl:"owner,block"`
	} `hcl:"queue,block"`
	Limits *struct {
		MovesPerMinute *int    `hcl:"moves_per_minute,optional"`
		InFlight       *int    `hcl:"in_flight,optional"`
		PerNode        *int    `hcl:"per_node,optional"`
		Cooldown       *string `hcl:"cooldown,optional"`
		Backoff        *string `hcl:"backoff,optional"`
	} `hcl:"limits,block"`
	Windows []struct {
		Name     string  `hcl:"name,label"`
		Cron     string  `hcl:"cron"`
		Duration string  `hcl:"duration"`
		TimeZone *string `hcl:"time_zone,optional"`
	} `hcl:"window,block"`
}

// Parse reads HCL over the defaults and validates the result. The error joins all problems.
func Parse(data []byte, name string) (Config, error) {
	c := Default()
	parsed, diags := hclparse.NewParser().ParseHCL(data, name)
	if diags.HasErrors() {
		return c, explain(diags)
	}
	var f file
	if diags := gohcl.DecodeBody(parsed.Body, nil, &f); diags.HasErrors() {
		return c, explain(diags)
	}
	return c, errors.Join(f.merge(&c), c.Validate())
}

// explain joins HCL's diagnostics, one per line.
func explain(diags hcl.Diagnostics) error {
	var errs []error
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		where := ""
		if d.Subject != nil {
			where = fmt.Sprintf("%s:%d: ", d.Subject.Filename, d.Subject.Start.Line)
		}
		errs = append(errs, fmt.Errorf("%s%s: %s", where, d.Summary, d.Detail))
	}
	return errors.Join(errs...)
}

func set[T any](into *T, value *T) {
	if value != nil {
		*into = *value
	}
}

// preset sets what a paper publishes: its own policies, without the others.
func (c *Config) preset(name string) error {
	c.Relocation.Enabled, c.Queue.Enabled = false, false
	switch name {
	case "flowcon-2022":
		c.Placement.Enabled, c.Placement.CapacityAware, c.Placement.Margin = true, false, 0
	case "specon":
		c.Migration.Enabled, c.Rebalance.Enabled, c.Rebalance.Interval = true, true, 30*time.Second
	default:
		return fmt.Errorf("preset: must be one of flowcon-2022, specon, got %q", name)
	}
	return nil
}

func (f file) merge(c *Config) error {
	var errs []error
	// An invalid duration keeps its default, so Validate does not report it again.
	duration := func(name string, into *time.Duration, value *string) {
		if value == nil {
			return
		}
		d, err := time.ParseDuration(*value)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: must be a duration like 30s, got %q", name, *value))
			return
		}
		*into = d
	}
	if f.Preset != nil {
		if err := c.preset(*f.Preset); err != nil {
			errs = append(errs, err)
		}
	}
	duration("interval", &c.Interval, f.Interval)
	set(&c.DryRun, f.DryRun)
	set(&c.LogLevel, f.LogLevel)
	if n := f.Nomad; n != nil {
		set(&c.Nomad.Address, n.Address)
		set(&c.Nomad.Region, n.Region)
		set(&c.Nomad.TokenFile, n.TokenFile)
		set(&c.Nomad.CAFile, n.CAFile)
		set(&c.Nomad.CertFile, n.CertFile)
		set(&c.Nomad.KeyFile, n.KeyFile)
		set(&c.Nomad.TLSServerName, n.TLSServerName)
	}
	if l := f.Leader; l != nil {
		set(&c.Leader.Namespace, l.Namespace)
		set(&c.Leader.Path, l.Path)
		duration("leader.ttl", &c.Leader.TTL, l.TTL)
		duration("leader.delay", &c.Leader.Delay, l.Delay)
	}
	if w := f.Web; w != nil {
		set(&c.Web.Address, w.Address)
	}
	if u := f.UI; u != nil {
		set(&c.UI.Address, u.Address)
		set(&c.UI.CertFile, u.CertFile)
		set(&c.UI.KeyFile, u.KeyFile)
	}
	if r := f.Relocation; r != nil {
		set(&c.Relocation.Enabled, r.Enabled)
		duration("relocation.interval", &c.Relocation.Interval, r.Interval)
		set(&c.Relocation.Margin, r.Margin)
	}
	if p := f.Placement; p != nil {
		set(&c.Placement.Enabled, p.Enabled)
		set(&c.Placement.CapacityAware, p.CapacityAware)
		duration("placement.window", &c.Placement.Window, p.Window)
		set(&c.Placement.Margin, p.Margin)
		duration("placement.hold_timeout", &c.Placement.HoldTimeout, p.HoldTimeout)
	}
	if m := f.Migration; m != nil {
		set(&c.Migration.Enabled, m.Enabled)
		if w := m.Weights; w != nil {
			set(&c.Migration.Weights.PC, w.PC)
			set(&c.Migration.Weights.WC, w.WC)
			set(&c.Migration.Weights.CC, w.CC)
		}
	}
	if r := f.Rebalance; r != nil {
		set(&c.Rebalance.Enabled, r.Enabled)
		duration("rebalance.interval", &c.Rebalance.Interval, r.Interval)
	}
	if q := f.Queue; q != nil {
		set(&c.Queue.Enabled, q.Enabled)
		duration("queue.cost", &c.Queue.Cost, q.Cost)
		duration("queue.probe", &c.Queue.Probe, q.Probe)
		duration("queue.patience", &c.Queue.Patience, q.Patience)
		c.Queue.Weights = make(map[string]float64)
		for _, o := range q.Owners {
			if _, again := c.Queue.Weights[o.Name]; again {
				errs = append(errs, fmt.Errorf("queue.owner %q: must be there once", o.Name))
			}
			c.Queue.Weights[o.Name] = o.Weight
		}
	}
	if l := f.Limits; l != nil {
		set(&c.Limits.MovesPerMinute, l.MovesPerMinute)
		set(&c.Limits.InFlight, l.InFlight)
		set(&c.Limits.PerNode, l.PerNode)
		duration("limits.cooldown", &c.Limits.Cooldown, l.Cooldown)
		duration("limits.backoff", &c.Limits.Backoff, l.Backoff)
	}
	for _, given := range f.Windows {
		w := Window{Name: given.Name, Cron: given.Cron, Duration: time.Hour, TimeZone: "UTC"}
		duration(fmt.Sprintf("window %q: duration", w.Name), &w.Duration, &given.Duration)
		set(&w.TimeZone, given.TimeZone)
		c.Windows = append(c.Windows, w)
	}
	return errors.Join(errs...)
}

// LogLevels returns the values of `log_level`.
func LogLevels() []string { return []string{"trace", "debug", "info", "warn", "error"} }

// Validate returns all problems, joined.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	oneOf := func(name, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			bad("%s: must be one of %s, got %q", name, strings.Join(allowed, ", "), value)
		}
	}
	between := func(name string, value, least, most time.Duration) {
		if value < least || value > most {
			bad("%s: must be a duration from %v to %v, got %v", name, least, most, value)
		}
	}
	whole := func(name string, value, least, most int) {
		if value < least || value > most {
			bad("%s: must be from %d to %d, got %d", name, least, most, value)
		}
	}
	between("interval", c.Interval, time.Second, time.Hour)
	oneOf("log_level", c.LogLevel, LogLevels()...)
	if a := c.Nomad.Address; a != "" {
		if u, err := url.Parse(a); err != nil || !slices.Contains([]string{"http", "https", "unix"}, u.Scheme) {
			bad("nomad.address: must be a URL like https://127.0.0.1:4646, got %q", a)
		}
	}
	if (c.Nomad.CertFile == "") != (c.Nomad.KeyFile == "") {
		bad("nomad: cert_file and key_file must be set together, got %q and %q", c.Nomad.CertFile, c.Nomad.KeyFile)
	}
	if c.Leader.Namespace == "" {
		bad(`leader.namespace: must not be empty`)
	}
	if p := c.Leader.Path; p == "" || strings.HasPrefix(p, "/") || strings.HasPrefix(p, "nomad/") {
		bad("leader.path: must be the path of a Nomad variable, not beneath nomad/, got %q", p)
	}
	between("leader.ttl", c.Leader.TTL, 10*time.Second, 24*time.Hour)
	between("leader.delay", c.Leader.Delay, time.Second, 24*time.Hour)
	if a := c.Web.Address; a != "" {
		if _, _, err := net.SplitHostPort(a); err != nil {
			bad("web.address: must be host:port, or empty, got %q", a)
		}
	}
	if c.UI != (UI{}) {
		errs = append(errs, c.UI.Validate("ui.address", "ui.cert_file", "ui.key_file"))
	}
	between("relocation.interval", c.Relocation.Interval, c.Interval, 24*time.Hour)
	if m := c.Relocation.Margin; !(m >= 0 && m < 1) {
		bad("relocation.margin: must be ≥ 0 and < 1, got %v", m)
	}
	between("placement.window", c.Placement.Window, time.Second, time.Hour)
	if m := c.Placement.Margin; !(m >= 0 && m < 1) {
		bad("placement.margin: must be ≥ 0 and < 1, got %v", m)
	}
	between("placement.hold_timeout", c.Placement.HoldTimeout, time.Second, time.Hour)
	if err := c.Migration.Weights.Validate("migration.weights"); err != nil {
		errs = append(errs, err)
	}
	between("rebalance.interval", c.Rebalance.Interval, c.Interval, 24*time.Hour)
	between("queue.cost", c.Queue.Cost, time.Second, time.Hour)
	between("queue.probe", c.Queue.Probe, time.Second, 24*time.Hour)
	between("queue.patience", c.Queue.Patience, time.Minute, 24*time.Hour)
	for _, name := range slices.Sorted(maps.Keys(c.Queue.Weights)) {
		if w := c.Queue.Weights[name]; !(w > 0 && w <= queue.MaxWeight) {
			bad("queue.owner %q: weight: must be > 0 and ≤ %v, got %v", name, queue.MaxWeight, w)
		}
	}
	whole("limits.moves_per_minute", c.Limits.MovesPerMinute, 1, 10_000)
	whole("limits.in_flight", c.Limits.InFlight, 1, 1000)
	whole("limits.per_node", c.Limits.PerNode, 1, 100)
	if c.Limits.PerNode > c.Limits.InFlight {
		bad("limits.per_node: must not be more than in_flight (%d), got %d", c.Limits.InFlight, c.Limits.PerNode)
	}
	between("limits.cooldown", c.Limits.Cooldown, 0, 24*time.Hour)
	between("limits.backoff", c.Limits.Backoff, time.Second, time.Hour)
	for _, w := range c.Windows {
		errs = append(errs, w.Validate())
	}
	return errors.Join(errs...)
}
