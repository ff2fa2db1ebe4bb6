// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/drivers/shared/eventer"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/control"
	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/measure"
	"github.com/ebbtide/ebbtide/driver/metrics"
	"github.com/ebbtide/ebbtide/driver/options"
	"github.com/ebbtide/ebbtide/driver/plan"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/progress/source"
	"github.com/ebbtide/ebbtide/driver/publish"
	"github.com/ebbtide/ebbtide/driver/target"
	"github.com/ebbtide/ebbtide/internal/metricsserver"
	"github.com/ebbtide/ebbtide/internal/version"
)

var errNotConfigured = errors.New("the plugin has not been configured")

// Driver is the task driver plugin. It implements all interfaces of Nomad's docker and
// exec drivers and delegates to the decorated driver's instance that holds the task.
type Driver struct {
	name   string
	ctx    context.Context
	logger hclog.Logger
	events *eventer.Eventer
	// metrics are kept across setups.
	metrics *metrics.Metrics
	// newDriver creates an instance of a decorated driver (engine.NewDriver).
	newDriver func(context.Context, string, hclog.Logger) (drivers.DriverPlugin, error)
	adopting  sync.Mutex

	// findFreezer defaults to freezerOf.
	findFreezer func(*task) (freezer, error)
	// setup is nil before SetConfig.
	setup atomic.Pointer[setup]
	// starting is read-locked while a task is started or recovered, so that SetConfig cannot
	// replace the setup meanwhile.
	starting sync.RWMutex

	mu     sync.Mutex
	nodeID string
	allocs string
	tasks  map[string]*task
	// launching counts the tasks being started, by allocation.
	launching map[string]int
	spare     *spareInstance // the newest, or nil

	runs sync.Mutex // guards the node's history of runs
}

// setup is the immutable result of one SetConfig.
type setup struct {
	*settings
	config     *base.Config    // from Nomad, for further instances
	ctx        context.Context // until the plugin ends or the next setup
	stop       context.CancelFunc
	engine     engine.Engine
	primary    drivers.DriverPlugin // starts tasks
	controller *control.Controller
	pool       policy.Cores
}

var (
	_ drivers.DriverPlugin         = (*Driver)(nil)
	_ drivers.DriverNetworkManager = (*Driver)(nil)
)

// New returns the plugin under a driver name (see InstalledName).
func New(ctx context.Context, name string, logger hclog.Logger) *Driver {
	logger = logger.Named(name)
	d := &Driver{
		name:   name,
		ctx:    ctx,
		logger: logger,
		events: eventer.NewEventer(ctx, logger),

		metrics:   metrics.New(),
		newDriver: engine.NewDriver,
		tasks:     make(map[string]*task),
		launching: make(map[string]int),
	}
	d.findFreezer = d.freezerOf
	return d
}

