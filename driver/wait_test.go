// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	pstructs "github.com/hashicorp/nomad/plugins/shared/structs"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/config"
	"github.com/ebbtide/ebbtide/driver/control"
	"github.com/ebbtide/ebbtide/driver/engine"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy"
)

// fakeDriver is a decorated driver whose task ends when a result is sent.
type fakeDriver struct {
	drivers.DriverPlugin // unused methods are nil
	results              chan *drivers.ExitResult
	recovered            chan string
	refuse               error
	stopped, signals     chan string // nil = not recorded
	started              chan *drivers.TaskConfig
}

func (i *fakeDriver) SetConfig(*base.Config) error { return nil }
func (i *fakeDriver) TaskEvents(context.Context) (<-chan *drivers.TaskEvent, error) {
	return make(chan *drivers.TaskEvent), nil
}
func (i *fakeDriver) WaitTask(context.Context, string) (<-chan *drivers.ExitResult, error) {
	return i.results, nil
}
func (i *fakeDriver) StartTask(cfg *drivers.TaskConfig) (*drivers.TaskHandle, *drivers.DriverNetwork, error) {
	if i.refuse != nil {
		return nil, nil, i.refuse
	}
	if i.started != nil {
		i.started <- cfg
	}
	return &drivers.TaskHandle{Config: cfg}, nil, nil
}
func (i *fakeDriver) RecoverTask(h *drivers.TaskHandle) error {
	if i.refuse == nil {
		i.recovered <- h.Config.ID
	}
	return i.refuse
}
func (i *fakeDriver) StopTask(_ string, grace time.Duration, signal string) error {
	if i.stopped != nil {
		i.stopped <- signal + " " + grace.String()
	}
	return i.refuse
}
func (i *fakeDriver) SignalTask(_ string, signal string) error {
	if i.signals != nil {
		i.signals <- signal
	}
	return i.refuse
}
func (i *fakeDriver) DestroyTask(string, bool) error { return nil }

type fakeEngine struct {
	mu    sync.Mutex
	finds []found // the last one repeats
	dies  bool    // tasks end with the daemon
}

type found struct {
	engine.State
	err error
}

func (w *fakeEngine) Name() string                        { return engine.Docker }
func (w *fakeEngine) Reconnects() bool                    { return true }
func (w *fakeEngine) OutlivesDaemon(context.Context) bool { return !w.dies }
func (w *fakeEngine) Prepare(context.Context, *drivers.TaskConfig) (string, error) {
	return "", nil
}
func (w *fakeEngine) CgroupName(*drivers.TaskHandle) (string, error) { return "x", nil }
func (w *fakeEngine) Apply(context.Context, *drivers.TaskHandle, *limits.Cgroup, limits.Limits) error {
	return nil
}
func (w *fakeEngine) Inspect(context.Context, *drivers.TaskHandle) (engine.State, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.finds[0]
	if len(w.finds) > 1 {
		w.finds = w.finds[1:]
	}
	return f.State, f.err
}

func waiting(t *testing.T, finds ...found) (d *Driver, first, second *fakeDriver, messages <-chan string) {
	first = &fakeDriver{results: make(chan *drivers.ExitResult, 1), recovered: make(chan string, 1)}
	second = &fakeDriver{results: make(chan *drivers.ExitResult, 1), recovered: make(chan string, 1)}
	d = New(t.Context(), Name, hclog.NewNullLogger())
	d.newDriver = func(context.Context, string, hclog.Logger) (drivers.DriverPlugin, error) { return second, nil }
	s := &setup{
		settings: &settings{Settings: &config.Settings{Engine: engine.Docker, DockerOutage: 3 * time.Second}},
		config:   &base.Config{}, ctx: t.Context(), engine: &fakeEngine{finds: finds}, primary: first,
		controller: control.New(control.Options{Emit: d.emit, Metrics: d.metrics}, hclog.NewNullLogger()),
	}
	d.setup.Store(s)

	events, err := d.TaskEvents(t.Context())
	must.NoError(t, err)
	out := make(chan string, 10)
	go func() {
		for {
			select {
			case ev := <-events:
				out <- ev.Message
			case <-t.Context().Done():
				return
			}
		}
	}()
	cfg := &drivers.TaskConfig{ID: "alloc/task/1", Name: "task", AllocID: "alloc"}
	d.track(s, &drivers.TaskHandle{Config: cfg}, first)
	return d, first, second, out
}

func result(t *testing.T, ch <-chan *drivers.ExitResult) *drivers.ExitResult {
	t.Helper()
	select {
	case r := <-ch:
		return r
	case <-time.After(30 * time.Second):
		t.Fatal("no result")
		return nil
	}
}

