// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"
	"time"

	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"
)

// AgentConfig describes a Nomad agent. The zero value is a server and client without the
// plugin.
type AgentConfig struct {
	Name string // unique; "" for agent0, agent1, …

	// Join is the server that a client joins.
	Join *Agent
	// ServerOnly disables the client.
	ServerOnly bool

	// PluginName is the driver's file in the plugin directory: "ebbtide-driver", "docker" to
	// replace the stock driver, "" to omit it.
	PluginName string
	// Plugin is the HCL body of its config block.
	Plugin string
	// Plugins are more plugin files by name.
	Plugins map[string]string

	// ConfigDir is read as a whole by the agent. Its nomad.hcl then omits the plugin directory and
	// Ebbtide's recommended settings, which other files set.
	ConfigDir string

	GCDisk float64 // gc_disk_usage_threshold, in percent; 0: 100
	// ClientHCL is added to the client block, HCL to the top level.
	ClientHCL, HCL string

	// ACL and TLS require tokens, and certificates of the run's own authority. A joining agent
	// inherits them from its server.
	ACL, TLS bool

	// Env is added to the environment, as NAME=value.
	Env []string
	// Chroot lists additional host files for the exec engine, with their paths in the chroot.
	Chroot map[string]string
	// HostVolumes maps names to host directories.
	HostVolumes map[string]string

	// MaxKillTimeout caps kill_timeout; 0 for 300 s.
	MaxKillTimeout time.Duration
	// Silence is the time without heartbeats after which a client's node is down, in addition to a
	// second or two between heartbeats; 0 for 30 s in addition to Nomad's ten to twenty.
	Silence time.Duration
	// HTTPPort serves API and UI; 0 selects a free port.
	HTTPPort int
	// LogLevel is the agent's; "" for DEBUG.
	LogLevel string
}

type Agent struct {
	Name string
	Addr string // of API and UI, "http://127.0.0.1:…" or with TLS "https://…"
	Dir  string
	API  *api.Client

	h      *Harness
	cfg    AgentConfig
	values map[string]any // of the template, in addition to cfg
	rpc    string         // for joining clients
	nodeID string
	argv   []string
	proc   *Process

	token     string     // management token; "" without ACLs
	authority *Authority // nil without TLS
	cert      Certificate
}