// SetConfig validates the plugin's config and creates the decorated driver and the control loop.
// Nomad calls it several times per process, first without AgentConfig to check the config; the last
// call is effective. It fails while the plugin has tasks.
func (d *Driver) SetConfig(cfg *base.Config) error {
	s, err := d.decodeConfig(cfg.PluginConfig)
	if err != nil {
		return err
	}
	pool, err := d.poolCores(s.PoolCores, cfg.AgentConfig)
	if err != nil {
		return err
	}

	if !d.starting.TryLock() {
		return errors.New("cannot reconfigure the plugin while it starts a task")
	}
	defer d.starting.Unlock()
	d.mu.Lock()
	held := len(d.tasks)
	d.mu.Unlock()
	if held > 0 {
		return errors.New("cannot reconfigure the plugin while it has tasks")
	}
	now := &setup{settings: s, config: cfg, pool: pool}
	if now.engine, err = newEngine(s); err != nil {
		return err
	}
	now.ctx, now.stop = context.WithCancel(d.ctx)
	if now.primary, err = d.newInstance(now.ctx, now); err != nil {
		now.stop()
		return err
	}

	now.controller = control.New(control.Options{
		Engine:          s.Engine,
		Policy:          s.Policy,
		Policies:        s.Policies,
		Estimator:       s.Estimator,
		Mode:            s.Mode,
		SpeCon:          s.SpeCon,
		SpeConInterval:  s.SpeConInterval,
		Interval:        s.Interval,
		MaxInterval:     s.MaxInterval,
		PoolCores:       pool,
		PoolFixed:       s.PoolCores > 0,
		NodeMemory:      nodeMemory(),
		QuotaMinCores:   s.QuotaMinCores,
		SharedCPUs:      limits.SharedCPUs,
		OwnQuota:        limits.OwnQuota,
		Idle:            limits.IdleTimes,
		NoProgressAfter: s.NoProgressAfter,
		Turns:           s.Turns,
		Node:            d.node,
		Emit:            d.emit,
		Metrics:         d.metrics,
	}, d.logger)
	go now.controller.Run(now.ctx)
	if cfg.AgentConfig != nil { // nil while Nomad checks the config
		go metricsserver.Serve(now.ctx, s.Metrics, d.metrics.Registry, d.logger)
	}
	if e, ok := now.engine.(*engine.DockerEngine); ok && s.reaper.enabled {
		go d.reap(now, e)
	}
	if was := d.setup.Swap(now); was != nil {
		was.stop()
	}
	return nil
}

// newInstance creates and configures an instance of the decorated driver, which lives as long as
// ctx, and forwards its events.
func (d *Driver) newInstance(ctx context.Context, s *setup) (drivers.DriverPlugin, error) {
	inner, err := d.newDriver(ctx, s.Engine, d.logger)
	if err != nil {
		return nil, err
	}
	data, err := encode(withoutReaper(s.inner))
	if err != nil {
		return nil, err
	}
	cfg := &base.Config{ApiVersion: s.config.ApiVersion, PluginConfig: data, AgentConfig: s.config.AgentConfig}
	if err := inner.SetConfig(cfg); err != nil {
		return nil, fmt.Errorf("configuring the %s driver: %w", s.Engine, err)
	}
	ch, err := inner.TaskEvents(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading events of the %s driver: %w", s.Engine, err)
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case ev := <-ch:
				if ev == nil {
					return
				}
				_ = d.events.EmitEvent(ev)
			}
		}
	}()
	return inner, nil
}

func (d *Driver) first() drivers.DriverPlugin {
	if s := d.setup.Load(); s != nil {
		return s.primary
	}
	inner, err := d.queryInstance(engine.Docker)
	if err != nil {
		panic(err) // the name is a constant
	}
	return inner
}

func (d *Driver) queryInstance(name string) (drivers.DriverPlugin, error) {
	ctx, stop := context.WithCancel(d.ctx)
	stop()
	return d.newDriver(ctx, name, d.logger)
}

func (d *Driver) Capabilities() (*drivers.Capabilities, error) {
	return d.first().Capabilities()
}

// Fingerprint forwards the decorated driver's fingerprints under Ebbtide's name, with static
// attributes. Live figures would be harmful: a changed attribute re-registers the node and costs an
// evaluation of every job on it.
func (d *Driver) Fingerprint(ctx context.Context) (<-chan *drivers.Fingerprint, error) {
	s := d.setup.Load()
	if s == nil {
		return nil, errNotConfigured
	}
	in, err := s.primary.Fingerprint(ctx)
	if err != nil {
		return nil, err
	}
	out := make(chan *drivers.Fingerprint)
	go func() {
		defer close(out)
		for fp := range in { // drain it: the sender blocks
			select {
			case out <- d.decorate(s, fp):
			case <-ctx.Done():
			}
		}
	}()
	return out, nil
}