func message(t *testing.T, ch <-chan string, part string) {
	t.Helper()
	select {
	case m := <-ch:
		must.StrContains(t, m, part)
	case <-time.After(30 * time.Second):
		t.Fatalf("no event %q", part)
	}
}

var lost = &drivers.ExitResult{Err: errors.New("unexpected EOF")}

func TestPlainResultPasses(t *testing.T) {
	d, first, _, _ := waiting(t, found{err: engine.ErrGone})
	a, err := d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	b, err := d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	want := &drivers.ExitResult{ExitCode: 3, Err: errors.New("exit 3")}
	first.results <- want
	must.Eq(t, want, result(t, a), must.Sprint("every waiter gets it"))
	must.Eq(t, want, result(t, b))

	_, err = d.WaitTask(t.Context(), "unknown")
	must.ErrorIs(t, err, drivers.ErrTaskNotFound)
}

func TestWaitEndsWithItsContext(t *testing.T) {
	d, _, _, _ := waiting(t, found{})
	ctx, cancel := context.WithCancel(t.Context())
	ch, err := d.WaitTask(ctx, "alloc/task/1")
	must.NoError(t, err)
	cancel()
	must.ErrorIs(t, result(t, ch).Err, context.Canceled)
}

func TestTaskThatOutlivesDocker(t *testing.T) {
	unreachable := found{err: engine.ErrUnreachable}
	d, first, second, messages := waiting(t, unreachable, unreachable, found{State: engine.State{Running: true, PID: 1}})
	ch, err := d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	first.results <- lost
	must.Eq(t, "alloc/task/1", <-second.recovered)
	message(t, messages, "was not interrupted")
	held, err := d.task("alloc/task/1")
	must.NoError(t, err)
	must.Eq[drivers.DriverPlugin](t, second, held.instance())

	second.results <- &drivers.ExitResult{ExitCode: 0}
	must.Eq(t, &drivers.ExitResult{}, result(t, ch))
}

// The tasks of an outage share an instance, which ends with the last of them.
func TestOutagesLeaveNoInstance(t *testing.T) {
	d, first, _, messages := waiting(t, found{State: engine.State{Running: true, PID: 1}})
	type made struct {
		*fakeDriver
		ctx context.Context
	}
	instances := make(chan made, 10)
	d.newDriver = func(ctx context.Context, _ string, _ hclog.Logger) (drivers.DriverPlugin, error) {
		m := made{&fakeDriver{results: make(chan *drivers.ExitResult), recovered: make(chan string, 10)}, ctx}
		instances <- m
		return m.fakeDriver, nil
	}
	ids := []string{"alloc/task/1", "alloc/task/2", "alloc/task/3"}
	for _, id := range ids[1:] {
		d.track(d.setup.Load(), &drivers.TaskHandle{Config: &drivers.TaskConfig{ID: id, Name: "task", AllocID: "alloc"}}, first)
	}
	for _, id := range ids {
		_, err := d.WaitTask(t.Context(), id)
		must.NoError(t, err)
	}
	outage := func(results chan *drivers.ExitResult) made {
		t.Helper()
		for range ids {
			results <- lost
		}
		for range ids {
			message(t, messages, "was not interrupted")
		}
		must.Eq(t, 1, len(instances))
		return <-instances
	}
	one := outage(first.results)
	must.Eq(t, 3, len(one.recovered))
	two := outage(one.results)
	must.Eq(t, 3, len(two.recovered))
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return one.ctx.Err() != nil }), wait.Timeout(30*time.Second)))

	for i, id := range ids {
		must.NoError(t, two.ctx.Err(), must.Sprint(i))
		must.NoError(t, d.DestroyTask(id, true))
	}
	must.Error(t, two.ctx.Err())
	must.NoError(t, d.setup.Load().ctx.Err())
}

func TestTaskThatEndedDuringTheOutage(t *testing.T) {
	for name, c := range map[string]struct {
		state engine.State
		want  string
	}{
		"success": {engine.State{}, ""},
		"failure": {engine.State{ExitCode: 7}, "non-zero exit code: 7"},
		"oom":     {engine.State{ExitCode: 137, OOMKilled: true}, "OOM Killed"},
	} {
		t.Run(name, func(t *testing.T) {
			d, first, _, _ := waiting(t, found{State: c.state})
			ch, err := d.WaitTask(t.Context(), "alloc/task/1")
			must.NoError(t, err)
			first.results <- lost
			got := result(t, ch)
			must.Eq(t, c.state.ExitCode, got.ExitCode)
			must.Eq(t, c.state.OOMKilled, got.OOMKilled)
			if c.want == "" {
				must.NoError(t, got.Err)
			} else {
				must.ErrorContains(t, got.Err, c.want)
			}
		})
	}
}

