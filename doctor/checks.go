// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/config"
)

// What Ebbtide was built with and recommends.
const (
	nomadSeries = "1.11" // of Nomad, whose drivers are linked into the plugin
	pluginFile  = "ebbtide-driver"
	driverName  = "ebbtide"
	dockerName  = "docker"

	recommendedKillTimeout = 5 * time.Minute
	defaultEndpoint        = "unix:///var/run/docker.sock"
)

const blockHCL = `plugin "ebbtide-driver" {
  config {
    engine = "docker"
  }
}`

// install is one copy of Ebbtide that the agent runs, or would run.
type install struct {
	file   string // its name in plugin_dir, which is the plugin block's label
	found  bool   // the file is there
	exec   bool   // and executable
	ours   bool   // and recognised as Ebbtide's
	listed bool   // the agent's configuration has its block
	config Block
}

// driver is the name under which jobs ask for it.
func (i install) driver() string {
	if i.file == dockerName {
		return dockerName
	}
	return driverName
}

// own are Ebbtide's own options, inner those of the decorated driver.
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

// path of an option of the decorated docker driver, for people.
func (i install) path(option string) string {
	if i.file == dockerName {
		return option
	}
	return "docker." + option
}

// wrap puts an option of the decorated docker driver into its plugin block.
func (i install) wrap(body string) string {
	if i.file != dockerName {
		body = "docker {\n" + indent(body) + "\n}"
	}
	return fmt.Sprintf("plugin %q {\n  config {\n%s\n  }\n}", i.file, indent(indent(body)))
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(s, "\n", "\n  ")
}

// installs lists the copies of Ebbtide, by file name.
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

// node returns the attributes that Ebbtide gives the node, without their prefix,
// and the driver's name there; nil when it is not there.
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

// engine is the engine in use, "" when nothing says.
func (s *Snapshot) engine() string {
	for _, i := range s.installs() {
		return i.engine()
	}
	_, attrs := s.onNode()
	return attrs["engine"]
}

// Examine judges a snapshot. It is pure.
func Examine(s *Snapshot) []Finding {
	var out []Finding
	for _, check := range []func(*Snapshot) []Finding{
		checkConfig, checkAPI, checkInForce, checkVersion, checkRoot, checkCgroups,
		checkPlugin, checkOptions, checkDriver, checkReaper, checkStockOptions,
		checkDocker, checkLiveRestore, checkGC, checkMetrics, checkKillTimeout,
		checkCards, checkBound,
	} {
		out = append(out, check(s)...)
	}
	return out
}

// Failed says whether a finding fails.
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

const noConfig = "the agent's configuration is not known: name it with -config, or let -address answer"

func checkConfig(s *Snapshot) []Finding {
	const name = "configuration"
	switch cfg := s.config(); {
	case s.FilesErr != nil:
		return one(name, Fail, clean(s.FilesErr.Error()), "mend the file; `nomad config validate` says more", "")
	case cfg == nil:
		return skipped(name, noConfig)
	case s.Files == nil:
		return okay(name, "from the running agent")
	case !cfg.ClientEnabled:
		return one(name, Warn, strings.Join(s.Paths, ", ")+": not a client, it runs no tasks (unless it is started with -client or -dev)",
			"name all of the agent's files; a client has", "client {\n  enabled = true\n}")
	default:
		return okay(name, "%s", clean(strings.Join(s.Paths, ", ")))
	}
}

const aclHCL = `agent {
  policy = "read"
}
node {
  policy = "read"
}`

func checkAPI(s *Snapshot) []Finding {
	const name = "api"
	a := s.API
	switch {
	case a.Denied:
		return one(name, Warn, a.Address+": the agent does not let this token in",
			"set NOMAD_TOKEN to a token with this policy", aclHCL)
	case a.Err != nil && a.Asked:
		return one(name, Fail, a.Address+": "+clean(a.Err.Error()),
			"start the agent, or correct -address or NOMAD_ADDR; for TLS set NOMAD_CACERT, NOMAD_CLIENT_CERT and NOMAD_CLIENT_KEY", "")
	case a.Err != nil:
		return skipped(name, a.Address+" (from the configuration): "+clean(a.Err.Error())+"; name another with -address")
	case a.NodeErr != nil && a.NodeDenied:
		return one(name, Warn, a.Address+": answers, but does not let this token read the node's record",
			"set NOMAD_TOKEN to a token with this policy", aclHCL)
	case a.NodeErr != nil:
		return one(name, Warn, a.Address+": answers, but the node's record cannot be read: "+clean(a.NodeErr.Error()),
			"wait until the node is registered (half a minute after the first start), or see why it is not in the agent's log", "")
	case a.Node == nil:
		return one(name, Warn, a.Address+": answers, but is not a client: it runs no tasks", "name the address of a client with -address", "")
	default:
		return okay(name, "%s answers", a.Address)
	}
}

