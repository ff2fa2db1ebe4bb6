// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/config"
	"github.com/ebbtide/ebbtide/shim/move"
)

// What Ebbtide is built with and recommends.
const (
	pluginFile = "ebbtide-driver"
	driverName = "ebbtide"
	dockerName = "docker"

	recommendedKillTimeout = 5 * time.Minute
	defaultEndpoint        = "unix:///var/run/docker.sock"
)

const blockHCL = `plugin "ebbtide-driver" {
  config {
    engine = "docker"
  }
}`

// install is one copy of Ebbtide that the agent runs or would run.
type install struct {
	file   string // its name in plugin_dir, and the plugin block's label
	found  bool   // the file exists
	exec   bool
	ours   bool // and is Ebbtide's binary
	listed bool // the configuration has its block
	config Block
}

// driver returns the driver name in jobs.
func (i install) driver() string {
	if i.file == dockerName {
		return dockerName
	}
	return driverName
}

// own returns Ebbtide's options, inner those of the decorated driver.
func (i install) own() Block {
	if i.file == dockerName {
		return i.config.block("ebbtide")
	}
	return i.config
}

func (i install) engine() string { return i.own().text("engine", config.EngineDocker) }

func (i install) inner() Block {
	if i.file == dockerName {
		return i.config
	}
	return i.config.block(i.engine())
}

// path shows an option of the decorated docker driver.
func (i install) path(option string) string {
	if i.file == dockerName {
		return option
	}
	return "docker." + option
}

// wrap returns the plugin block with an option of the decorated docker driver.
func (i install) wrap(body string) string {
	if i.file != dockerName {
		body = "docker {\n" + indent(body) + "\n}"
	}
	return fmt.Sprintf("plugin %q {\n  config {\n%s\n  }\n}", i.file, indent(indent(body)))
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(s, "\n", "\n  ")
}

// installs lists the copies of Ebbtide by file name.
func (s *Snapshot) installs() []install {
	found := make(map[string]install)
	cfg := s.config()
	if cfg != nil {
		for name, block := range cfg.Plugins {
			if name == pluginFile || name == driverName || name == dockerName && len(block.block("ebbtide")) > 0 {
				found[name] = install{file: name, listed: true, config: block}
			}
		}
	}
	if s.Host != nil {
		for _, f := range s.Host.Plugins {
			i, known := found[f.Name]
			if !f.Ours && !known {
				continue
			}
			i.file, i.found, i.exec, i.ours = f.Name, true, f.Executable, f.Ours
			if cfg != nil {
				i.config, i.listed = cfg.Plugins[f.Name], hasKey(cfg.Plugins, f.Name)
			}
			found[f.Name] = i
		}
	}
	out := make([]install, 0, len(found))
	for _, name := range sorted(found) {
		out = append(out, found[name])
	}
	return out
}

func hasKey[V any](m map[string]V, key string) bool {
	_, ok := m[key]
	return ok
}

// onNode returns the driver's name on the node and its attributes without their prefix; nil if
// there is none.
func (s *Snapshot) onNode() (name string, attrs map[string]string) {
	if s.API.Node == nil {
		return "", nil
	}
	for _, at := range []struct{ name, prefix string }{
		{driverName, "driver.ebbtide."}, {dockerName, "driver.docker.ebbtide."},
	} {
		found := make(map[string]string)
		for key, value := range s.API.Node.Attributes {
			if rest, ok := strings.CutPrefix(key, at.prefix); ok {
				found[rest] = clean(value)
			}
		}
		if found["version"] != "" {
			return at.name, found
		}
	}
	return "", nil
}

// engine returns the engine in use, "" if unknown.
func (s *Snapshot) engine() string {
	for _, i := range s.installs() {
		return i.engine()
	}
	_, attrs := s.onNode()
	return attrs["engine"]
}

