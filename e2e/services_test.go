// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// serveArgs result in batches of a few tenths of a second.
const serveArgs = "serve -model mlp -threads 2 -work 200 -report 500ms"

// service returns an inference service that uses two CPUs, with a client that requests batches in
// sequence. The response time is read from its output or histogram.
func (c *cluster) service(id string, target float64, histogram bool) job {
	serve := shell("exec trainer " + serveArgs + " -listen $NOMAD_ADDR_http")
	serve.name, serve.cpu = "serve", 400
	serve.meta = map[string]string{"ebbtide_qoe_target": fmt.Sprintf("%.4f", target)}
	serve.config = "progress {\n metric = \"response_s\"\n}"
	if histogram {
		serve.config = `progress {
  prometheus = "http://${NOMAD_ADDR_http}/metrics"
  metric     = "response_seconds"
  quantile   = 0.5
}`
	}
	load := shell("exec trainer load -silent -target http://$NOMAD_ADDR_http")
	load.name, load.meta = "load", map[string]string{"ebbtide_limit": "off"}
	return job{id: id, group: "network {\n port \"http\" {}\n}\n", tasks: []task{serve, load}}
}

// keeps waits until a status condition has held for several decisions, as the machine is noisy.
func (c *cluster) keeps(t *testing.T, alloc *api.Allocation, task, what string, want func(status.Status) bool) status.Status {
	t.Helper()
	var since time.Time
	return c.waitStatus(t, alloc, task, what+" for some decisions", func(s status.Status) bool {
		switch {
		case !want(s):
			since = time.Time{}
		case since.IsZero():
			since = s.Updated
		}
		return !since.IsZero() && s.Updated.Sub(since) >= 5*time.Second
	})
}

// crowded reports whether processes outside Nomad take the service's CPU.
func crowded(s status.Status) bool {
	return s.Class == "B" && s.Limit.Fraction > 0.6 && s.Use < s.Limit.Fraction*3/4
}

// responseAlone returns a batch's duration on an idle machine.
func responseAlone(t *testing.T) float64 {
	t.Helper()
	root, err := harness.FindRoot()
	must.NoError(t, err)
	trainer, err := harness.NewTools(root, t.Logf).Trainer(deadline(t, startDeadline))
	must.NoError(t, err)
	port, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	address := port.Addr().String()
	must.NoError(t, port.Close())
	ctx, cancel := context.WithCancel(deadline(t, startDeadline))
	defer cancel()
	serve := exec.CommandContext(ctx, trainer, append(strings.Fields(serveArgs), "-listen", address)...)
	must.NoError(t, serve.Start())
	defer serve.Wait()
	defer cancel()
	record := filepath.Join(t.TempDir(), "requests.csv")
	out, err := exec.CommandContext(ctx, trainer, "load", "-requests", "15", "-record", record, "-target", "http://"+address).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	data, err := os.ReadFile(record)
	must.NoError(t, err)
	least := math.Inf(1)
	for _, row := range strings.Fields(string(data))[1:] {
		_, row, _ = strings.Cut(row, ",")
		cell, _, _ := strings.Cut(row, ",")
		response, err := strconv.ParseFloat(cell, 64)
		must.NoError(t, err)
		least = min(least, response)
	}
	must.Between(t, 0.001, least, 10)
	return least
}

func satisfied(s status.Status) bool { return s.Class == "S" || s.Class == "G" }

