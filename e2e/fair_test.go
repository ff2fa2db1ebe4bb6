// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// epochs returns a training task with a known number of steps that uses all CPUs.
func epochs(steps int) task { return beside(training(steps, lines)) }

// epochsOnOne is like epochs, but uses one CPU.
func epochsOnOne(steps int) task { return spinning(training(steps, lines)) }

// bar is like epochsOnOne, and prints nothing but a progress bar.
func bar(steps int) task {
	return spinning(training(steps, `printf "\r%3d%%|####      | %d/%d [00:10<01:30,  9.9it/s]", 100 * n / last, n, last > "/dev/stderr"; fflush("/dev/stderr")`))
}

const lines = `printf "step %d/%d loss=%.4f\n", n, last, 0.1 + 5 / n; fflush()`

func training(steps int, print string) string {
	return fmt.Sprintf(`awk 'BEGIN { last = %d; for (n = 1; n <= last; n++) { for (k = 0; k < 200000; k++) x += k; %s } }'`, steps, print)
}

// beside runs a command beside a process that spins.
func beside(command string) task {
	return spinning("yes > /dev/null & other=$!\n" + command + "\nkill $other")
}

func spinning(command string) task {
	k := shell(command)
	k.cpu = 400
	return k
}

// testBars: a bar alone tells the steps, and gives no value.
func testBars(t *testing.T, c *cluster) {
	known := func(s status.Status) bool { return s.Fair.RemainingCPUS.Known() && s.Fair.Source == "steps" }
	long := c.start(t, job{id: "long-bar", tasks: []task{bar(10_000)}})
	c.start(t, job{id: "longer-bar", tasks: []task{bar(20_000)}})
	c.waitStatus(t, long, "train", "of known size by its bar", known)
	short := c.start(t, job{id: "short-bar", tasks: []task{bar(800)}})
	st := c.waitStatus(t, short, "train", "preferred by its bar", func(s status.Status) bool {
		return s.Rule == "fsp.preferred" && s.Limit.InForce.Shares > 550 && known(s)
	})
	must.Eq(t, 800, st.Total)
	must.Eq(t, "", st.Metric)
	must.False(t, st.Growth.Known())
	for _, id := range []string{"short-bar", "long-bar", "longer-bar"} {
		c.stop(t, id)
	}
}