// Examine evaluates a snapshot. It is pure.
func Examine(s *Snapshot) []Finding {
	var out []Finding
	for _, check := range []func(*Snapshot) []Finding{
		checkConfig, checkAPI, checkRunningConfig, checkVersion, checkRoot, checkCgroups,
		checkPlugin, checkOptions, checkDriver, checkReaper, checkStockOptions,
		checkDocker, checkLiveRestore, checkGC, checkMetrics, checkKillTimeout, checkDisk,
		checkAlgorithm, checkCards, checkBound,
	} {
		out = append(out, check(s)...)
	}
	return out
}

func Failed(findings []Finding) bool {
	return slices.ContainsFunc(findings, func(f Finding) bool { return f.Status == Fail })
}

func one(name string, status Status, seen, do, add string) []Finding {
	return []Finding{{Name: name, Status: status, Seen: seen, Do: do, Add: add}}
}

func okay(name, format string, args ...any) []Finding {
	return one(name, OK, fmt.Sprintf(format, args...), "", "")
}

func skipped(name, why string) []Finding { return one(name, Skip, why, "", "") }

const noConfig = "the agent's configuration is unknown: give it with -config, or an agent that responds with -address"

func checkConfig(s *Snapshot) []Finding {
	const name = "configuration"
	switch cfg := s.config(); {
	case s.FilesErr != nil:
		return one(name, Fail, clean(s.FilesErr.Error()), "fix the file; see `nomad config validate`", "")
	case cfg == nil:
		return skipped(name, noConfig)
	case s.Files == nil:
		return okay(name, "from the running agent")
	case !cfg.ClientEnabled:
		return one(name, Warn, strings.Join(s.Paths, ", ")+": not a client, so it runs no tasks (unless started with -client or -dev)",
			"give all of the agent's files; a client has", "client {\n  enabled = true\n}")
	default:
		return okay(name, "%s", clean(strings.Join(s.Paths, ", ")))
	}
}

const aclHCL = `agent {
  policy = "read"
}
node {
  policy = "read"
}
operator {
  policy = "read"
}`

func checkAPI(s *Snapshot) []Finding {
	const name = "api"
	a := s.API
	switch {
	case a.Denied:
		return one(name, Warn, a.Address+": the agent rejects the token",
			"set NOMAD_TOKEN to a token with this policy", aclHCL)
	case a.Err != nil && a.Asked:
		return one(name, Fail, a.Address+": "+clean(a.Err.Error()),
			"start the agent, or correct -address or NOMAD_ADDR; with TLS set NOMAD_CACERT, NOMAD_CLIENT_CERT and NOMAD_CLIENT_KEY", "")
	case a.Err != nil:
		return skipped(name, a.Address+" (from the configuration): "+clean(a.Err.Error())+"; give another with -address")
	case a.NodeErr != nil && a.NodeDenied:
		return one(name, Warn, a.Address+": responds, but the token cannot read the node",
			"set NOMAD_TOKEN to a token with this policy", aclHCL)
	case a.NodeErr != nil:
		return one(name, Warn, a.Address+": responds, but the node cannot be read: "+clean(a.NodeErr.Error()),
			"wait until the node is registered (half a minute after the first start), or check the agent's log", "")
	case a.Node == nil:
		return one(name, Warn, a.Address+": responds, but is not a client, so it runs no tasks", "give the address of a client with -address", "")
	default:
		return okay(name, "%s responds", a.Address)
	}
}

