// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package doctor

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/client"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/config"
	"github.com/ebbtide/ebbtide/internal/version"
	"github.com/ebbtide/ebbtide/shim/cluster"
	"github.com/ebbtide/ebbtide/shim/move"
)

// timeout bounds each request to the agent and Docker.
const timeout = 5 * time.Second

type Options struct {
	// Paths are configuration files and directories, in the agent's order.
	Paths []string
	// Address of the agent's API; "" for NOMAD_ADDR, else the files', else Nomad's default. TLS
	// and token come from the environment.
	Address string
}

// Gather collects everything that is accessible. Only a nonexistent path is an error; other
// problems are part of the snapshot.
func Gather(ctx context.Context, o Options) (*Snapshot, error) {
	for _, path := range o.Paths {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("-config: %w", err)
		}
	}
	s := &Snapshot{Paths: o.Paths}
	if len(o.Paths) > 0 {
		s.Files, s.FilesErr = Load(o.Paths)
	}
	cfg := api.DefaultConfig()
	s.API.Asked = true
	switch {
	case o.Address != "":
		cfg.Address = o.Address
	case os.Getenv("NOMAD_ADDR") != "": // read by DefaultConfig
	case s.Files != nil:
		cfg.Address, s.API.Asked = s.Files.HTTP, false
	}
	hostname := askAgent(ctx, cfg, &s.API)

	if here, why := local(len(o.Paths) > 0, cfg.Address, hostname); !here {
		s.HostSkipped = why
		return s, nil
	}
	s.Host = inspectHost(s)
	if s.engine() == config.EngineDocker {
		var inner Block
		for _, i := range s.installs() {
			inner = i.inner()
			break
		}
		s.Host.Docker = askDocker(ctx, inner)
	}
	return s, nil
}

// local reports whether the agent runs on this machine. Given files imply that.
func local(files bool, address, hostname string) (bool, string) {
	if files {
		return true, ""
	}
	if hostname != "" {
		own, err := os.Hostname()
		if err != nil || own != hostname {
			return false, "the agent runs on another machine, " + clean(hostname) + "; run doctor there"
		}
		return true, ""
	}
	u, err := url.Parse(address)
	if err == nil {
		ip := net.ParseIP(u.Hostname())
		if u.Scheme == "unix" || u.Hostname() == "localhost" || ip != nil && ip.IsLoopback() {
			return true, ""
		}
	}
	return false, "cannot tell whether the agent runs on this machine; run doctor there, with -config"
}

// self is the used part of /v1/agent/self.
type self struct {
	Config struct {
		PluginDir string
		Client    struct {
			Enabled        bool
			Options        map[string]string
			MaxKillTimeout string
		}
		Telemetry struct{ PublishAllocationMetrics bool }
		Plugins   []struct {
			Name   string
			Config map[string]any
		}
		Version struct{ Version string }
	} `json:"config"`
	Stats map[string]map[string]string `json:"stats"`
}

// askAgent fills in a, and returns the agent's host name if known.
func askAgent(ctx context.Context, cfg *api.Config, a *API) (hostname string) {
	a.Address = withoutUser(cfg.Address)
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	c, err := api.NewClient(cfg)
	if err != nil {
		a.Err = apiError(err)
		return ""
	}
	defer c.Close()
	var me self
	if _, err := c.Raw().Query("/v1/agent/self", &me, (&api.QueryOptions{}).WithContext(ctx)); err != nil {
		a.Err, a.Denied = apiError(err), refused(err)
		return ""
	}
	force := &Config{
		PluginDir:                me.Config.PluginDir,
		ClientEnabled:            me.Config.Client.Enabled,
		MaxKillTimeout:           me.Config.Client.MaxKillTimeout,
		Options:                  me.Config.Client.Options,
		PublishAllocationMetrics: me.Config.Telemetry.PublishAllocationMetrics,
		Plugins:                  make(map[string]Block),
	}
	if force.MaxKillTimeout == "" {
		force.MaxKillTimeout = "30s"
	}
	for _, p := range me.Config.Plugins {
		force.Plugins[p.Name] = p.Config
	}
	a.Config, a.Version = force, me.Config.Version.Version
	a.Bound = bound(ctx, c)
	id := me.Stats["client"]["node_id"]
	if id == "" {
		return ""
	}
	node, _, err := c.Nodes().Info(id, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		a.NodeErr, a.NodeDenied = apiError(err), refused(err)
		return ""
	}
	a.Node = &Node{Attributes: node.Attributes, Drivers: make(map[string]DriverInfo)}
	for name, d := range node.Drivers {
		if d != nil {
			a.Node.Drivers[name] = DriverInfo{Detected: d.Detected, Healthy: d.Healthy, Description: d.HealthDescription}
		}
	}
	a.Node.Cards = cards(node)
	a.Node.Cores = reservesCores(ctx, c, id)
	a.Others, a.Algorithm = others(ctx, c), algorithm(ctx, c, node.NodePool)
	itself := func(*api.Node) (*api.Client, error) { return c, nil }
	if disk, err := (move.API{Client: c, Agent: itself}).Disk(ctx, node); err == nil && disk.Assumed == nil {
		a.Disk = &disk
	}
	return node.Attributes["unique.hostname"]
}