func TestTaskThatDockerEndedIsNoSuccess(t *testing.T) {
	d, first, _, _ := waiting(t, found{State: engine.State{ExitCode: 0}})
	d.setup.Load().engine.(*fakeEngine).dies = true
	ch, err := d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	first.results <- lost
	must.Eq(t, lost, result(t, ch), must.Sprint("without live-restore Docker ends its containers"))
}

func TestOutageThatDoesNotEndIsNomads(t *testing.T) {
	d, first, _, _ := waiting(t, found{err: engine.ErrUnreachable})
	d.setup.Load().DockerOutage = 10 * time.Millisecond
	ch, err := d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	first.results <- lost
	must.Eq(t, lost, result(t, ch))
}

func TestContainerThatCannotBeTakenUpIsNomads(t *testing.T) {
	d, first, second, _ := waiting(t, found{State: engine.State{Running: true}})
	second.refuse = errors.New("no")
	ch, err := d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	first.results <- lost
	must.Eq(t, lost, result(t, ch))
}

func TestRemovedContainerIsExplained(t *testing.T) {
	killed := &drivers.ExitResult{ExitCode: 137, Err: errors.New("exit 137")}
	running := found{State: engine.State{Running: false}}
	for name, c := range map[string]struct {
		result *drivers.ExitResult
		finds  []found
	}{
		"gone":           {killed, []found{{err: engine.ErrGone}}},
		"being removed":  {killed, []found{running, {State: engine.State{Removing: true}}}},
		"during outages": {lost, []found{{err: engine.ErrGone}}},
	} {
		t.Run(name, func(t *testing.T) {
			d, first, _, messages := waiting(t, c.finds...)
			ch, err := d.WaitTask(t.Context(), "alloc/task/1")
			must.NoError(t, err)
			first.results <- c.result
			must.Eq(t, c.result, result(t, ch))
			message(t, messages, "dangling_containers { enabled = false }")
		})
	}
}

func TestOutOfMemoryThatIsKnownLate(t *testing.T) {
	d, first, _, _ := waiting(t, found{}, found{State: engine.State{ExitCode: 137, OOMKilled: true}})
	ch, err := d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	first.results <- &drivers.ExitResult{ExitCode: 137, Err: errors.New("exit 137")}
	got := result(t, ch)
	must.True(t, got.OOMKilled)
	must.ErrorContains(t, got.Err, "OOM Killed")
}

func TestStoppedTaskIsNotLookedFor(t *testing.T) {
	d, first, _, messages := waiting(t, found{err: engine.ErrGone})
	ch, err := d.WaitTask(t.Context(), "alloc/task/1")
	must.NoError(t, err)
	must.NoError(t, d.StopTask("alloc/task/1", time.Second, ""))
	first.results <- &drivers.ExitResult{ExitCode: 137, Err: errors.New("exit 137")}
	must.Eq(t, 137, result(t, ch).ExitCode)
	must.NoError(t, d.DestroyTask("alloc/task/1", false))
	_, err = d.InspectTask("alloc/task/1")
	must.ErrorIs(t, err, drivers.ErrTaskNotFound)
	must.Eq(t, 0, len(messages))
}