// checkRunningConfig compares the files with the running configuration.
func checkRunningConfig(s *Snapshot) []Finding {
	const name = "configuration in force"
	if s.Files == nil || s.API.Config == nil {
		return nil
	}
	f, a := s.Files, s.API.Config
	var differ []string
	diff := func(what string, same bool) {
		if !same {
			differ = append(differ, what)
		}
	}
	diff("plugin_dir", f.PluginDir == a.PluginDir || f.PluginDir == "")
	diff("client.max_kill_timeout", f.MaxKillTimeout == a.MaxKillTimeout)
	diff("telemetry.publish_allocation_metrics", f.PublishAllocationMetrics == a.PublishAllocationMetrics)
	options := true
	for key, value := range f.Options {
		options = options && a.Options[key] == value
	}
	diff("client.options", options)
	names := maps.Clone(f.Plugins)
	if names == nil {
		names = make(map[string]Block)
	}
	maps.Copy(names, a.Plugins)
	for _, p := range sorted(names) {
		there := hasKey(f.Plugins, p) == hasKey(a.Plugins, p)
		diff(fmt.Sprintf("plugin %q", clean(p)), there && reflect.DeepEqual(canonical(f.Plugins[p]), canonical(a.Plugins[p])))
	}
	if len(differ) > 0 {
		return one(name, Warn, "the running agent's configuration differs from the files: "+strings.Join(differ, ", "),
			"restart the agent, or give all of its files with -config, in the agent's order; findings on configuration refer to the files", "")
	}
	return okay(name, "the agent runs with these files")
}

// canonical makes configs from files and from the API comparable.
func canonical(b Block) any {
	data, err := json.Marshal(b)
	if err != nil {
		return nil
	}
	var v any
	_ = json.Unmarshal(data, &v) // just marshalled
	if m, ok := v.(map[string]any); ok && len(m) == 0 {
		return nil
	}
	return v
}

func checkRoot(s *Snapshot) []Finding {
	const name = "root"
	if s.Host == nil {
		return skipped(name, s.HostSkipped)
	}
	var roots, others []string
	for _, p := range s.Host.Agents {
		if p.UID == 0 {
			roots = append(roots, strconv.Itoa(p.PID))
		} else {
			others = append(others, fmt.Sprintf("%d (user %d)", p.PID, p.UID))
		}
	}
	switch {
	case len(others) > 0:
		return one(name, Fail, "an agent on this machine does not run as root: process "+strings.Join(others, ", "),
			"run the client's agent as root, as the docker and exec drivers need it (systemd: no User= in nomad.service)", "")
	case len(roots) > 0:
		return okay(name, "the agent runs as root (process %s)", strings.Join(roots, ", "))
	default:
		return skipped(name, "no agent runs on this machine")
	}
}

func checkCgroups(s *Snapshot) []Finding {
	const name = "cgroups"
	if s.Host == nil {
		return skipped(name, s.HostSkipped)
	}
	if s.Host.CgroupsErr != nil {
		return one(name, Warn, clean(s.Host.CgroupsErr.Error()), "check that /proc is mounted", "")
	}
	var without []string
	for _, m := range s.Host.Cgroups {
		switch {
		case !slices.Contains(m.Controllers, "cpu"):
			if m.Version == 2 {
				without = append(without, m.Path)
			}
		case m.ReadOnly:
			return one(name, Fail, fmt.Sprintf("version %d at %s, mounted read-only, so limits cannot be set", m.Version, m.Path),
				"run the agent on the host, or mount the cgroups writable in its container", "")
		default:
			return okay(name, "version %d, the cpu controller is at %s", m.Version, m.Path)
		}
	}
	if len(without) > 0 {
		return one(name, Fail, "version 2 at "+strings.Join(without, ", ")+", without the cpu controller",
			"remove cgroup_disable=cpu from the kernel's command line, or delegate the controller to the agent's container", "")
	}
	return one(name, Fail, "no cgroups with a cpu controller are mounted", "mount them, as systemd does at boot", "mount -t cgroup2 none /sys/fs/cgroup")
}