// reservesCores reports whether a task on the node has cores of its own; false if unknown.
func reservesCores(ctx context.Context, c *api.Client, node string) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout/2)
	defer cancel()
	allocs, _, err := c.Allocations().List((&api.QueryOptions{
		Namespace: api.AllNamespacesNamespace,
		Filter:    fmt.Sprintf("NodeID == %q and ClientStatus == \"running\"", node),
		Params:    map[string]string{"resources": "true"},
	}).WithContext(ctx))
	if err != nil {
		return false
	}
	for _, a := range allocs {
		if a.AllocatedResources == nil {
			continue
		}
		for _, task := range a.AllocatedResources.Tasks {
			if task != nil && len(task.Cpu.ReservedCores) > 0 {
				return true
			}
		}
	}
	return false
}

// others reports whether the cluster has two ready nodes; false if unknown.
func others(ctx context.Context, c *api.Client) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout/2)
	defer cancel()
	nodes, _, err := c.Nodes().List((&api.QueryOptions{Filter: `Status == "ready"`, PerPage: 2}).WithContext(ctx))
	return err == nil && len(nodes) > 1
}

// algorithm returns the scheduler's for a node pool, "" if unknown.
func algorithm(ctx context.Context, c *api.Client, pool string) string {
	ctx, cancel := context.WithTimeout(ctx, timeout/2)
	defer cancel()
	q := (&api.QueryOptions{}).WithContext(ctx)
	// Only Nomad Enterprise's pools have their own, and not every token can read them.
	if p, _, err := c.NodePools().Info(pool, q); err == nil && p.SchedulerConfiguration != nil {
		if own := p.SchedulerConfiguration.SchedulerAlgorithm; own != "" {
			return string(own)
		}
	}
	cluster, _, err := c.Operator().SchedulerGetConfiguration(q)
	if err != nil || cluster.SchedulerConfig == nil {
		return ""
	}
	return string(cluster.SchedulerConfig.SchedulerAlgorithm)
}

// bound returns the jobs bound for a move, none after half the time, which leaves the rest for
// the node.
func bound(ctx context.Context, c *api.Client) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	jobs, _, err := cluster.ListJobs(ctx, c)
	if err != nil {
		return nil
	}
	for _, j := range jobs {
		if j.Bound() != "" && !j.Dead {
			names = append(names, clean(j.Key.Namespace+"/"+j.Key.ID))
		}
	}
	slices.Sort(names)
	return names
}

func cards(node *api.Node) []Card {
	if node.NodeResources == nil {
		return nil
	}
	var out []Card
	for _, d := range node.NodeResources.Devices {
		if d == nil || d.Vendor != "nvidia" || d.Type != "share" {
			continue
		}
		is := func(name string) bool {
			v := d.Attributes[name]
			return v != nil && v.BoolVal != nil && *v.BoolVal
		}
		c := Card{Name: clean(d.Name), Seats: len(d.Instances), Shared: is("shared"), Parking: is("parking")}
		for name, to := range map[string]*string{"over_share": &c.OverShare, "not_parked": &c.NotParked, "persistence_mode": &c.Persistence} {
			if v := d.Attributes[name]; v != nil && v.StringVal != nil {
				*to = clean(*v.StringVal)
			}
		}
		for _, i := range d.Instances {
			if i != nil && !i.Healthy && !is("healthy") { // else it is only not offered now
				c.Unhealthy = clean(i.HealthDescription)
			}
		}
		out = append(out, c)
	}
	return out
}

func refused(err error) bool {
	var bad api.UnexpectedResponseError
	return errors.As(err, &bad) && (bad.StatusCode() == http.StatusForbidden || bad.StatusCode() == http.StatusUnauthorized)
}

// apiError drops the address and the response, which the API client's errors quote and which
// may hold secrets.
func apiError(err error) error {
	var bad api.UnexpectedResponseError
	if errors.As(err, &bad) && bad.HasStatusCode() {
		return fmt.Errorf("unexpected status %d %s", bad.StatusCode(), http.StatusText(bad.StatusCode()))
	}
	var inner *url.Error
	if errors.As(err, &inner) {
		return inner.Err
	}
	return err
}

func withoutUser(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "(not a valid address)"
	}
	u.User, u.RawQuery = nil, ""
	return clean(u.String())
}