func TestLogPipesAreHeldAndReleased(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stdout.fifo")
	must.NoError(t, unix.Mkfifo(path, 0o600))
	reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	must.NoError(t, err)
	defer reader.Close()

	tk := &task{handle: &drivers.TaskHandle{Config: &drivers.TaskConfig{StdoutPath: path, StderrPath: os.DevNull}}}
	tk.holdLogs()
	must.Len(t, 1, tk.logs, must.Sprint("only pipes are held"))
	other, err := os.OpenFile(path, os.O_WRONLY, 0)
	must.NoError(t, err)
	must.NoError(t, other.Close())
	ended := make(chan error, 1)
	go func() {
		_, err := reader.Read(make([]byte, 1))
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("the reader saw the end although we hold the pipe: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	tk.releaseLogs()
	must.ErrorContains(t, <-ended, "EOF")
}

// Only an allocation that has been on this node can have ended there.
func TestEnded(t *testing.T) {
	d, _, _, _ := waiting(t, found{})
	allocs, seen := t.TempDir(), map[string]bool{}
	cfg := &drivers.TaskConfig{NodeID: "node-1", AllocDir: filepath.Join(allocs, "b")}
	d.learnNode(cfg)
	d.learnNode(&drivers.TaskConfig{})
	nodeID, dir, _ := d.tracked()
	must.Eq(t, "node-1", nodeID)
	must.Eq(t, allocs, dir)

	must.False(t, ended(dir, "b", seen), must.Sprint("another client's, perhaps"))
	must.NoError(t, os.Mkdir(cfg.AllocDir, 0o700))
	must.False(t, ended(dir, "b", seen), must.Sprint("it may start again"))
	must.False(t, ended(dir, "../x", seen))
	must.False(t, ended("", "b", seen), must.Sprint("no task has been here"))
	must.NoError(t, os.Remove(cfg.AllocDir))
	must.True(t, ended(dir, "b", seen))
}

// The reaper spares the container of a task whose start takes longer than its grace.
func TestStartingIsTracked(t *testing.T) {
	d, first, _, _ := waiting(t, found{})
	first.started = make(chan *drivers.TaskConfig)
	spared := func() bool {
		_, _, ids := d.tracked()
		return ids["starting"]
	}
	cfg := &drivers.TaskConfig{ID: "starting/task/1", Name: "task", AllocID: "starting", AllocDir: t.TempDir()}
	must.NoError(t, cfg.EncodeConcreteDriverConfig(map[string]any{}))
	must.False(t, spared())
	done := make(chan error)
	go func() {
		_, _, err := d.StartTask(cfg)
		done <- err
	}()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(spared), wait.Timeout(30*time.Second)))
	<-first.started
	must.NoError(t, <-done)
	must.False(t, spared())
}

// A task that replaces its log pipe with a symlink cannot make the driver open another file for
// writing.
func TestLogPipesAreNotSwapped(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	must.NoError(t, os.Mkdir(at("logs"), 0o755))
	path := at("logs/stdout.fifo")
	must.NoError(t, unix.Mkfifo(path, 0o600))
	reader, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	must.NoError(t, err)
	defer reader.Close()
	must.NoError(t, os.WriteFile(at("other"), nil, 0o600))
	must.NoError(t, os.Symlink(at("other"), at("logs/link")))

	stop := make(chan struct{})
	var attacker sync.WaitGroup
	attacker.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, at("logs/link"), unix.RENAME_EXCHANGE)
			}
		}
	})
	defer attacker.Wait()
	defer close(stop)
	held, others := 0, 0
	for range 20_000 {
		tk := &task{handle: &drivers.TaskHandle{Config: &drivers.TaskConfig{StdoutPath: path}}}
		tk.holdLogs()
		for _, f := range tk.logs {
			held++
			if fi, err := f.Stat(); err != nil || fi.Mode()&os.ModeNamedPipe == 0 {
				others++
			}
		}
		tk.releaseLogs()
	}
	must.Positive(t, held)
	must.Zero(t, others, must.Sprintf("opened another file %d of %d times", others, held))
}

func TestDecoratedFingerprint(t *testing.T) {
	stock := &drivers.Fingerprint{
		Attributes: map[string]*pstructs.Attribute{
			"driver.docker":         pstructs.NewBoolAttribute(true),
			"driver.docker.version": pstructs.NewStringAttribute("28.0"),
		},
		Health: drivers.HealthStateHealthy, HealthDescription: "Healthy",
	}
	d := &Driver{name: Name}
	s := &setup{pool: 4, settings: &settings{Settings: &config.Settings{Engine: "docker", Policy: policy.Decider{Name: "flowcon"}, Mode: "weight", Estimator: "robust"}}}
	got := d.decorate(s, stock)
	must.MapNotContainsKey(t, got.Attributes, "driver.docker")
	must.Eq(t, "28.0", got.Attributes["driver.ebbtide.docker.version"].GoString())
	must.Eq(t, "docker", got.Attributes["driver.ebbtide.engine"].GoString())
	must.Eq(t, "4", got.Attributes["driver.ebbtide.pool_cores"].GoString())

	d.name = DockerName
	got = d.decorate(s, stock)
	must.MapContainsKey(t, got.Attributes, "driver.docker")
	must.Eq(t, "28.0", got.Attributes["driver.docker.version"].GoString())
	must.Eq(t, "flowcon", got.Attributes["driver.docker.ebbtide.policy"].GoString())

	got = d.decorate(s, &drivers.Fingerprint{Health: drivers.HealthStateUndetected, HealthDescription: "Failed to connect to docker daemon"})
	must.MapLen(t, 0, got.Attributes)
	must.True(t, strings.Contains(got.HealthDescription, "docker daemon"))
}