func checkPlugin(s *Snapshot) []Finding {
	const name = "plugin"
	cfg := s.config()
	if cfg == nil {
		return skipped(name, noConfig)
	}
	dir := cfg.PluginDir
	if dir == "" {
		return one(name, Fail, "neither plugin_dir nor data_dir is set", "add to the agent's configuration", `plugin_dir = "/opt/nomad/plugins"`)
	}
	installs := s.installs()
	put := fmt.Sprintf("install -D -m 0755 bin/%s %s", pluginFile, filepath.Join(dir, pluginFile))
	if s.Host == nil || s.Host.PluginsErr != nil {
		why := s.HostSkipped
		if s.Host != nil {
			why = clean(s.Host.PluginsErr.Error())
			if len(installs) == 0 || s.Host.Root {
				return one(name, Fail, why, "create the directory, install the plugin there, and restart the agent", put)
			}
		}
		if len(installs) == 0 {
			return one(name, Fail, "the agent's configuration has no plugin block for Ebbtide", "add to the agent's configuration", blockHCL)
		}
		return skipped(name, fmt.Sprintf("plugin %q is configured; its file in %s was not checked: %s", clean(installs[0].file), dir, why))
	}
	if len(installs) == 0 {
		return one(name, Fail, fmt.Sprintf("no Ebbtide in %s, and no plugin block for it", dir),
			"install the package and run `ebbtide setup`; or by hand: run `"+put+"`, add to the agent's configuration, and restart the agent", blockHCL)
	}

	var out []Finding
	for _, i := range installs {
		file := filepath.Join(dir, clean(i.file))
		block := strings.Replace(blockHCL, pluginFile, clean(i.file), 1)
		if i.file == dockerName {
			block = "plugin \"docker\" {\n  config {\n    ebbtide {\n      policy = \"flowcon\"\n    }\n  }\n}"
		}
		switch {
		case !i.found:
			out = append(out, one(name, Fail, fmt.Sprintf("the configuration has the block plugin %q, but the file %s does not exist", clean(i.file), file),
				"install the plugin there (file and block must have the same name) and restart the agent",
				fmt.Sprintf("install -D -m 0755 bin/%s %s", pluginFile, file))...)
		case !i.exec:
			out = append(out, one(name, Fail, file+" is not executable, so Nomad ignores it", "run this, and restart the agent", "chmod 0755 "+file)...)
		case !i.listed:
			out = append(out, one(name, Fail, fmt.Sprintf("%s exists, but the configuration has no block plugin %q, so Nomad ignores it", file, clean(i.file)),
				"run `ebbtide setup`, or add to the agent's configuration; then restart the agent", block)...)
		case !i.ours:
			out = append(out, one(name, Warn, file+" is configured, but is not a build of Ebbtide's plugin",
				"install a build for this machine", fmt.Sprintf("install -D -m 0755 bin/%s %s", pluginFile, file))...)
		default:
			out = append(out, okay(name, "%s, with its block plugin %q", file, clean(i.file))...)
		}
	}
	if slices.ContainsFunc(installs, func(i install) bool { return i.found && i.file != installs[0].file }) && installs[0].found {
		out = append(out, one(name, Fail, "Ebbtide is installed under several names: each copy would manage the same CPU and remove the others' containers",
			"keep one of the files and its plugin block", "")...)
	}
	return out
}

func checkOptions(s *Snapshot) []Finding {
	const name = "plugin options"
	var out []Finding
	for _, i := range s.installs() {
		if !i.listed {
			continue
		}
		blocks := config.Engines()
		if i.file == dockerName {
			blocks = nil
		}
		wrong := WrongOptions(i.own(), blocks...)
		if i.file == dockerName && i.engine() != config.EngineDocker {
			wrong = append(wrong, `engine: must be "docker" when the plugin is installed as "docker"`)
		}
		for _, w := range wrong {
			out = append(out, one(name, Fail, fmt.Sprintf("plugin %q: %s", clean(i.file), w),
				"correct it, as the agent does not start with it; see docs/reference.md", "")...)
		}
		if len(wrong) == 0 {
			var set []string
			for _, option := range i.own().names() {
				if known(option) {
					set = append(set, option+" = "+quote(i.own()[option]))
				}
			}
			if set == nil {
				set = []string{"all have defaults"}
			}
			out = append(out, okay(name, "%s", strings.Join(set, ", "))...)
		}
	}
	return out
}