var agentTemplate = template.Must(template.New("agent").Parse(`
name       = {{ printf "%q" .Cfg.Name }}
data_dir   = {{ printf "%q" .Data }}
{{ if not .Cfg.ConfigDir }}plugin_dir = {{ printf "%q" .PluginDir }}{{ end }}
bind_addr  = "127.0.0.1"
log_level  = {{ printf "%q" .LogLevel }}
enable_debug = false
disable_update_check = true
leave_on_interrupt = false
leave_on_terminate = false

ports {
  http = {{ .HTTP }}
  rpc  = {{ .RPC }}
  serf = {{ .Serf }}
}
advertise {
  http = "127.0.0.1:{{ .HTTP }}"
  rpc  = "127.0.0.1:{{ .RPC }}"
  serf = "127.0.0.1:{{ .Serf }}"
}
limits {
  # Everything here comes from one address.
  http_max_conns_per_client = 2000
  rpc_max_conns_per_client  = 2000
}
telemetry {
  {{ if not .Cfg.ConfigDir }}publish_allocation_metrics = true{{ end }}
  publish_node_metrics       = true
  collection_interval        = "1s"
}
{{ if .Cfg.ACL }}
acl {
  enabled                  = true
  token_min_expiration_ttl = "1s"
}
{{ end }}
{{ with .TLS }}
tls {
  http = true
  rpc  = true
  ca_file   = {{ printf "%q" .CAFile }}
  cert_file = {{ printf "%q" .CertFile }}
  key_file  = {{ printf "%q" .KeyFile }}
  verify_server_hostname = true
  verify_https_client    = true
}
{{ end }}
consul {
  auto_advertise   = false
  client_auto_join = false
  server_auto_join = false
}
{{ if not .Cfg.Join }}
server {
  enabled          = true
  bootstrap_expect = {{ .Servers }}
  {{ if .Peer }}
  server_join {
    retry_join     = [{{ printf "%q" .Peer }}]
    retry_interval = "1s"
  }
  {{ end }}
  raft_multiplier  = 1
  num_schedulers   = 2
  {{ if .Cfg.Silence }}
  min_heartbeat_ttl = "1s"
  heartbeat_grace   = {{ printf "%q" .Cfg.Silence }}
  {{ else }}
  heartbeat_grace   = "30s"
  {{ end }}
}
{{ end }}
{{ if not .Cfg.ServerOnly }}
client {
  enabled           = true
  network_interface = "lo"
  state_dir         = {{ printf "%q" .State }}
  alloc_mounts_dir  = {{ printf "%q" .Mounts }}
  {{ if not .Cfg.ConfigDir }}max_kill_timeout = {{ printf "%q" .MaxKill }}{{ end }}
  # Over these limits moves are refused. Neither long tests nor the machine's disk may reach them.
  gc_max_allocs     = 10000
  gc_inode_usage_threshold = 100
  gc_disk_usage_threshold  = {{ or .Cfg.GCDisk 100 }}
  min_dynamic_port  = {{ .MinPort }}
  max_dynamic_port  = {{ .MaxPort }}
  # Where the agent's host has no cloud, each of these waits for one.
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
  }
  {{ if .Cfg.Join }}servers = [{{ printf "%q" .Cfg.Join.RPCAddr }}]{{ end }}
  # What a task of the exec engine sees of the host; the default copies /usr and more.
  chroot_env {
    {{ range $from, $to := .Chroot }}{{ printf "%q" $from }} = {{ printf "%q" $to }}
    {{ end }}
  }
  {{ range $name, $path := .Cfg.HostVolumes }}
  host_volume {{ printf "%q" $name }} {
    path = {{ printf "%q" $path }}
  }
  {{ end }}
  {{ .Cfg.ClientHCL }}
}
{{ end }}
{{ if .Cfg.PluginName }}
plugin {{ printf "%q" .Cfg.PluginName }} {
  config {
    {{ .Cfg.Plugin }}
  }
}
{{ end }}
{{ .Cfg.HCL }}
`))

func (a *Agent) RPCAddr() string { return a.rpc }

// PrepareAgent creates an agent's files without starting it.
func (h *Harness) PrepareAgent(ctx context.Context, cfg AgentConfig) (*Agent, error) {
	h.mu.Lock()
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("agent%d", len(h.agents))
	}
	h.mu.Unlock()
	nomad, err := h.Tools.Nomad(ctx)
	if err != nil {
		return nil, err
	}
	first, err := h.ports.take()
	if err != nil {
		return nil, err
	}
	http := cfg.HTTPPort
	if http == 0 {
		http = first
	} else if !allFree(http, 1) {
		return nil, fmt.Errorf("port %d on 127.0.0.1 is taken; choose another or leave it to be chosen", http)
	}
	dir := filepath.Join(h.Dir, cfg.Name)
	values := map[string]any{
		"HTTP": http, "RPC": first + 1, "Serf": first + 2,
		"MinPort": first + 10, "MaxPort": first + blockPorts - 1,
		"Data": filepath.Join(dir, "data"), "State": filepath.Join(dir, "state"),
		"Mounts": filepath.Join(dir, "mounts"), "PluginDir": filepath.Join(dir, "plugins"),
		"LogLevel": "DEBUG", "MaxKill": "300s", "Chroot": map[string]string{}, "Servers": 1, "Peer": "",
	}
	if cfg.LogLevel != "" {
		values["LogLevel"] = cfg.LogLevel
	}
	if cfg.MaxKillTimeout > 0 {
		values["MaxKill"] = cfg.MaxKillTimeout.String()
	}
	for _, key := range []string{"Data", "State", "Mounts", "PluginDir"} {
		if err := os.MkdirAll(values[key].(string), 0o755); err != nil {
			return nil, fmt.Errorf("making the directories of %s: %w", cfg.Name, err)
		}
	}
	if !cfg.ServerOnly {
		root, err := h.Rootfs(ctx)
		if err != nil {
			return nil, err
		}
		chroot := map[string]string{filepath.Join(root, "bin"): "/bin", filepath.Join(root, "etc"): "/etc"}
		maps.Copy(chroot, cfg.Chroot)
		values["Chroot"] = chroot
	}
	plugins := make(map[string]string)
	for name, path := range cfg.Plugins {
		plugins[name] = path
	}
	if cfg.PluginName != "" {
		driver, err := h.Tools.Driver(ctx)
		if err != nil {
			return nil, err
		}
		plugins[cfg.PluginName] = driver
	}
	for name, path := range plugins {
		if err := linkOrCopy(path, filepath.Join(dir, "plugins", name)); err != nil {
			return nil, fmt.Errorf("installing the plugin %s: %w", name, err)
		}
	}
	a := &Agent{
		Name: cfg.Name, Dir: dir, h: h, cfg: cfg, values: values,
		rpc: fmt.Sprintf("127.0.0.1:%d", first+1),
	}
	if err := a.secure(); err != nil {
		return nil, err
	}
	scheme := "http"
	if a.cfg.TLS {
		scheme = "https"
	}
	a.Addr = fmt.Sprintf("%s://127.0.0.1:%d", scheme, http)
	a.argv = []string{nomad, "agent", "-config", a.configFile()}
	if cfg.ConfigDir != "" {
		a.argv[3] = cfg.ConfigDir
	}
	if err := a.writeConfig(); err != nil {
		return nil, err
	}
	if a.API, err = a.client(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.agents = append(h.agents, a)
	h.mu.Unlock()
	return a, nil
}