// checkInForce compares the files with what the agent runs with.
func checkInForce(s *Snapshot) []Finding {
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
		return one(name, Warn, "the files are not what the agent runs with: "+strings.Join(differ, ", ")+" differ",
			"restart the agent, or name all of its files with -config, in the agent's order; the findings on configuration are about the files", "")
	}
	return okay(name, "the agent runs with these files")
}

// canonical makes a plugin's config from a file comparable with one from the API.
func canonical(b Block) any {
	data, err := json.Marshal(b)
	if err != nil {
		return nil
	}
	var v any
	_ = json.Unmarshal(data, &v) // it was made a moment ago
	if m, ok := v.(map[string]any); ok && len(m) == 0 {
		return nil
	}
	return v
}

func checkVersion(s *Snapshot) []Finding {
	const name = "nomad version"
	v := s.API.Version
	if v == "" && s.API.Node != nil {
		v = s.API.Node.Attributes["nomad.version"]
	}
	v = clean(v)
	switch {
	case v == "":
		return skipped(name, "unknown: the agent was not asked")
	case v == nomadSeries || strings.HasPrefix(v, nomadSeries+"."):
		return okay(name, "%s", v)
	default:
		return one(name, Warn, fmt.Sprintf("%s; Ebbtide was built with and tried on %s", v, nomadSeries),
			"try a job on one node before you install it on more, or use Nomad "+nomadSeries, "")
	}
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
		return skipped(name, "no running agent was found on this machine")
	}
}

func checkCgroups(s *Snapshot) []Finding {
	const name = "cgroups"
	if s.Host == nil {
		return skipped(name, s.HostSkipped)
	}
	if s.Host.CgroupsErr != nil {
		return one(name, Warn, clean(s.Host.CgroupsErr.Error()), "see whether /proc is mounted", "")
	}
	var without []string
	for _, m := range s.Host.Cgroups {
		switch {
		case !slices.Contains(m.Controllers, "cpu"):
			if m.Version == 2 {
				without = append(without, m.Path)
			}
		case m.ReadOnly:
			return one(name, Fail, fmt.Sprintf("version %d at %s, mounted read-only: limits cannot be set", m.Version, m.Path),
				"run the agent on the host, or mount the cgroups writable in its container", "")
		default:
			return okay(name, "version %d, the cpu controller is at %s", m.Version, m.Path)
		}
	}
	if len(without) > 0 {
		return one(name, Fail, "version 2 at "+strings.Join(without, ", ")+", without the cpu controller",
			"take cgroup_disable=cpu off the kernel's command line, or give the controller to the container that the agent runs in", "")
	}
	return one(name, Fail, "no cgroups with a cpu controller are mounted", "mount them; systemd does so at boot", "mount -t cgroup2 none /sys/fs/cgroup")
}

func checkPlugin(s *Snapshot) []Finding {
	const name = "plugin"
	cfg := s.config()
	if cfg == nil {
		return skipped(name, noConfig)
	}
	dir := cfg.PluginDir
	if dir == "" {
		return one(name, Fail, "plugin_dir is not set, nor data_dir", "add to the agent's configuration", `plugin_dir = "/opt/nomad/plugins"`)
	}
	installs := s.installs()
	put := fmt.Sprintf("install -D -m 0755 bin/%s %s", pluginFile, filepath.Join(dir, pluginFile))
	if s.Host == nil || s.Host.PluginsErr != nil {
		why := s.HostSkipped
		if s.Host != nil {
			why = clean(s.Host.PluginsErr.Error())
			if len(installs) == 0 || s.Host.Root {
				return one(name, Fail, why, "make the directory and put the plugin there, then restart the agent", put)
			}
		}
		if len(installs) == 0 {
			return one(name, Fail, "the agent's configuration has no plugin block for Ebbtide", "add to the agent's configuration", blockHCL)
		}
		return skipped(name, fmt.Sprintf("plugin %q is configured; the file in %s was not looked at: %s", clean(installs[0].file), dir, why))
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
			out = append(out, one(name, Fail, fmt.Sprintf("the configuration has a block plugin %q, but there is no file %s", clean(i.file), file),
				"put the plugin there (the file's name and the block's must be the same) and restart the agent",
				fmt.Sprintf("install -D -m 0755 bin/%s %s", pluginFile, file))...)
		case !i.exec:
			out = append(out, one(name, Fail, file+" is not executable: Nomad ignores it", "run this, and restart the agent", "chmod 0755 "+file)...)
		case !i.listed:
			out = append(out, one(name, Fail, fmt.Sprintf("%s is there, but the configuration has no block plugin %q: Nomad ignores it", file, clean(i.file)),
				"run `ebbtide setup`, or add to the agent's configuration; then restart the agent", block)...)
		case !i.ours:
			out = append(out, one(name, Warn, file+" is configured, but does not look like Ebbtide's plugin",
				"copy it again from a build for this machine", fmt.Sprintf("install -D -m 0755 bin/%s %s", pluginFile, file))...)
		default:
			out = append(out, okay(name, "%s, with its block plugin %q", file, clean(i.file))...)
		}
	}
	if slices.ContainsFunc(installs, func(i install) bool { return i.found && i.file != installs[0].file }) && installs[0].found {
		out = append(out, one(name, Fail, "Ebbtide is installed under more than one name: each copy would divide the same CPU, and remove the other's containers",
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
				"correct it: the agent does not start with it; docs/reference.md has every option", "")...)
		}
		if len(wrong) == 0 {
			var set []string
			for _, option := range i.own().names() {
				if known(option) {
					set = append(set, option+" = "+quote(i.own()[option]))
				}
			}
			if set == nil {
				set = []string{"all have their defaults"}
			}
			out = append(out, okay(name, "%s", strings.Join(set, ", "))...)
		}
	}
	return out
}

