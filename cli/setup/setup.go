// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package setup writes the recommended configuration for a Nomad agent into a separate file.
// In: the agent's configuration directory and the machine, read by Inspect into a State. Out: the
// file, decided by the pure function Propose and written by Write. Settings in other files take
// precedence, and those files are never changed.
package setup

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/ebbtide/ebbtide/cli/doctor"
	"github.com/ebbtide/ebbtide/driver/config"
	"github.com/ebbtide/ebbtide/driver/policy"
)

const FileName = "ebbtide.hcl"

// Default directories of Nomad's packages and of the plugins.
const (
	DefaultDir     = "/etc/nomad.d"
	DefaultPlugins = "/opt/nomad/plugins"
)

// Names of plugin blocks and files.
const (
	driverPlugin = "ebbtide-driver"
	gpuPlugin    = "ebbtide-gpu"
	dockerPlugin = "docker"
)

// Values of Options.GPU.
const (
	GPUAuto = "auto" // if there are cards
	GPUYes  = "yes"
	GPUNo   = "no"
)

func GPUs() []string { return []string{GPUAuto, GPUYes, GPUNo} }

// Options are the user's.
type Options struct {
	// Dir is the agent's configuration directory, Plugins that of the plugins.
	Dir, Plugins string
	// Engine of the driver; "" for docker if Docker runs, else exec.
	Engine string
	// Set are driver options as "name=value".
	Set []string
	GPU string
}

// State is the observed state of the machine.
type State struct {
	// OtherFiles are the other configuration files in the agent's order, and Merged their
	// combination.
	OtherFiles []ConfigFile
	Merged     *doctor.Config
	// Old is our current file, nil if there is none.
	Old []byte
	// Docker means a running daemon, Cards NVIDIA cards.
	Docker, Cards bool
	// Plugins are the files of the two possible plugin directories, by directory.
	Plugins map[string][]string
}

type ConfigFile struct {
	Path   string
	Config *doctor.Config
}

// Proposal is the file to be written.
type Proposal struct {
	Path string
	// Old is the current content, nil without a file.
	Old, New []byte
	// Notes say what is omitted and why, and what else to do.
	Notes []string
}

// UpToDate reports whether the file is up to date.
func (p *Proposal) UpToDate() bool { return p.Old != nil && string(p.Old) == string(p.New) }

// Paths of Docker's socket and NVIDIA's cards.
const (
	dockerSocket = "run/docker.sock"
	nvidiaCards  = "proc/driver/nvidia/gpus"
)

// Inspect reads the state. root is the root of the machine's file system, "/" except in tests.
func Inspect(root string, o Options) (*State, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	fi, err := os.Stat(o.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("-config: the directory %s does not exist: install Nomad first, or give the directory that its agent reads", o.Dir)
	case err != nil:
		return nil, fmt.Errorf("-config: %w", err)
	case !fi.IsDir():
		return nil, fmt.Errorf("-config: must be a directory that the agent reads, got the file %s", o.Dir)
	}
	s := &State{Plugins: make(map[string][]string)}
	files, err := doctor.Files(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("-config: %w", err)
	}
	own := filepath.Join(o.Dir, FileName)
	files = slices.DeleteFunc(files, func(f string) bool { return f == own })
	if s.Merged, err = doctor.Load(files); err != nil {
		return nil, err
	}
	for _, f := range files {
		cfg, err := doctor.Load([]string{f})
		if err != nil {
			return nil, err
		}
		s.OtherFiles = append(s.OtherFiles, ConfigFile{f, cfg})
	}
	switch fi, err := os.Lstat(own); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("checking the file to be written: %w", err)
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("%s: must be a regular file or not exist; it is left unchanged", own)
	default:
		if s.Old, err = os.ReadFile(own); err != nil {
			return nil, fmt.Errorf("reading the file to be written: %w", err)
		}
	}
	for _, dir := range []string{o.Plugins, s.Merged.PluginDir} {
		if dir == "" {
			continue
		}
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("listing the plugins: %w", err)
		}
		s.Plugins[dir] = nil
		for _, e := range entries {
			if !e.IsDir() {
				s.Plugins[dir] = append(s.Plugins[dir], e.Name())
			}
		}
	}
	if _, err := os.Stat(filepath.Join(root, dockerSocket)); err == nil {
		s.Docker = true
	}
	if entries, err := os.ReadDir(filepath.Join(root, nvidiaCards)); err == nil {
		s.Cards = len(entries) > 0
	}
	return s, nil
}