func (d *Driver) decorate(s *setup, fp *drivers.Fingerprint) *drivers.Fingerprint {
	attrs := make(map[string]*pstructs.Attribute)
	own := "driver." + Name + "."
	if d.name == DockerName {
		own = "driver.docker.ebbtide."
		for key, attr := range fp.Attributes {
			attrs[key] = attr
		}
	} else {
		// "driver.docker" itself would announce the stock driver.
		for key, attr := range fp.Attributes {
			if key != "driver."+s.Engine {
				attrs["driver."+Name+"."+trimDriver(key)] = attr
			}
		}
		if len(fp.Attributes) > 0 {
			attrs["driver."+Name] = pstructs.NewBoolAttribute(true)
		}
	}
	if fp.Health != drivers.HealthStateUndetected {
		attrs[own+"engine"] = pstructs.NewStringAttribute(s.Engine)
		attrs[own+"policy"] = pstructs.NewStringAttribute(s.Policy.Name)
		attrs[own+"mode"] = pstructs.NewStringAttribute(string(s.Mode))
		attrs[own+"estimator"] = pstructs.NewStringAttribute(s.Estimator)
		attrs[own+"version"] = pstructs.NewStringAttribute(version.Version)
		attrs[own+"nomad_version"] = pstructs.NewStringAttribute(linkedNomad())
		attrs[own+"pool_cores"] = pstructs.NewFloatAttribute(float64(s.pool), "")
	}
	return &drivers.Fingerprint{Attributes: attrs, Health: fp.Health, HealthDescription: fp.HealthDescription, Err: fp.Err}
}

// linkedNomad returns the version of the decorated drivers, "unknown" in a program without modules.
func linkedNomad() string {
	info, _ := debug.ReadBuildInfo()
	return cmp.Or(version.Nomad(info), "unknown")
}

// StartTask validates the jobspec's settings, has the decorated driver start the task and adds it
// to the control loop. An invalid option fails the start; a failure of the control loop does not.
func (d *Driver) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	d.starting.RLock()
	defer d.starting.RUnlock()
	s := d.setup.Load()
	if s == nil {
		return nil, nil, errNotConfigured
	}
	opts, err := readTaskOptions(cfg)
	notes, files, unseated := injectGPUShare(cfg, s.Engine)
	if err == nil {
		err = source.Check(opts.Progress, s.reach(cfg, nil))
	}
	if err := errors.Join(err, unseated, private.CheckTask(cfg.Name)); err != nil {
		return nil, nil, fmt.Errorf("ebbtide: %w", err)
	}
	opts.GPU, opts.Identity = files.report, files.identity
	d.learnNode(cfg)
	if opts.Targets.QoE == 0 && cfg.AllocDir != "" {
		if opts.Run, err = runKey(cfg); err != nil {
			d.logger.Warn("cannot identify comparable runs; the cost of this one will not be stored", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
		}
	}
	if cfg.Env == nil {
		cfg.Env = make(map[string]string)
	}
	// Python buffers output unless it is a terminal: progress would arrive in blocks minutes apart.
	if _, ok := cfg.Env["PYTHONUNBUFFERED"]; !ok {
		cfg.Env["PYTHONUNBUFFERED"] = "1"
	}
	if done := d.succeeded(s, cfg); done != nil {
		return done, nil, nil
	}
	d.thawStale(cfg)
	adopted, err := d.adopt(cfg, opts)
	if err != nil {
		d.metrics.Restores.Count(err)
		adopted = "starts without the checkpoint of allocation " + opts.Adopt + ": " + err.Error()
	}
	d.recordRestored(cfg, opts)
	note, err := s.engine.Prepare(d.ctx, cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("ebbtide: %w", err)
	}
	s.controller.LastLines(d.ctx, cfg.AllocID, cfg.Name)
	d.writeIdentity(files)
	defer d.launch(cfg.AllocID)()
	handle, network, err := s.primary.StartTask(cfg)
	if err != nil {
		d.removeIdentity(files.identity)
		return nil, nil, explainRuntime(cfg, err)
	}
	t := d.track(s, handle, s.primary)
	for _, text := range notes {
		d.say(t, "gpu.setup", text, nil)
	}
	if adopted != "" {
		d.say(t, "adopt", adopted, nil)
	}
	if note != "" {
		d.say(t, "earlier-copy", note, nil)
	}
	d.supervise(t, opts, false)
	if kept, err := withOptions(handle, opts); err != nil {
		d.logger.Warn("the task will not be controlled after a restart of the agent", "task", cfg.Name, "alloc_id", cfg.AllocID, "error", err)
	} else {
		handle = kept
	}
	return handle, network, nil
}