// denied says whether client.options forbid a driver, and by which one.
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
			return one(name, Fail, fmt.Sprintf("client.options %q forbids the driver %q, which is Ebbtide", by, want),
				"take it off the deny list, or put it on the allow list, and restart the agent", "")
		}
	}
	if s.API.Node == nil {
		return skipped(name, "the node's record is not known: see api")
	}
	got, attrs := s.onNode()
	info := s.API.Node.Drivers[want]
	switch {
	case got != "" && got != want && len(s.installs()) > 0:
		return one(name, Warn, fmt.Sprintf("runs as %q on the node, but is configured to run as %q", got, want),
			"wait a minute after the agent's start, until the node has registered again; else restart the agent", "")
	case got == "" && want == dockerName && info.Detected:
		return one(name, Fail, `the node's driver "docker" is Nomad's own, not Ebbtide`,
			"restart the agent; its log says why a plugin was not loaded (search it for \"plugin\")", "")
	case got == "" && info.Description != "":
		return one(name, Fail, fmt.Sprintf("%q is not detected on the node: %s", want, clean(info.Description)),
			"see the finding on the engine; Nomad looks again every 30 seconds", "")
	case got == "":
		return one(name, Fail, fmt.Sprintf("the node has no driver %q", want),
			"see the findings above, and restart the agent; its log says why a plugin was not loaded (search it for \"plugin\")", "")
	}
	info = s.API.Node.Drivers[got]
	if !info.Detected || !info.Healthy {
		return one(name, Fail, fmt.Sprintf("%q is not healthy on the node: %s", got, clean(info.Description)),
			"see the findings on the engine; the agent's log has more (search it for \"ebbtide\")", "")
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

// checkReaper looks for a stock docker driver that removes Ebbtide's containers.
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
		return okay(name, "Ebbtide takes the place of the stock docker driver")
	case cfg == nil:
		return one(name, Warn, "whether "+off+" is on is not known: "+noConfig, "see docs/operations.md on the reaper", "")
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
		return okay(name, "the stock docker driver is forbidden by client.options %q", by)
	case !reaper.flag("enabled", true):
		return okay(name, "%s is off", off)
	case reaper.flag("dry_run", false):
		return okay(name, "%s only logs (dry_run)", off)
	case endpoint(stock) != endpoint(inner):
		return okay(name, "the stock docker driver uses another Docker daemon")
	}
	return one(name, Fail, off+" is on: it removes Ebbtide's containers after about five minutes",
		"any one of the three, and restart the agent", reaperHCL)
}

const reaperHCL = `# 1. switch the reaper off (if plugin "docker" is there already, in its config)
plugin "docker" {
  config {
    gc {
      dangling_containers {
        enabled = false
      }
    }
  }
}

# 2. or forbid the stock driver
client {
  options = {
    "driver.denylist" = "docker"
  }
}

# 3. or install Ebbtide's binary under the name "docker", and in place of
#    the block plugin "ebbtide-driver"
plugin "docker" {
  config {
    ebbtide {
      policy = "auto"
    }
  }
}`