func (a *Agent) configFile() string {
	if a.cfg.ConfigDir != "" {
		return filepath.Join(a.cfg.ConfigDir, "nomad.hcl")
	}
	return filepath.Join(a.Dir, "agent.hcl")
}

func (a *Agent) writeConfig() error {
	f, err := os.Create(a.configFile())
	if err != nil {
		return err
	}
	a.values["Cfg"] = a.cfg
	err = agentTemplate.Execute(f, a.values)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("writing the configuration of %s: %w", a.Name, err)
	}
	return nil
}

// Configure changes the plugin's config for the next start.
func (a *Agent) Configure(plugin string) error {
	a.cfg.Plugin = plugin
	return a.writeConfig()
}

// StartAgent starts an agent and waits until its node is ready (a server: until it leads).
func (h *Harness) StartAgent(ctx context.Context, cfg AgentConfig) (*Agent, error) {
	a, err := h.PrepareAgent(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if !cfg.ServerOnly && cfg.Join == nil {
		if err := a.seed(ctx); err != nil {
			return nil, err
		}
	}
	if err := a.Launch(ctx); err != nil {
		return nil, err
	}
	if err := a.WaitReady(ctx); err != nil || !cfg.ServerOnly {
		return a, err
	}
	return a, a.waitKeyring(ctx)
}

// StartServers starts n servers that join the first one, and waits for a leader.
func (h *Harness) StartServers(ctx context.Context, n int, cfg AgentConfig) (all []*Agent, err error) {
	cfg.ServerOnly = true
	for i := range n {
		one := cfg
		one.Name = fmt.Sprint(cfg.Name, i)
		a, err := h.PrepareAgent(ctx, one)
		if err != nil {
			return nil, err
		}
		if a.values["Servers"] = n; i > 0 {
			a.values["Peer"] = fmt.Sprintf("127.0.0.1:%d", all[0].values["Serf"])
		}
		if err := a.writeConfig(); err != nil {
			return nil, err
		}
		if err := a.Launch(ctx); err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	for _, a := range all {
		if err := errors.Join(a.WaitReady(ctx), a.waitKeyring(ctx)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// seed runs the server alone until it leads and has its keyring: a client that registers earlier is
// rejected and retries only after 15 to 30 s. (A second file cannot disable an enabled client.)
func (a *Agent) seed(ctx context.Context) (err error) {
	a.cfg.ServerOnly = true
	defer func() {
		a.cfg.ServerOnly = false
		err = errors.Join(err, a.writeConfig())
	}()
	if err := a.writeConfig(); err != nil {
		return err
	}
	if err := a.Launch(ctx); err != nil {
		return err
	}
	if err := a.waitLeader(ctx); err != nil {
		return err
	}
	if err := a.waitKeyring(ctx); err != nil {
		return err
	}
	return a.Stop(ctx)
}

// waitKeyring waits until the server accepts clients.
func (a *Agent) waitKeyring(ctx context.Context) error {
	return a.poll(ctx, "the server has its keyring", func() error {
		keys, _, err := a.API.Keyring().List(nil)
		if err != nil {
			return err
		}
		for _, k := range keys {
			if k.State == api.RootKeyStateActive {
				return nil
			}
		}
		return errors.New("no active key")
	})
}

// Launch starts the agent's process unless it is running. It does not wait.
func (a *Agent) Launch(ctx context.Context) error {
	if a.proc != nil && a.proc.Err() == nil {
		return nil
	}
	proc, err := a.h.super.start(ctx, a.Name, request{
		// Killed plugins leave their sockets in the temporary directory.
		Args: a.argv, Env: append(append(a.h.environ(), "TMPDIR="+a.h.Dir), a.cfg.Env...), Dir: a.Dir, Log: filepath.Join(a.Dir, "nomad.log"),
	})
	if err != nil {
		return err
	}
	a.proc = proc
	return nil
}

func (a *Agent) Process() *Process { return a.proc }

// poll is Poll, but fails if the agent exits.
func (a *Agent) poll(ctx context.Context, what string, check func() error) error {
	ended := false
	err := Poll(ctx, what, func(context.Context) error {
		if err := a.proc.Err(); err != nil {
			ended = true
			return nil
		}
		return check()
	})
	if ended {
		text, _ := tail(a.proc.Log, 15)
		return fmt.Errorf("waiting until %s: %w\n%s", what, a.proc.Err(), text)
	}
	return err
}

// waitLeader also waits for a management token if ACLs are enabled.
func (a *Agent) waitLeader(ctx context.Context) error {
	err := a.poll(ctx, a.Name+" has a leader", func() error {
		leader, err := a.API.Status().Leader()
		if err == nil && leader == "" {
			err = errors.New("no leader yet")
		}
		return err
	})
	if err != nil {
		return err
	}
	return a.bootstrap(ctx)
}

// WaitReady waits until the server leads and the node is ready.
func (a *Agent) WaitReady(ctx context.Context) error {
	if a.cfg.Join == nil {
		if err := a.waitLeader(ctx); err != nil {
			return err
		}
	}
	if a.cfg.ServerOnly {
		return nil
	}
	return a.poll(ctx, "the node "+a.Name+" is ready", func() error {
		nodes, _, err := a.servers().Nodes().List(nil)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if n.Name == a.Name {
				a.nodeID = n.ID
				if n.Status == api.NodeStatusReady {
					return nil
				}
				return fmt.Errorf("its status is %s", n.Status)
			}
		}
		return errors.New("it is not registered")
	})
}

// servers returns a client of the servers' API; client agents forward.
func (a *Agent) servers() *api.Client {
	if a.cfg.Join != nil {
		return a.cfg.Join.API
	}
	return a.API
}

// NodeID returns the node's ID, once the agent has been ready.
func (a *Agent) NodeID() string { return a.nodeID }

func (a *Agent) Node(ctx context.Context) (*api.Node, error) {
	node, _, err := a.servers().Nodes().Info(a.nodeID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("reading the node %s: %w", a.Name, err)
	}
	return node, nil
}

// WaitDriver waits for a driver's health on the node.
func (a *Agent) WaitDriver(ctx context.Context, driver string, healthy bool) (*api.DriverInfo, error) {
	var info *api.DriverInfo
	err := a.poll(ctx, fmt.Sprintf("the health of driver %s is %v", driver, healthy), func() error {
		node, err := a.Node(ctx)
		if err != nil {
			return err
		}
		info = node.Drivers[driver]
		if info == nil {
			return fmt.Errorf("the node has no driver %q; it has %s", driver, strings.Join(driverNames(node), ", "))
		}
		if info.Healthy != healthy {
			return fmt.Errorf("detected %v, healthy %v: %s", info.Detected, info.Healthy, info.HealthDescription)
		}
		return nil
	})
	return info, err
}

func driverNames(node *api.Node) []string {
	var names []string
	for name := range node.Drivers {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// Stop sends SIGTERM. Tasks keep running.
func (a *Agent) Stop(ctx context.Context) error { return a.end(ctx, unix.SIGTERM) }

// Kill sends SIGKILL, like a crash. The agent's plugins survive and detect it.
func (a *Agent) Kill(ctx context.Context) error { return a.end(ctx, unix.SIGKILL) }

func (a *Agent) end(ctx context.Context, sig unix.Signal) error {
	if err := a.proc.Signal(sig); err != nil {
		return err
	}
	return a.proc.Wait(ctx)
}

// Restart starts an agent that has exited, with the same directories.
func (a *Agent) Restart(ctx context.Context) error {
	if err := a.Launch(ctx); err != nil {
		return err
	}
	return a.WaitReady(ctx)
}

// Reconfigure restarts the agent with another plugin config.
func (a *Agent) Reconfigure(ctx context.Context, plugin string) error {
	if err := a.Stop(ctx); err != nil {
		return fmt.Errorf("stopping %s: %w", a.Name, err)
	}
	if err := a.Configure(plugin); err != nil {
		return err
	}
	if err := a.Restart(ctx); err != nil {
		return fmt.Errorf("restarting %s: %w", a.Name, err)
	}
	return nil
}

// WaitPolicy waits until the plugin is healthy with a policy and mode. Servers keep the node from
// before a restart, so it waits for a new registration.
func (a *Agent) WaitPolicy(ctx context.Context, policy, mode string) (node *api.Node, err error) {
	err = a.poll(ctx, "the plugin runs with policy "+policy+" and mode "+mode, func() error {
		self, err := a.API.Agent().Self()
		if err != nil {
			return err
		}
		if ttl, err := time.ParseDuration(self.Stats["client"]["heartbeat_ttl"]); err != nil || ttl <= 0 {
			return errors.New("no heartbeat yet")
		}
		if node, err = a.Node(ctx); err != nil {
			return err
		}
		if p, m := node.Attributes["driver.ebbtide.policy"], node.Attributes["driver.ebbtide.mode"]; p != policy || m != mode {
			return fmt.Errorf("the node says policy %q, mode %q", p, m)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	_, err = a.WaitDriver(ctx, "ebbtide", true)
	return node, err
}

// PluginPIDs lists a plugin's processes by file name, without executors and log helpers.
func (a *Agent) PluginPIDs(name string) []int {
	return a.running(name, func(argv []string) bool { return len(argv) == 1 })
}

// ExecutorPIDs lists a plugin's executors, one per exec task, including those of an earlier plugin
// process.
func (a *Agent) ExecutorPIDs(name string) []int {
	return a.running(name, func(argv []string) bool { return len(argv) > 1 && argv[1] == "executor" })
}

// running lists the run's processes of a plugin file by their command line.
func (a *Agent) running(name string, want func(argv []string) bool) []int {
	path := filepath.Join(a.Dir, "plugins", name)
	var pids []int
	for _, pid := range descendants(a.h.super.cmd.Process.Pid) {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err != nil || exe != path {
			continue
		}
		if want(strings.Fields(commandLine(pid))) {
			pids = append(pids, pid)
		}
	}
	sort.Ints(pids)
	return pids
}

// Log reads the log of the agent and its plugins.
func (a *Agent) Log() (string, error) {
	data, err := os.ReadFile(filepath.Join(a.Dir, "nomad.log"))
	return string(data), err
}

func (a *Agent) DataDir() string { return filepath.Join(a.Dir, "data") }

// AllocDir returns an allocation's directory on the host.
func (a *Agent) AllocDir(allocID string) string { return filepath.Join(a.DataDir(), "alloc", allocID) }

func (a *Agent) HostVolume(name string) string { return a.cfg.HostVolumes[name] }
