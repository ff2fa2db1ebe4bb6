// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"
)

// fingerprinted is a decorated driver that answers every query immediately.
type fingerprinted struct{ *fakeDriver }

func (fingerprinted) Fingerprint(context.Context) (<-chan *drivers.Fingerprint, error) {
	ch := make(chan *drivers.Fingerprint, 1)
	ch <- &drivers.Fingerprint{Health: drivers.HealthStateHealthy}
	close(ch)
	return ch, nil
}

func (fingerprinted) ConfigSchema() (*hclspec.Spec, error) { return hclspec.NewObject(nil), nil }

// Nomad's queries before the configuration leave no goroutines.
func TestQuestionsLeaveNothing(t *testing.T) {
	d := newDriver(t, Name)
	before := runtime.NumGoroutine()
	for range 20 {
		_, err := d.ConfigSchema()
		must.NoError(t, err)
		_, err = d.Capabilities()
		must.NoError(t, err)
		_, err = d.TaskConfigSchema()
		must.NoError(t, err)
	}
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return runtime.NumGoroutine() < before+20 }), wait.Timeout(30*time.Second)))
}

// Concurrent starts and queries see either the whole new config or none of it (run with
// -race).
func TestConfigWhileInUse(t *testing.T) {
	const rounds = 50
	// The loop may write a task's last status after the test ends.
	allocs, err := os.MkdirTemp("", "ebbtide-allocs-")
	must.NoError(t, err)
	t.Cleanup(func() {
		must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool { return os.RemoveAll(allocs) == nil }), wait.Timeout(30*time.Second)))
	})
	d := newDriver(t, Name)
	spec, err := d.ConfigSchema()
	must.NoError(t, err)
	data, err := encodeHCL(t, spec, `engine = "exec"`)
	must.NoError(t, err)
	d.newDriver = func(context.Context, string, hclog.Logger) (drivers.DriverPlugin, error) {
		return fingerprinted{&fakeDriver{recovered: make(chan string, 2*rounds)}}, nil
	}
	must.NoError(t, d.SetConfig(&base.Config{PluginConfig: data}))

	var all sync.WaitGroup
	all.Go(func() {
		for range rounds {
			if err := d.SetConfig(&base.Config{PluginConfig: data}); err != nil {
				must.ErrorContains(t, err, "cannot reconfigure the plugin")
			}
		}
	})
	all.Go(func() {
		for range rounds {
			ch, err := d.Fingerprint(t.Context())
			must.NoError(t, err)
			fp := <-ch
			must.Eq(t, "exec", fp.Attributes["driver.ebbtide.engine"].GoString())
			_, _, err = d.CreateNetwork("alloc", nil)
			must.ErrorContains(t, err, "the exec driver does not create networks")
		}
	})
	for n := range 2 {
		all.Go(func() {
			for i := range rounds {
				cfg := taskConfig(t, nil, nil)
				cfg.ID, cfg.AllocDir = fmt.Sprintf("alloc/task/%d.%d", n, i), filepath.Join(allocs, fmt.Sprintf("%d.%d", n, i))
				must.NoError(t, os.Mkdir(cfg.AllocDir, 0o755))
				handle, _, err := d.StartTask(cfg)
				must.NoError(t, err)
				held, err := d.task(cfg.ID)
				must.NoError(t, err)
				must.NoError(t, held.setup.ctx.Err(), must.Sprint("what holds a task has not been stopped"))
				must.NoError(t, d.DestroyTask(cfg.ID, true))
				must.NoError(t, d.RecoverTask(handle))
				must.NoError(t, d.DestroyTask(cfg.ID, true))
			}
		})
	}
	all.Wait()
}

// Metrics are served once the agent has configured the plugin, not while it only checks the config,
// and continue after a reconfiguration.
func TestMetrics(t *testing.T) {
	d := newDriver(t, Name)
	d.newDriver = func(context.Context, string, hclog.Logger) (drivers.DriverPlugin, error) {
		return fingerprinted{&fakeDriver{}}, nil
	}
	spec, err := d.ConfigSchema()
	must.NoError(t, err)
	socket := filepath.Join(t.TempDir(), "metrics.sock")
	data, err := encodeHCL(t, spec, fmt.Sprintf("engine = \"exec\"\nmetrics_address = %q", "unix:"+socket))
	must.NoError(t, err)
	must.NoError(t, d.SetConfig(&base.Config{PluginConfig: data}))
	time.Sleep(100 * time.Millisecond)
	_, err = os.Lstat(socket)
	must.ErrorIs(t, err, os.ErrNotExist)

	client := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", socket)
	}}}
	for range 2 {
		must.NoError(t, d.SetConfig(&base.Config{PluginConfig: data, AgentConfig: &base.AgentConfig{}}))
		must.Wait(t, wait.InitialSuccess(wait.ErrorFunc(func() error {
			resp, err := client.Get("http://driver/metrics")
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err == nil && !strings.Contains(string(body), "\nebbtide_driver_pool_cores ") {
				err = fmt.Errorf("no metrics in %q", body)
			}
			return err
		}), wait.Timeout(30*time.Second)))
	}
}