// denied returns the client option that forbids a driver, "" if none does.
func denied(options map[string]string, driver string) (by string) {
	list := func(keys ...string) (string, []string) {
		for _, key := range keys {
			if text, ok := options[key]; ok {
				var names []string
				for part := range strings.SplitSeq(text, ",") {
					if part = strings.TrimSpace(part); part != "" {
						names = append(names, part)
					}
				}
				return key, names
			}
		}
		return "", nil
	}
	if key, names := list("driver.denylist", "driver.blacklist"); slices.Contains(names, driver) {
		return key
	}
	if key, names := list("driver.allowlist", "driver.whitelist"); len(names) > 0 && !slices.Contains(names, driver) {
		return key
	}
	return ""
}

func checkDriver(s *Snapshot) []Finding {
	const name = "driver"
	want := driverName
	if installs := s.installs(); len(installs) > 0 {
		want = installs[0].driver()
	}
	if cfg := s.config(); cfg != nil {
		if by := denied(cfg.Options, want); by != "" {
			return one(name, Fail, fmt.Sprintf("client.options %q disables the driver %q, which is Ebbtide", by, want),
				"remove it from the deny list, or add it to the allow list, and restart the agent", "")
		}
	}
	if s.API.Node == nil {
		return skipped(name, "the node is unknown: see api")
	}
	got, attrs := s.onNode()
	info := s.API.Node.Drivers[want]
	switch {
	case got != "" && got != want && len(s.installs()) > 0:
		return one(name, Warn, fmt.Sprintf("runs as %q on the node, but is configured to run as %q", got, want),
			"wait a minute after the agent's start, until the node has re-registered; else restart the agent", "")
	case got == "" && want == dockerName && info.Detected:
		return one(name, Fail, `the node's driver "docker" is Nomad's own, not Ebbtide`,
			"restart the agent, and search its log for \"plugin\"", "")
	case got == "" && info.Description != "":
		return one(name, Fail, fmt.Sprintf("%q is not detected on the node: %s", want, clean(info.Description)),
			"see the finding on the engine; Nomad checks again every 30 seconds", "")
	case got == "":
		return one(name, Fail, fmt.Sprintf("the node has no driver %q", want),
			"see the findings above, and restart the agent, and search its log for \"plugin\"", "")
	}
	info = s.API.Node.Drivers[got]
	if !info.Detected || !info.Healthy {
		return one(name, Fail, fmt.Sprintf("%q is not healthy on the node: %s", got, clean(info.Description)),
			"see the findings on the engine, and search the agent's log for \"ebbtide\"", "")
	}
	pool := attrs["pool_cores"]
	if x, err := strconv.ParseFloat(pool, 64); err == nil {
		pool = strconv.FormatFloat(x, 'g', 4, 64)
	}
	return okay(name, "%q is healthy on the node: engine %s, policy %s, mode %s, estimator %s, a pool of %s cores, version %s",
		got, attrs["engine"], attrs["policy"], attrs["mode"], attrs["estimator"], pool, attrs["version"])
}

func endpoint(b Block) string {
	e := b.text("endpoint", "")
	if e == "" || e == "unix:///run/docker.sock" {
		return defaultEndpoint
	}
	return e
}