// check validates the options by themselves.
func (o Options) check() error {
	var errs []error
	for _, f := range []struct{ name, value string }{{"-config", o.Dir}, {"-plugins", o.Plugins}} {
		if !filepath.IsAbs(f.value) {
			errs = append(errs, fmt.Errorf("%s: must be an absolute path, got %q", f.name, f.value))
		}
	}
	if o.Engine != "" && !slices.Contains(config.Engines(), o.Engine) {
		errs = append(errs, fmt.Errorf("-engine: must be one of %s, got %q", strings.Join(config.Engines(), ", "), o.Engine))
	}
	if !slices.Contains(GPUs(), o.GPU) {
		errs = append(errs, fmt.Errorf("-gpu: must be one of %s, got %q", strings.Join(GPUs(), ", "), o.GPU))
	}
	values := make(doctor.Block)
	for _, set := range o.Set {
		name, value, ok := strings.Cut(set, "=")
		switch {
		case !ok || name == "":
			errs = append(errs, fmt.Errorf("-set: must be NAME=VALUE, got %q", set))
		case name == "engine":
			errs = append(errs, errors.New("-set: the engine must be set with -engine"))
		case values[name] != nil:
			errs = append(errs, fmt.Errorf("-set: %s is given twice", name))
		default:
			values[name] = value
		}
	}
	for _, wrong := range doctor.WrongOptions(values) {
		errs = append(errs, errors.New("-set: "+wrong))
	}
	return errors.Join(errs...)
}

// Propose decides the file's content. It is pure.
func Propose(s *State, o Options) (*Proposal, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	p := &Proposal{Path: filepath.Join(o.Dir, FileName), Old: s.Old}
	if s.Old != nil {
		if err := ours(s.Old); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Path, err)
		}
	}
	note := func(format string, args ...any) { p.Notes = append(p.Notes, fmt.Sprintf(format, args...)) }
	var blocks []string

	pluginDir, add, err := s.pluginDir(o)
	if err != nil {
		return nil, err
	}
	if add {
		blocks = append(blocks, fmt.Sprintf("plugin_dir = %s", strconv.Quote(pluginDir)))
	}
	if !s.Merged.ClientEnabled {
		note("no file in %s enables the client; a server alone runs no tasks", o.Dir)
	}

	engine := o.Engine
	if engine == "" {
		engine = config.EngineExec
		if s.Docker {
			engine = config.EngineDocker
		}
	}
	by := s.has(dockerPlugin, func(b doctor.Block) bool { return b["ebbtide"] != nil })
	if by == "" {
		by = s.has(driverPlugin, nil)
	}
	if by == "" {
		options := []option{{"engine", strconv.Quote(engine)}}
		for _, known := range config.Options() { // in the order of the documentation
			for _, set := range o.Set {
				if name, value, _ := strings.Cut(set, "="); name == known.Name {
					if known.Kind == policy.KindString {
						value = strconv.Quote(value)
					}
					options = append(options, option{name, value})
				}
			}
		}
		blocks = append(blocks, plugin(driverPlugin, options))
		if o.Engine == "" && engine == config.EngineExec {
			note("engine: exec, as there is no Docker at /%s; override with -engine docker", dockerSocket)
		}
		if engine == config.EngineDocker && s.has(dockerPlugin, nil) == "" && !s.denied() {
			blocks = append(blocks, dockerBlock)
		}
	} else {
		if o.Engine != "" || len(o.Set) > 0 {
			return nil, fmt.Errorf("-engine, -set: the driver is already configured in %s; change it there", by)
		}
		note("the driver is configured in %s, which is left unchanged", by)
	}

	gpu, err := s.gpu(o, pluginDir, note)
	if err != nil {
		return nil, err
	}
	if gpu {
		var options []option
		if engine == config.EngineExec {
			// Without Docker there is no NVIDIA runtime to inject devices.
			options = append(options, option{"inject", `"devices"`})
		}
		blocks = append(blocks, "# Several containers share a card and its memory.\n"+plugin(gpuPlugin, options))
		note("GPUs: tasks need NVIDIA's container runtime, and Nomad memory oversubscription; docs/gpu.md has the commands")
	}
	if s.Merged.Written.MaxKillTimeout == "" {
		blocks = append(blocks, killTimeoutBlock)
	}
	if !s.Merged.PublishAllocationMetrics {
		blocks = append(blocks, telemetryBlock)
	}
	body := "\n" + strings.Join(blocks, "\n\n") + "\n"
	if len(blocks) == 0 {
		body = "\n# The other files contain all recommended settings.\n"
	}
	p.New = []byte(head(body) + "\n" + body)
	return p, nil
}

