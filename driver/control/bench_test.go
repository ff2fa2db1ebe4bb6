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

// paperKernel reads files, like a real cgroup.
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

// BenchmarkLoop measures the loop with 100 tasks that report twice a second, under each policy:
// logs, usage, growth, decisions every 20 s and status files. Pictures have their own budget
// (package publish). core% is CPU time (user and system) per second, in per cent of a core, less
// the cost of writing the logs. It runs in real time: -benchtime 40x.
func BenchmarkLoop(b *testing.B) {
	for _, name := range policies.Names() {
		b.Run(name, func(b *testing.B) {
			n := newNode(b, func(o *Options) {
				o.Policy = decider(b, name)
				o.Interval = 20 * time.Second
				o.PoolCores = 16
			})
			var do []func() (float64, string)
			var fakes []*fake
			for i := range 100 {
				f := n.benchTask(b, fmt.Sprintf("task%d", i))
				fakes = append(fakes, f)
				do = append(do, learner(0.005*float64(i+1), 0.02, 0.01))
				n.c.Add(f.Task)
			}
			time.Sleep(5 * time.Second) // until all have joined
			var spent time.Duration
			for b.Loop() {
				before := cpuTime(b)
				for i, f := range fakes {
					cpu, line := do[i]()
					f.burn(cpu)
					_, line2 := do[i]()
					_, err := fmt.Fprintf(f.log, "%s\n%s\n", line, line2)
					must.NoError(b, err)
				}
				written := cpuTime(b)
				spent -= written - before
				time.Sleep(time.Second)
				spent += cpuTime(b) - before
			}
			b.ReportMetric(100*spent.Seconds()/float64(b.N), "core%")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	var ru unix.Rusage
	must.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &ru))
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func (n *node) benchTask(b *testing.B, name string) *fake {
	f := n.task(name)
	path := filepath.Join(n.dir, name, "cgroup")
	must.NoError(b, os.WriteFile(path, []byte("123456789\n"), 0o644))
	f.Locate = func(context.Context) (Cgroup, error) { return paperKernel{f.kernel, path}, nil }
	return f
}