// checkReaper detects a stock docker driver that removes Ebbtide's containers.
func checkReaper(s *Snapshot) []Finding {
	const name = "reaper"
	const off = "the reaper of the stock docker driver"
	installs := s.installs()
	runs, _ := s.onNode()
	cfg := s.config()
	switch engine := s.engine(); {
	case engine == config.EngineExec:
		return okay(name, "engine exec has no containers for the stock docker driver to remove")
	case engine == "" && cfg == nil:
		return skipped(name, noConfig)
	case engine == "":
		return skipped(name, "Ebbtide is not installed")
	case len(installs) > 0 && installs[0].file == dockerName, len(installs) == 0 && runs == dockerName:
		return okay(name, "Ebbtide replaces the stock docker driver")
	case cfg == nil:
		return one(name, Warn, "cannot check "+off+": "+noConfig, "see docs/operations.md on the reaper", "")
	}
	stock := cfg.Plugins[dockerName]
	reaper := stock.block("gc").block("dangling_containers")
	by := denied(cfg.Options, dockerName)
	var inner Block
	if len(installs) > 0 {
		inner = installs[0].inner()
	}
	switch {
	case by != "":
		return okay(name, "the stock docker driver is disabled by client.options %q", by)
	case !reaper.flag("enabled", true):
		return okay(name, "%s is off", off)
	case reaper.flag("dry_run", false):
		return okay(name, "%s only logs (dry_run)", off)
	case endpoint(stock) != endpoint(inner):
		return okay(name, "the stock docker driver uses another Docker daemon")
	}
	return one(name, Fail, off+" is on: it removes Ebbtide's containers after about five minutes",
		"apply one of the three, and restart the agent", reaperHCL)
}

const reaperHCL = `# 1. disable the reaper (in the config of an existing plugin "docker")
plugin "docker" {
  config {
    gc {
      dangling_containers {
        enabled = false
      }
    }
  }
}

# 2. or disable the stock driver
client {
  options = {
    "driver.denylist" = "docker"
  }
}

# 3. or install Ebbtide's binary under the name "docker", and replace
#    the block plugin "ebbtide-driver"
plugin "docker" {
  config {
    ebbtide {
      policy = "auto"
    }
  }
}`