// Constant blocks; package doctor checks for their settings.
const (
	dockerBlock = `# The stock docker driver must not remove Ebbtide's containers.
plugin "docker" {
  config {
    gc {
      dangling_containers {
        enabled = false
      }
    }
  }
}`
	killTimeoutBlock = `client {
  # A stopped trainer takes long to save; Nomad's default is 30s.
  max_kill_timeout = "5m"
}`
	telemetryBlock = `telemetry {
  # Needed for the UI's charts of CPU and memory.
  publish_allocation_metrics = true
}`
)

type option struct{ name, value string }

func plugin(name string, options []option) string {
	var out strings.Builder
	fmt.Fprintf(&out, "plugin %q {\n  config {\n", name)
	width := 0
	for _, o := range options {
		width = max(width, len(o.name))
	}
	for _, o := range options {
		fmt.Fprintf(&out, "    %-*s = %s\n", width, o.name, o.value)
	}
	out.WriteString("  }\n}")
	return out.String()
}

// pluginDir returns the agent's plugin directory, and whether our file has to set it.
func (s *State) pluginDir(o Options) (dir string, add bool, err error) {
	in := func(dir string) bool { return slices.Contains(s.Plugins[dir], driverPlugin) }
	set := s.Merged.Written.PluginDir
	switch dir := s.Merged.PluginDir; {
	case s.has(dockerPlugin, func(b doctor.Block) bool { return b["ebbtide"] != nil }) != "":
		return dir, false, nil // installed under another name, which doctor checks
	case dir != "" && in(dir):
		return dir, false, nil
	case !in(o.Plugins):
		return "", false, fmt.Errorf("-plugins: there is no %s in %s: install the package, or give its directory", driverPlugin, o.Plugins)
	case filepath.Clean(set) == filepath.Clean(o.Plugins):
		return set, false, nil
	case set != "":
		return "", false, fmt.Errorf("plugin_dir: %q in %s has no %s; set it to %q there and move other plugins to that directory",
			set, s.where(func(c *doctor.Config) bool { return c.Written.PluginDir != "" }), driverPlugin, o.Plugins)
	case len(s.Plugins[dir]) > 0:
		return "", false, fmt.Errorf("plugin_dir: not set, and Nomad's default %s has plugins that would no longer be loaded: %s; move them to %s, or set plugin_dir in another file",
			dir, strings.Join(s.Plugins[dir], ", "), o.Plugins)
	}
	return o.Plugins, true, nil
}

// gpu reports whether to configure the device plugin.
func (s *State) gpu(o Options, pluginDir string, note func(string, ...any)) (bool, error) {
	there := slices.Contains(s.Plugins[pluginDir], gpuPlugin)
	by := s.has(gpuPlugin, nil)
	switch {
	case o.GPU == GPUNo:
		return false, nil
	case by != "":
		note("the GPU plugin is configured in %s, which is left unchanged", by)
		return false, nil
	case o.GPU == GPUYes && !there:
		return false, fmt.Errorf("-gpu: yes, but there is no %s in %s", gpuPlugin, pluginDir)
	case o.GPU == GPUYes:
		return true, nil
	case s.Cards && !there:
		note("there are NVIDIA cards, but no %s in %s, so they are not shared", gpuPlugin, pluginDir)
		return false, nil
	}
	return s.Cards, nil
}

// denied reports whether the stock docker driver is disabled and needs no block.
func (s *State) denied() bool {
	return slices.Contains(strings.Split(s.Merged.Options["driver.denylist"], ","), dockerPlugin)
}