func (d *Driver) RecoverTask(handle *drivers.TaskHandle) error {
	d.starting.RLock()
	defer d.starting.RUnlock()
	s := d.setup.Load()
	if s == nil {
		return errNotConfigured
	}
	if handle == nil || handle.Config == nil {
		return errors.New("the handle to recover is empty")
	}
	d.mu.Lock()
	_, known := d.tasks[handle.Config.ID]
	d.mu.Unlock()
	if known {
		return nil
	}
	handle, opts, err := takeOptions(handle)
	if rerr := s.primary.RecoverTask(handle); rerr != nil {
		rec, lerr := private.Load(handle.Config.AllocDir, handle.Config.Name)
		if lerr != nil || rec.Objective == nil && !rec.Suspended {
			return rerr
		}
		// It was ended at its objective, or suspended, and its container or executor has been removed.
		t := d.track(s, handle, finished{})
		t.succeeded.Store(rec.Objective != nil)
		t.suspended.Store(rec.Suspended)
		return nil
	}
	d.learnNode(handle.Config)
	t := d.track(s, handle, s.primary)
	if err != nil {
		// An earlier version accepted the options. The task runs on uncontrolled, but a freeze must
		// still end.
		d.logger.Warn("recovered task has options that this version does not accept; it is not controlled",
			"task", handle.Config.Name, "alloc_id", handle.Config.AllocID, "error", err)
		if opts != nil {
			t.checkpoint = opts.Checkpoint
		}
		d.resumeMove(t)
		return nil
	}
	d.supervise(t, opts, true)
	d.resumeMove(t)
	return nil
}

// supervise adds a running task to the control loop. Errors are logged and published; the task then
// runs as under plain Nomad.
func (d *Driver) supervise(t *task, opts *options.Task, recovered bool) {
	cfg := t.handle.Config
	log := d.logger.With("task", cfg.Name, "alloc_id", cfg.AllocID)
	t.checkpoint, t.run, t.identity = opts.Checkpoint, opts.Run, opts.Identity
	d.recallRun(cfg, opts)
	ct := control.Task{
		ID:        cfg.ID,
		AllocID:   cfg.AllocID,
		Name:      cfg.Name,
		JobID:     cfg.JobID,
		SharedDir: cfg.TaskDir().SharedAllocDir,
		Private:   private.Open(cfg.AllocDir),
		Where:     source.Where(opts.Progress),
		NoOutput:  cfg.StdoutPath == os.DevNull, // with logs { disabled = true }
		Targets:   opts.Targets,
		Work:      opts.Work,
		OnEnd:     func(m measure.Measurement) { d.keepRun(t, m) },
		Recovered: recovered,
		Open: func() (progress.Source, error) {
			dir := cfg.TaskDir()
			return source.Open(opts.Progress, source.Task{Name: cfg.Name, LogDir: dir.LogDir, LocalDir: dir.LocalDir, AllocDir: dir.SharedAllocDir,
				Reach: t.setup.reach(cfg, t.handle)})
		},
		OnTarget: func(r target.Reached) { d.targetReached(t, opts.Act, r) },
		Locate: func(ctx context.Context) (control.Cgroup, error) {
			st, err := t.setup.engine.Inspect(ctx, t.handle)
			if err != nil {
				return nil, err
			}
			if !st.Running || st.PID == 0 {
				return nil, engine.ErrGone
			}
			return d.cgroup(cfg, t, st.PID, recovered)
		},
		Limited: opts.Limit,
		Movable: opts.Migrate && opts.Checkpoint != nil,
	}
	if opts.GPU != "" {
		ct.GPU = func() (handoff.Report, error) { return handoff.ReadReport(opts.GPU) }
		ct.Turns = filepath.Dir(opts.GPU)
	}
	if opts.Targets.Any() {
		metric, goal := opts.Progress.Declared()
		ct.Watcher = target.NewWatcher(metric, policy.Goal(goal), opts.Targets)
		ct.Watcher.Restore(d.resumeTargets(t, opts))
	}
	if r := cfg.Resources; r != nil && r.LinuxResources != nil {
		ct.Shares = t.setup.shares(cfg)
		if r.LinuxResources.CpusetCpus != "" {
			// The CPUs of tasks with `cores` are not shared.
			log.Debug("task has dedicated cores and is not limited")
			ct.Pinned = cpusetSize(r.LinuxResources.CpusetCpus)
			ct.Limited = false
		}
	}
	t.setup.controller.Add(ct)
}

