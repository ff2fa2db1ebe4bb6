// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// paperKernel reads a file or two for each question, as a real cgroup does.
type paperKernel struct {
	*kernel
	path string
}

func (k paperKernel) Usage() (limits.Usage, error) {
	for range 2 {
		if _, err := os.ReadFile(k.path); err != nil {
			return limits.Usage{}, err
		}
	}
	return k.kernel.Usage()
}

func (k paperKernel) Read() (limits.Limits, error) {
	for range 3 {
		if _, err := os.ReadFile(k.path); err != nil {
			return limits.Limits{}, err
		}
	}
	return k.kernel.Read()
}

// BenchmarkLoop is a second in the life of the loop with 100 tasks, each of which
// reports twice a second, under policy flowcon and under none: logs, usage, growth,
// decisions every 20 s, status files, but not the pictures, which have a budget of
// their own (see pictureBudget). The metric core% is CPU time (user and system) per
// second of the node's time, in per cent of a core.
func BenchmarkLoop(b *testing.B) {
	for _, policy := range policies.Names() {
		b.Run(policy, func(b *testing.B) {
			n := benchNode(b, policy)
			const tasks = 100
			var do []func() (float64, string)
			var fakes []*fake
			for i := range tasks {
				f := n.benchTask(b, fmt.Sprintf("task%d", i))
				fakes = append(fakes, f)
				do = append(do, learner(0.005*float64(i+1), 0.02, 0.01))
				n.c.add(b.Context(), f.Task)
			}
			drain := func() {
				for range 20 {
					for _, f := range n.c.takePosted() {
						f(b.Context())
					}
				}
			}
			second := func() {
				n.clock = n.clock.Add(time.Second)
				for i, f := range fakes {
					cpu, line := do[i]()
					f.burn(cpu)
					_, line2 := do[i]()
					_, err := fmt.Fprintf(f.log, "%s\n%s\n", line, line2)
					must.NoError(b, err)
				}
			}
			for range 60 {
				second()
				n.c.tick(b.Context())
				drain()
			}
			var spent time.Duration
			b.ResetTimer()
			for b.Loop() {
				b.StopTimer()
				second()
				b.StartTimer()
				before := cpuTime(b)
				n.c.tick(b.Context())
				drain()
				spent += cpuTime(b) - before
			}
			b.ReportMetric(100*spent.Seconds()/float64(b.N), "core%")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// cpuTime is what this process has used so far.
func cpuTime(b *testing.B) time.Duration {
	var ru unix.Rusage
	must.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &ru))
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func benchNode(b *testing.B, policy string) *node {
	n := newNode(b, func(o *Options) {
		o.Policy = policy
		o.Interval = 20 * time.Second
		o.PoolCores = 16
	})
	return n
}

func (n *node) benchTask(b *testing.B, name string) *fake {
	f := n.task(name)
	path := filepath.Join(n.dir, name, "cgroup")
	must.NoError(b, os.WriteFile(path, []byte("123456789\n"), 0o644))
	f.Locate = func(context.Context) (Cgroup, error) { return paperKernel{f.kernel, path}, nil }
	return f
}