// where returns the last file that matches, which is the effective one.
func (s *State) where(is func(*doctor.Config) bool) string {
	for _, o := range slices.Backward(s.OtherFiles) {
		if is(o.Config) {
			return o.Path
		}
	}
	return ""
}

// has returns the other file with a matching plugin block, "" if none.
func (s *State) has(name string, is func(doctor.Block) bool) string {
	return s.where(func(c *doctor.Config) bool {
		b, ok := c.Plugins[name]
		return ok && (is == nil || is(b))
	})
}

// mark starts our file. The package's scripts look for it too.
const mark = `# Written by "ebbtide setup"`

// head is our file's header, with a checksum of the body to detect edits.
func head(body string) string {
	sum := sha256.Sum256([]byte(body))
	return fmt.Sprintf("%s (%x), which replaces it unless it was edited:\n# put your own settings into another file.", mark, sum[:6])
}

// ours returns an error unless setup wrote the data.
func ours(data []byte) error {
	text := string(data)
	if !strings.HasPrefix(text, mark) {
		return errors.New("was not written by ebbtide setup and is left unchanged: rename it, or merge the output of -print by hand")
	}
	if lines := strings.SplitN(text, "\n", 3); len(lines) < 3 || head(lines[2]) != lines[0]+"\n"+lines[1] {
		return errors.New("was edited since ebbtide setup wrote it and is left unchanged: rename it, or merge the output of -print by hand")
	}
	return nil
}

// Unresolved returns doctor's findings that the new file does not resolve, as far as files alone
// decide them.
func Unresolved(s *State, p *Proposal) ([]doctor.Finding, error) {
	dir, err := os.MkdirTemp("", "ebbtide-setup-")
	if err != nil {
		return nil, fmt.Errorf("creating a directory for a check: %w", err)
	}
	defer os.RemoveAll(dir)
	// Insert our file in its alphabetical place.
	own := filepath.Join(dir, FileName)
	if err := os.WriteFile(own, p.New, 0o600); err != nil {
		return nil, fmt.Errorf("writing a file for a check: %w", err)
	}
	var paths []string
	for _, o := range s.OtherFiles {
		if own != "" && o.Path > p.Path {
			paths, own = append(paths, own), ""
		}
		paths = append(paths, o.Path)
	}
	if own != "" {
		paths = append(paths, own)
	}
	merged, err := doctor.Load(paths)
	if err != nil {
		return nil, fmt.Errorf("loading the configuration with the new file: %w", err)
	}
	var out []doctor.Finding
	for _, f := range doctor.Examine(&doctor.Snapshot{Paths: paths, Files: merged}) {
		alone := slices.Contains([]string{"plugin options", "reaper", "docker options", "allocation metrics", "max_kill_timeout"}, f.Name)
		if alone && (f.Status == doctor.Warn || f.Status == doctor.Fail) {
			out = append(out, f)
		}
	}
	return out, nil
}

// Write replaces our file atomically, keeping mode and owner.
func Write(p *Proposal) error {
	dir := filepath.Dir(p.Path)
	f, err := os.CreateTemp(dir, ".ebbtide-setup-*") // not .hcl, so the agent ignores it
	if err != nil {
		return fmt.Errorf("writing %s: %w", p.Path, err)
	}
	defer os.Remove(f.Name())
	mode := fs.FileMode(0o644)
	if fi, err := os.Stat(p.Path); err == nil {
		mode = fi.Mode().Perm()
		if err := keepOwner(f, fi); err != nil {
			f.Close()
			return fmt.Errorf("keeping the owner of %s: %w", p.Path, err)
		}
	}
	_, err = f.Write(p.New)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", p.Path, err)
	}
	if err := os.Rename(f.Name(), p.Path); err != nil {
		return fmt.Errorf("writing %s: %w", p.Path, err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("writing %s: %w", p.Path, err)
	}
	defer d.Close()
	return d.Sync()
}

func keepOwner(f *os.File, like fs.FileInfo) error {
	st, ok := like.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) == os.Geteuid() && int(st.Gid) == os.Getegid() {
		return nil
	}
	return f.Chown(int(st.Uid), int(st.Gid))
}