func inspectHost(s *Snapshot) *Host {
	h := &Host{Root: os.Geteuid() == 0, Agents: agents("/proc")}
	if cfg := s.config(); cfg != nil && cfg.PluginDir != "" {
		h.Plugins, h.PluginsErr = Plugins(cfg.PluginDir)
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		h.CgroupsErr = fmt.Errorf("finding the cgroup mounts: %w", err)
		return h
	}
	h.Cgroups = cgroupMounts(string(text), func(path string) string {
		b, _ := os.ReadFile(filepath.Join(path, "cgroup.controllers"))
		return string(b)
	})
	return h
}

// Plugins lists the files in a plugin_dir.
func Plugins(dir string) ([]File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("listing plugin_dir: %w", err)
	}
	var out []File
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		fi, err := os.Stat(path)
		if err != nil || !fi.Mode().IsRegular() {
			continue
		}
		f := File{Name: e.Name(), Executable: fi.Mode()&0o111 != 0}
		f.Ours, f.Nomad = inspectPlugin(path)
		out = append(out, f)
	}
	return out, nil
}

// inspectPlugin identifies Ebbtide's plugin, and the Nomad whose drivers it contains, by its Go build
// information.
func inspectPlugin(path string) (ours bool, nomad string) {
	info, err := buildinfo.ReadFile(path)
	if err != nil || info.Path != "github.com/ebbtide/ebbtide/cmd/ebbtide-driver" {
		return false, ""
	}
	return true, version.Nomad(info)
}

func agents(proc string) (out []Process) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join(proc, e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		args := strings.Split(string(line), "\x00")
		if len(args) < 2 || !strings.HasPrefix(filepath.Base(args[0]), "nomad") || args[1] != "agent" {
			continue
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(proc, e.Name()), &st); err != nil {
			continue
		}
		out = append(out, Process{PID: pid, UID: int(st.Uid)})
	}
	slices.SortFunc(out, func(a, b Process) int { return a.PID - b.PID })
	return out
}

// cgroupMounts parses the cgroup mounts that may have a cpu controller. controllers returns
// cgroup.controllers of a version 2 mount.
func cgroupMounts(mountinfo string, controllers func(path string) string) (out []CgroupMount) {
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		head, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(head) < 6 || len(tail) < 3 {
			continue
		}
		m := CgroupMount{Path: head[4], ReadOnly: slices.Contains(strings.Split(head[5], ","), "ro")}
		switch tail[0] {
		case "cgroup":
			m.Version, m.Controllers = 1, strings.Split(tail[2], ",")
			if !slices.Contains(m.Controllers, "cpu") {
				continue
			}
		case "cgroup2":
			m.Version, m.Controllers = 2, strings.Fields(controllers(m.Path))
		default:
			continue
		}
		out = append(out, m)
	}
	return out
}

// askDocker queries the daemon that the plugin would use.
func askDocker(ctx context.Context, inner Block) *Docker {
	at := inner.text("endpoint", "")
	opts := []client.Opt{client.FromEnv}
	if at != "" {
		opts = []client.Opt{client.WithHost(at)}
		tls := inner.block("tls")
		if ca, cert, key := tls.text("ca", ""), tls.text("cert", ""), tls.text("key", ""); ca+cert+key != "" {
			opts = append(opts, client.WithTLSClientConfig(ca, cert, key))
		}
	}
	c, err := client.NewClientWithOpts(append(opts, client.WithAPIVersionNegotiation())...)
	if err != nil {
		return &Docker{Endpoint: withoutUser(at), Err: errors.New("the endpoint or its TLS files are invalid")}
	}
	defer c.Close()
	d := &Docker{Endpoint: withoutUser(c.DaemonHost())}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	fail := func(err error) *Docker {
		d.Err = err
		d.Denied = errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "permission denied")
		if errors.Is(err, context.DeadlineExceeded) {
			d.Err = fmt.Errorf("no response within %s", timeout)
		} else if client.IsErrConnectionFailed(err) {
			d.Err = errors.New("cannot connect: is the daemon running?")
		}
		return d
	}
	if _, err := c.Ping(ctx); err != nil {
		return fail(err)
	}
	info, err := c.Info(ctx)
	if err != nil {
		return fail(err)
	}
	d.Version, d.CgroupDriver, d.CgroupVersion = info.ServerVersion, info.CgroupDriver, info.CgroupVersion
	d.LiveRestore, d.CPUShares, d.CPUQuota = info.LiveRestoreEnabled, info.CPUShares, info.CPUCfsQuota
	d.Rootless = slices.ContainsFunc(info.SecurityOptions, func(o string) bool { return strings.Contains(o, "name=rootless") })
	return d
}