// TestFairFinish: a short training runs before a long one, its twin survives a restart of the
// plugin, and an event reports the time gained.
func TestFairFinish(t *testing.T) {
	for _, engine := range []string{"exec", "docker"} {
		t.Run(engine, func(t *testing.T) {
			c := newCluster(t, newHarness(t), engine, clusterOptions{})
			// Each uses one of two cores: what a second one would bring is of no account.
			long, longer := c.start(t, job{id: "long", tasks: []task{epochsOnOne(1e6)}}), c.start(t, job{id: "longer", tasks: []task{epochsOnOne(2e6)}})
			known := func(s status.Status) bool { return s.Fair.RemainingCPUS.Known() && s.Fair.Source == "steps" }
			c.waitStatus(t, long, "train", "of known size", known)
			short := c.start(t, job{id: "short", tasks: []task{epochsOnOne(800)}})
			c.waitStatus(t, short, "train", "of known size", known)
			c.waitStatus(t, short, "train", "preferred", func(s status.Status) bool {
				return s.Rule == "fsp.preferred" && s.Limit.InForce.Shares > 550 && !s.Fair.FairFinish.IsZero()
			})
			sum := uint64(0)
			for _, alloc := range []*api.Allocation{long, longer, short} {
				sum += kernel(t, c.pid(t, alloc, "train")).Shares
			}
			must.Between(t, 1190, sum, 1210)
			was := c.waitStatus(t, long, "train", "behind", func(s status.Status) bool { return s.Fair.AheadCPUS < -2 })

			before := time.Now()
			for _, pid := range c.agent.PluginPIDs("ebbtide-driver") {
				must.NoError(t, unix.Kill(pid, unix.SIGKILL))
			}
			now := c.waitStatus(t, long, "train", "taken up again", func(s status.Status) bool {
				return s.Updated.After(before.Add(time.Second)) && s.Fair.RemainingCPUS.Known()
			})
			t.Logf("ahead by %.1f CPU-seconds, after a kill of the plugin by %.1f", was.Fair.AheadCPUS, now.Fair.AheadCPUS)
			must.Less(t, was.Fair.AheadCPUS/2, now.Fair.AheadCPUS)

			ended, err := c.agent.WaitAllocID(deadline(t, 2*startDeadline), short.ID, "ended", harness.Terminal)
			must.NoError(t, err)
			must.Eq(t, api.AllocClientStatusComplete, ended.ClientStatus)
			ev := c.waitEvent(t, short, "train", "ended after ", "with its fair share it would have taken ")
			t.Log(harness.EventText(ev))
			c.waitStatus(t, long, "train", "told of the time saved", func(s status.Status) bool { return s.Node.SavedS > 1 })
			// Its ghost remains; the last one gets the whole pool.
			c.stop(t, "longer")
			st := c.waitStatus(t, long, "train", "alone", func(s status.Status) bool { return s.Node.Tasks == 1 && s.Limit.Fraction > 0.8 })
			must.Less(t, 0, st.Fair.AheadCPUS)
			c.stop(t, "long")

			if engine == "exec" { // Docker passes on output without line ends in pieces of 16 KiB
				testBars(t, c)
			}

			// A run's cost is known to the next one, without reports.
			silent := shell("awk 'BEGIN { for (k = 0; k < 60000000; k++) x += k }'; sleep 1")
			first := c.finish(t, job{id: "silent", tasks: []task{silent}})
			eventually(t, "the run is kept", func() error {
				data, err := os.ReadFile(filepath.Join(c.agent.AllocDir(first.ID), "..", private.DirName, "runs.json"))
				if err == nil && !strings.Contains(string(data), `"silent"`) {
					err = fmt.Errorf("there are %s", data)
				}
				return err
			})
			c.stop(t, "silent")
			again := c.start(t, job{id: "silent", tasks: []task{silent}})
			c.waitStatus(t, again, "train", "known from its last run", func(s status.Status) bool {
				return s.Fair.Source == "earlier" && s.Fair.RemainingCPUS > 0
			})
		})
	}
}

// TestWaits: a task that mostly waits, as for a GPU, is not slowed by four that use all CPU they get.
func TestWaits(t *testing.T) {
	for _, tc := range []struct{ policy, mode string }{{"auto", "weight"}, {"auto", "quota"}, {"flowcon", "weight"}, {"flowcon", "quota"}} {
		t.Run(tc.policy+" "+tc.mode, func(t *testing.T) {
			c := newCluster(t, newHarness(t), "exec", clusterOptions{settings: map[string]string{"policy": quote(tc.policy), "mode": quote(tc.mode)}})
			k := shell("exec trainer -model logreg -threads 1 -steps 100000 -wait 20ms -every 5")
			k.cpu = 400
			waits := c.start(t, job{id: "waits", tasks: []task{k}})
			speed := func() float64 {
				reports := func(after int64) status.Status {
					return c.waitStatus(t, waits, "train", "reporting", func(s status.Status) bool { return s.Step.Known() && s.Reports > after })
				}
				from := reports(0)
				to := reports(from.Reports + 40)
				return float64(to.Step-from.Step) / to.Updated.Sub(from.Updated).Seconds()
			}
			alone := speed()
			for i := range 4 {
				c.start(t, job{id: fmt.Sprint("spins-", i), tasks: []task{epochs(1e6)}})
			}
			first := c.waitStatus(t, waits, "train", "kept", func(s status.Status) bool {
				return s.Node.Tasks == 5 && strings.Contains(s.Why, "it keeps what Nomad gave it")
			})
			time.Sleep(10 * time.Second) // some decisions
			beside := speed()
			s := c.waitStatus(t, waits, "train", "kept", func(s status.Status) bool { return strings.Contains(s.Why, "it keeps what Nomad gave it") })
			t.Logf("%.1f steps/s alone, %.1f beside the others; demand %.2f, then %.2f cores", alone, beside, first.Fair.CapCores, s.Fair.CapCores)
			must.Eq(t, status.Kernel{Shares: 400}, s.Limit.InForce)
			must.Less(t, 0.4, float64(s.Fair.CapCores))
			must.Greater(t, 0.4*alone, beside)
		})
	}
}