// checkStockOptions lists options of the stock docker driver that Ebbtide's block lacks, by
// name only, as values may be secret.
func checkStockOptions(s *Snapshot) []Finding {
	const name = "docker options"
	cfg, installs := s.config(), s.installs()
	if cfg == nil || len(installs) == 0 || s.engine() != config.EngineDocker || installs[0].file == dockerName {
		return nil
	}
	inner := installs[0].inner()
	var missing []string
	for _, option := range cfg.Plugins[dockerName].names() {
		if option != "gc" && !hasKey(inner, option) {
			missing = append(missing, clean(option))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return one(name, Warn, fmt.Sprintf("set for the stock docker driver, but not for Ebbtide, which ignores that block: %s", strings.Join(missing, ", ")),
		"repeat those that jobs need in the docker block", installs[0].wrap("# "+strings.Join(missing, ", ")+", as in plugin \"docker\""))
}

func checkDocker(s *Snapshot) []Finding {
	const name = "docker"
	switch {
	case s.engine() == config.EngineExec:
		return skipped(name, "engine exec needs no Docker")
	case s.Host == nil:
		return skipped(name, s.HostSkipped)
	case s.config() == nil:
		return skipped(name, noConfig)
	case s.Host.Docker == nil:
		return skipped(name, "not checked: Ebbtide is not installed")
	}
	d := s.Host.Docker
	switch {
	case d.Denied:
		return one(name, Warn, d.Endpoint+": permission denied", "run doctor as root", "")
	case d.Err != nil:
		at := install{file: pluginFile}
		if installs := s.installs(); len(installs) > 0 {
			at = installs[0]
		}
		return one(name, Fail, d.Endpoint+": "+clean(d.Err.Error()),
			"start Docker (`systemctl start docker`; `systemctl restart docker` if it hangs), or set its endpoint", at.wrap(`endpoint = "unix:///var/run/docker.sock"`))
	}
	out := okay(name, "%s responds: Docker %s, cgroup version %s, cgroup driver %s", d.Endpoint, clean(d.Version), clean(d.CgroupVersion), clean(d.CgroupDriver))
	if d.Rootless {
		out = append(out, one(name, Fail, "the daemon is rootless, which Nomad's docker driver and Ebbtide's limits do not support", "use a daemon that runs as root", "")...)
	}
	if !d.CPUShares || !d.CPUQuota {
		out = append(out, one(name, Fail, "the daemon cannot set CPU shares or quotas: the kernel lacks them, or the cpu controller is disabled", "see cgroups", "")...)
	}
	return out
}

func checkLiveRestore(s *Snapshot) []Finding {
	const name = "live-restore"
	if s.Host == nil || s.Host.Docker == nil || s.Host.Docker.Err != nil || s.engine() == config.EngineExec {
		return nil
	}
	if s.Host.Docker.LiveRestore {
		return okay(name, "on: containers keep running when Docker restarts")
	}
	return one(name, Warn, "off: a restart of Docker stops all containers; jobs restart by their restart policy, from their last checkpoint",
		"add to /etc/docker/daemon.json and run `systemctl reload docker`", "{\n  \"live-restore\": true\n}")
}

func checkGC(s *Snapshot) []Finding {
	const name = "clean-up"
	installs := s.installs()
	if len(installs) == 0 || !installs[0].listed || s.engine() != config.EngineDocker {
		return nil
	}
	i := installs[0]
	gc := i.inner().block("gc")
	delay, err := time.ParseDuration(gc.text("image_delay", "3m"))
	switch {
	case err != nil || delay < 0:
		return one(name, Fail, fmt.Sprintf("%s: must be a duration, got %s", i.path("gc.image_delay"), quote(gc["image_delay"])),
			"correct it, as the agent does not start with it", i.wrap("gc {\n  image_delay = \"3m\"\n}"))
	case !gc.flag("container", true):
		return one(name, Warn, i.path("gc.container")+" = false: containers of ended tasks stay on the disk",
			"unless you need them, remove the option", i.wrap("gc {\n  container = true\n}"))
	case gc.flag("image", true):
		return okay(name, "images are removed %s after their last task; set %s = false for images that are in no registry",
			delay, i.path("gc.image"))
	default:
		return okay(name, "images are kept (%s = false)", i.path("gc.image"))
	}
}

func checkMetrics(s *Snapshot) []Finding {
	const name = "allocation metrics"
	cfg := s.config()
	switch {
	case cfg == nil:
		return skipped(name, noConfig)
	case cfg.PublishAllocationMetrics:
		return okay(name, "published")
	default:
		return one(name, Warn, "not published, so the UI's charts of CPU and memory stay empty",
			"add to the agent's configuration, and restart the agent", "telemetry {\n  publish_allocation_metrics = true\n}")
	}
}

func checkKillTimeout(s *Snapshot) []Finding {
	const name = "max_kill_timeout"
	cfg := s.config()
	if cfg == nil {
		return skipped(name, noConfig)
	}
	do, add := "add to the agent's configuration, and restart the agent", "client {\n  max_kill_timeout = \"5m\"\n}"
	d, err := time.ParseDuration(cfg.MaxKillTimeout)
	switch {
	case err != nil:
		return one(name, Fail, fmt.Sprintf("must be a duration, got %q", clean(cfg.MaxKillTimeout)), do, add)
	case d < recommendedKillTimeout:
		return one(name, Warn, fmt.Sprintf("%s: a stopped trainer has at most this long to save, even with a longer kill_timeout", d), do, add)
	default:
		return okay(name, "%s", d)
	}
}

// checkDisk checks whether the client keeps what ended allocations leave.
func checkDisk(s *Snapshot) []Finding {
	const name = "garbage collection"
	d := s.API.Disk
	if d == nil {
		return skipped(name, "the use of the node's disk is unknown: give an agent that responds with -address")
	}
	l, usual := d.Limits, move.DefaultGCLimits
	limits := fmt.Sprintf("gc_disk_usage_threshold %g, gc_inode_usage_threshold %g, gc_max_allocs %d", l.Disk, l.Inodes, l.Allocs)
	switch why := cmp.Or(d.Collects(0), d.Crowded()); {
	case why != "":
		return one(name, Warn, why+": the client deletes an allocation with its checkpoint once it has ended, so moves from here are refused, and a replacement may start over",
			"free space, or raise the limit in the agent's configuration and restart the agent", "")
	case l.Disk < usual.Disk || l.Inodes < usual.Inodes || l.Allocs < usual.Allocs:
		return one(name, Warn, limits+": a shim that cannot read these (agent:read, certificates) assumes Nomad's defaults, and may move a job whose checkpoint is then deleted",
			"let the shim read them, or raise them to Nomad's defaults", "")
	default:
		return okay(name, "%s", limits)
	}
}

// checkAlgorithm has no findings on a lone node, where nothing is to choose.
func checkAlgorithm(s *Snapshot) []Finding {
	const name = "scheduler algorithm"
	switch a := s.API; {
	case !a.Others:
		return nil
	case a.Algorithm == "":
		return skipped(name, "unknown: it needs a token with operator { policy = \"read\" }")
	case a.Algorithm == string(api.SchedulerAlgorithmBinpack):
		return one(name, Warn, "binpack, Nomad's default: jobs share a node while others are idle, and the driver divides one node only",
			"unless free nodes are needed for large jobs, run `nomad operator scheduler set-config -scheduler-algorithm spread` once (with a node pool that has its own: in its scheduler_config)", "")
	default:
		return okay(name, "%s", clean(a.Algorithm))
	}
}

// gpuFile is the device plugin's name.
const gpuFile = "ebbtide-gpu"

// checkCards has no findings without shared GPUs.
func checkCards(s *Snapshot) []Finding {
	const name = "shared GPUs"
	cfg := s.config()
	listed := cfg != nil && hasKey(cfg.Plugins, gpuFile)
	if s.API.Node == nil {
		if listed {
			return skipped(name, "the node is unknown: give an agent that responds with -address")
		}
		return nil
	}
	if len(s.API.Node.Cards) == 0 {
		if listed {
			return one(name, Warn, "the agent has the plugin "+gpuFile+", but the node has no card", "search the agent's log for "+gpuFile, "")
		}
		return nil
	}
	var out []Finding
	for _, c := range s.API.Node.Cards {
		switch {
		case c.Unhealthy != "":
			out = append(out, one(name, Warn, c.Name+" is unhealthy: "+c.Unhealthy, "", "")...)
		case !c.Shared:
			out = append(out, one(name, Warn, c.Name+" is assigned without a gate, so shares are not enforced", "search the agent's log for "+gpuFile, "")...)
		case !c.Parking:
			out = append(out, one(name, Warn, fmt.Sprintf("%s: %d seats; containers are not parked (%s), and the plugin has over_share = %q", c.Name, c.Seats, cmp.Or(c.NotParked, "unknown why"), c.OverShare),
				"see docs/gpu.md: parking needs NVIDIA's driver 575.57 or later, and tests on this card", "")...)
		default:
			out = append(out, okay(name, "%s: %d seats, containers can be parked", c.Name, c.Seats)...)
		}
		if c.Persistence == "Disabled" {
			out = append(out, one(name, Warn, c.Name+": persistence mode is off, so that the driver unloads whenever no process uses the card", "run `nvidia-smi -pm 1`, or NVIDIA's persistence daemon", "")...)
		}
	}
	return out
}

// checkBound has no findings without bound jobs.
func checkBound(s *Snapshot) []Finding {
	var out []Finding
	for _, job := range s.API.Bound {
		out = append(out, one("moves", Warn, job+" is bound to a node for a move",
			"run ebbtide moves to see if the move is in progress; if not, ebbtide moves -recover unbinds the job", "")...)
	}
	return out
}