// checkStockOptions finds options of the stock docker driver that jobs will miss
// under Ebbtide. Only names are told: values may be secrets.
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
	return one(name, Warn, fmt.Sprintf("set for the stock docker driver, but not for Ebbtide, which does not read that block: %s", strings.Join(missing, ", ")),
		"where jobs need them, repeat them in the block docker", installs[0].wrap("# "+strings.Join(missing, ", ")+", as in plugin \"docker\""))
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
		return skipped(name, "not looked at: Ebbtide is not installed")
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
			"start Docker (`systemctl start docker`; a daemon that hangs: `systemctl restart docker`), or name its endpoint", at.wrap(`endpoint = "unix:///var/run/docker.sock"`))
	}
	out := okay(name, "%s answers: Docker %s, cgroup version %s, cgroup driver %s", d.Endpoint, clean(d.Version), clean(d.CgroupVersion), clean(d.CgroupDriver))
	if d.Rootless {
		out = append(out, one(name, Fail, "the daemon runs rootless: Nomad's docker driver and Ebbtide's limits do not work with it", "use a daemon that runs as root", "")...)
	}
	if !d.CPUShares || !d.CPUQuota {
		out = append(out, one(name, Fail, "the daemon cannot set CPU shares or quotas: the kernel lacks them, or the cpu controller is off", "see cgroups", "")...)
	}
	return out
}

func checkLiveRestore(s *Snapshot) []Finding {
	const name = "live-restore"
	if s.Host == nil || s.Host.Docker == nil || s.Host.Docker.Err != nil || s.engine() == config.EngineExec {
		return nil
	}
	if s.Host.Docker.LiveRestore {
		return okay(name, "on: containers outlive a restart of Docker")
	}
	return one(name, Warn, "off: a restart of Docker ends every container, and each job goes by its restart policy, from its last checkpoint",
		"add to /etc/docker/daemon.json and run `systemctl reload docker`", "{\n  \"live-restore\": true\n}")
}

// checkGC tells what Ebbtide's docker driver cleans up.
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
			"correct it: the agent does not start with it", i.wrap("gc {\n  image_delay = \"3m\"\n}"))
	case !gc.flag("container", true):
		return one(name, Warn, i.path("gc.container")+" = false: containers of ended tasks stay on the disk",
			"unless you need them, take it out", i.wrap("gc {\n  container = true\n}"))
	case gc.flag("image", true):
		return okay(name, "images are removed %s after their last task and pulled again; for images that no registry has, set %s = false",
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
		return okay(name, "are published")
	default:
		return one(name, Warn, "are not published: the UI's charts of CPU and memory stay empty",
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
		return one(name, Warn, fmt.Sprintf("%s: a trainer that is stopped has at most this long to save, whatever its job's kill_timeout says", d), do, add)
	default:
		return okay(name, "%s", d)
	}
}

// gpuFile is the device plugin's name.
const gpuFile = "ebbtide-gpu"

// checkCards says nothing where GPUs are not shared.
func checkCards(s *Snapshot) []Finding {
	const name = "shared GPUs"
	cfg := s.config()
	listed := cfg != nil && hasKey(cfg.Plugins, gpuFile)
	if s.API.Node == nil {
		if listed {
			return skipped(name, "the node's record is not known: let -address answer")
		}
		return nil
	}
	if len(s.API.Node.Cards) == 0 {
		if listed {
			return one(name, Warn, "the agent has the plugin "+gpuFile+", and the node has no card", "look for "+gpuFile+" in the agent's log: it says why", "")
		}
		return nil
	}
	var out []Finding
	for _, c := range s.API.Node.Cards {
		switch {
		case c.Unhealthy != "":
			out = append(out, one(name, Warn, c.Name+" cannot be used: "+c.Unhealthy, "", "")...)
		case !c.Shared:
			out = append(out, one(name, Warn, c.Name+" is handed out as it is: there is no gate, and nobody keeps to a share", "look for "+gpuFile+" in the agent's log: it says why", "")...)
		case !c.Parking:
			out = append(out, one(name, Warn, fmt.Sprintf("%s: %d seats; containers cannot be parked, and what goes beyond a share is treated so: %s", c.Name, c.Seats, c.OverShare),
				"NVIDIA's driver 575.57 or later moves a process's memory; the plugin's log says what is missing", "")...)
		default:
			out = append(out, okay(name, "%s: %d seats, containers can be parked", c.Name, c.Seats)...)
		}
	}
	return out
}

// checkBound says nothing where no job is bound.
func checkBound(s *Snapshot) []Finding {
	var out []Finding
	for _, job := range s.API.Bound {
		out = append(out, one("moves", Warn, job+" is bound to a node for a move: it cannot leave it",
			"look with ebbtide moves whether the move is under way; if it is not, ebbtide moves -recover gives the job back", "")...)
	}
	return out
}