func (d *Driver) cgroup(cfg *drivers.TaskConfig, t *task, pid int, recovered bool) (control.Cgroup, error) {
	id, err := t.setup.engine.CgroupName(t.handle)
	if err != nil {
		return nil, err
	}
	cg, err := limits.FindFor(pid, id)
	if err != nil {
		return nil, err
	}
	if !recovered && cg.Version() == 2 {
		// Detect the runtime's conversion of shares before changing the weight.
		if w, err := cg.Weight(); err == nil {
			cg.SetConversion(limits.Detect(2, t.setup.shares(cfg), w))
		}
	}
	return cg, nil
}

func (s *setup) shares(cfg *drivers.TaskConfig) uint64 {
	if cfg.Resources == nil || cfg.Resources.LinuxResources == nil {
		return limits.MinShares
	}
	return plan.NomadShares(cfg.Resources.LinuxResources.CPUShares, int64(s.config.AgentConfig.Compute().TotalCompute))
}

// learnNode stores the node's ID and the allocations' directory, which Nomad passes to the plugin
// only with a task.
func (d *Driver) learnNode(cfg *drivers.TaskConfig) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if cfg.NodeID != "" {
		d.nodeID = cfg.NodeID
	}
	if cfg.AllocDir != "" {
		d.allocs = filepath.Dir(cfg.AllocDir)
	}
}

func (d *Driver) node() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nodeID
}

func (d *Driver) emit(ev publish.Event) {
	err := d.events.EmitEvent(&drivers.TaskEvent{
		TaskID:      ev.TaskID,
		AllocID:     ev.AllocID,
		TaskName:    ev.TaskName,
		Timestamp:   time.Now(),
		Message:     "ebbtide: " + ev.Message,
		Annotations: ev.Annotations,
	})
	if err != nil {
		d.metrics.EventsFailed.Inc()
		d.logger.Debug("event was not sent", "task", ev.TaskName, "error", err)
		return
	}
	d.metrics.EventsSent.Inc()
}

// withoutReaper disables the decorated docker driver's reaper. Each instance tracks only its own
// containers, and in a driver named ebbtide would remove stock Nomad's. See reap.
func withoutReaper(config map[string]any) map[string]any {
	gc, ok := config["gc"].(map[string]any)
	if !ok {
		return config
	}
	config, gc = maps.Clone(config), maps.Clone(gc)
	gc["dangling_containers"] = map[string]any{"enabled": false, "period": "5m", "creation_grace": "5m", "dry_run": false}
	config["gc"] = gc
	return config
}

func newEngine(s *settings) (engine.Engine, error) {
	if s.Engine == engine.Exec {
		return engine.NewExec(), nil
	}
	data, err := encode(s.inner)
	if err != nil {
		return nil, err
	}
	return engine.NewDocker(data, s.DockerTimeout)
}