// TestServices: next to training jobs a service regains its target, and they get the rest.
func TestServices(t *testing.T) {
	alone := responseAlone(t)
	for _, mode := range []string{"weight", "quota"} {
		t.Run(mode, func(t *testing.T) {
			c := newCluster(t, newHarness(t), "exec", clusterOptions{settings: map[string]string{
				"mode": quote(mode), "max_interval": `"4s"`, "quota_min_cores": "0.1",
			}})
			// Two fifths of the machine are enough, a third is not.
			target := 2.5 * alone
			svc := c.start(t, c.service("service", target, mode == "weight"))
			pid := c.pid(t, svc, "serve")
			st := c.keeps(t, svc, "serve", "satisfied alone", satisfied)
			t.Logf("alone a batch takes %.3f s; the target is %.3f s", st.Target.Response, target)
			must.Eq(t, "service", st.Kind)
			must.Eq(t, "", st.Category)
			must.Between(t, target-0.001, float64(st.Target.QoE), target+0.001)
			must.Eq(t, map[string]int{st.Class: 1}, withoutZeros(st.Node.Classes))
			must.MapEmpty(t, withoutZeros(st.Node.Counts))
			must.Eq(t, 400, kernel(t, pid).Shares)
			must.Eq(t, 0, kernel(t, pid).QuotaCores)

			grow := c.start(t, job{id: "growing", tasks: []task{growing("train")}})
			flatAlloc := c.start(t, job{id: "flat", tasks: []task{flat("train")}})
			c.waitStatus(t, flatAlloc, "train", "converged", settled("train", "CL"))
			growPID, flatPID := c.pid(t, grow, "train"), c.pid(t, flatAlloc, "train")
			st = c.keeps(t, svc, "serve", "satisfied next to training", func(s status.Status) bool {
				return (satisfied(s) || crowded(s)) && s.Limit.Fraction < 1 && s.Node.Tasks == 4
			})
			if !satisfied(st) {
				t.Log("the machine was too busy otherwise for the service to get what it was given")
			}
			t.Logf("next to training a batch takes %.3f s, with %.0f %% of the pool", st.Target.Response, 100*st.Limit.Fraction)
			must.Between(t, 1.0/6, float64(st.Limit.Fraction), 0.8)
			// The whole pool is divided, and each task has its floor.
			shared(t, c, map[*api.Allocation]string{svc: "serve", grow: "train", flatAlloc: "train"})
			if mode == "weight" {
				sum := kernel(t, pid).Shares + kernel(t, growPID).Shares + kernel(t, flatPID).Shares
				must.Between(t, 1180, sum, 1220)
			} else {
				must.Positive(t, kernel(t, pid).QuotaCores)
				must.Positive(t, kernel(t, flatPID).QuotaCores)
			}
			cores := use(t, 12, pid, growPID, flatPID)
			t.Logf("service %.2f, growing %.2f, converged %.2f cores", cores[0], cores[1], cores[2])
			// At the service's bound both have their floor.
			must.Greater(t, 0.8*cores[2], cores[1])
			eventually(t, "the growing task has no less than the converged one", func() error {
				a, err := c.status(t, grow, "train")
				must.NoError(t, err)
				b, err := c.status(t, flatAlloc, "train")
				must.NoError(t, err)
				if a.Limit.Fraction < b.Limit.Fraction-0.001 {
					return fmt.Errorf("they have %.3f and %.3f", a.Limit.Fraction, b.Limit.Fraction)
				}
				return nil
			})
			c.stop(t, "service")
			if mode == "weight" {
				testUnreachable(t, c, alone/10, growPID, flatPID)
			}
		})
	}
}

// shared waits until the tasks' limits sum to the pool.
func shared(t *testing.T, c *cluster, tasks map[*api.Allocation]string) {
	t.Helper()
	eventually(t, "the pool is divided", func() error {
		var sum float64
		floor := 1 / (2 * float64(len(tasks)))
		for alloc, name := range tasks {
			s, err := c.status(t, alloc, name)
			if err != nil {
				return err
			}
			if l := float64(s.Limit.Fraction); l < floor-1e-6 {
				return fmt.Errorf("%s has %.3f, less than the floor", alloc.JobID, l)
			}
			sum += float64(s.Limit.Fraction)
		}
		if math.Abs(sum-1) > 0.02 {
			return fmt.Errorf("the limits sum to %.3f", sum)
		}
		return nil
	})
}

// testUnreachable: a service with an impossible target gets what the bounds allow.
func testUnreachable(t *testing.T, c *cluster, target float64, others ...int) {
	svc := c.start(t, c.service("unreachable", target, false))
	pid := c.pid(t, svc, "serve")
	floors := func() error {
		var sum, least uint64
		least = math.MaxUint64
		for _, p := range append([]int{pid}, others...) {
			k, err := harness.ReadKernel(p)
			must.NoError(t, err)
			sum += k.Shares
			least = min(least, k.Shares)
		}
		// Some limits may already be set. Shares are integers.
		if n := uint64(len(others) + 1); sum >= 1180 && sum <= 1220 && (least+1)*2*n < sum {
			return fmt.Errorf("one of them has %d shares of %d", least, sum)
		}
		return nil
	}
	eventually(t, "an event says that the target is missed", func() error {
		must.NoError(t, floors())
		if countEvents(t, c, svc, "serve", "misses its target") == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	st := c.keeps(t, svc, "serve", "at its bound", func(s status.Status) bool {
		must.NoError(t, floors())
		return s.Class == "B" && s.Limit.Fraction > 0.6
	})
	must.Between(t, 0.6, float64(st.Limit.Fraction), 0.6667)
	must.True(t, strings.HasPrefix(st.Rule, "dqoes.") || strings.HasPrefix(st.Rule, "auto.service."), must.Sprint(st.Rule))
	for range 20 {
		must.NoError(t, floors())
		time.Sleep(100 * time.Millisecond)
	}
}
