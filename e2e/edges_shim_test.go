// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/policies"
	"github.com/ebbtide/ebbtide/shim/store"
)

func optIn(j job) job {
	j.body += "\nmeta {\n ebbtide_migrate = \"true\"\n}"
	return j
}

// grower returns a job that keeps learning: its value changes by the same fraction of its range
// with each report.
func grower(id string) job {
	return job{id: id, tasks: []task{shell(`n=0; v=-100
while :; do n=$((n+1)); v=$((v*105/100)); echo step=$n loss=$v; sleep 0.5; done`)}}
}

// TestShimEdges disconnects a shim, restarts the server, and has the shim rebalance; another
// shim is killed in each phase of a move.
func TestShimEdges(t *testing.T) {
	t.Parallel()
	s := newSite(t, map[string]string{"specon_interval": `"2s"`, "specon_alpha": "0.05"})
	t.Run("killed", func(t *testing.T) { s.testShimKilled(t) })
	t.Run("cut off", func(t *testing.T) { s.testShimCutOff(t) })
	s.completedOnce(t)
}

// shimProbe reads the metrics and health of a shim in this process.
type shimProbe struct{ address string }

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	must.NoError(t, l.Close())
	return l.Addr().String()
}

func (w shimProbe) health() (int, error) {
	resp, err := http.Get("http://" + w.address + "/health")
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

func (w shimProbe) metric(name string) (float64, error) {
	resp, err := http.Get("http://" + w.address + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, errors.New("there is no metric " + name)
}

// follows waits until the shim is connected and has decided several times.
func (w shimProbe) follows(t *testing.T) {
	t.Helper()
	first := -1.0
	eventually(t, "the shim follows the cluster", func() error {
		code, err := w.health()
		if err != nil || code != http.StatusOK {
			return fmt.Errorf("its health is %d: %w", code, err)
		}
		if yes, err := w.metric("ebbtide_shim_connected"); err != nil || yes != 1 {
			return fmt.Errorf("connected: %v, %w", yes, err)
		}
		n, err := w.metric("ebbtide_shim_decision_seconds_count")
		if first < 0 {
			first = n
		}
		if err != nil || n < first+3 {
			return fmt.Errorf("it has decided %v times: %w", n, err)
		}
		return nil
	})
}

// cutOff drops all requests while meanwhile runs.
func (d *apiProxy) cutOff(t *testing.T, meanwhile func()) {
	d.blocked.Store(true)
	d.CloseClientConnections()
	meanwhile()
	d.blocked.Store(false)
}

// testShimCutOff: a shim loses the stream, then the server, recovers, and rebalances to the empty
// node once all movable jobs are categorised.
func (s *site) testShimCutOff(t *testing.T) {
	d := newAPIProxy(t, s.server.Addr)
	w := shimProbe{freeAddress(t)}
	c := config.Default()
	c.Interval, c.Rebalance.Interval = time.Second, time.Second
	c.Relocation.Enabled, c.Migration.Enabled, c.Rebalance.Enabled = false, true, true
	c.Web.Address, c.Nomad.Address, c.Leader.Path = w.address, d.URL, "ebbtide/cut"

	s.eligible(t, s.b, false)
	var others []string
	plain := trainee("plain") // converges, and is not movable
	for _, j := range []job{plain, grower("grows-0"), grower("grows-1")} {
		s.a.start(t, j)
		others = append(others, j.id)
	}
	mine := []string{"mine-0", "mine-1"}
	for _, id := range mine {
		alloc := s.a.start(t, optIn(trainee(id)))
		s.a.waitStatus(t, alloc, "train", "sorted", func(st status.Status) bool { return st.SpeCon.Category != "" })
	}
	stop := runShims(t, c, "shim")
	vars := store.Store{Client: s.server.API, Namespace: c.Leader.Namespace, Path: c.Leader.Path}
	w.follows(t)
	eventually(t, "it has been decided that they stay", func() error {
		jobs, err := vars.Jobs(t.Context())
		must.NoError(t, err)
		decided := 0
		for key, j := range jobs {
			if slices.Contains(mine, key.ID) && !j.Marked.IsZero() {
				decided++
			}
		}
		if decided < len(mine) {
			return fmt.Errorf("%d are", decided)
		}
		return nil
	})

	d.cutOff(t, func() {
		eventually(t, "the shim is not well", func() error {
			if code, err := w.health(); code != http.StatusServiceUnavailable {
				return fmt.Errorf("its health is %d: %w", code, err)
			}
			return nil
		})
	})
	w.follows(t)
	must.NoError(t, s.server.Kill(deadline(t, stepDeadline)))
	must.NoError(t, s.server.Restart(deadline(t, startDeadline)))
	w.follows(t)

	s.eligible(t, s.b, true)
	balanced := func() (moved []store.Entry) {
		notes, err := vars.Entries(t.Context())
		must.NoError(t, err)
		return slices.DeleteFunc(notes, func(e store.Entry) bool { return e.Policy != policies.SpeConRebalance })
	}
	eventually(t, "one has been moved", func() error {
		if notes := balanced(); len(notes) == 0 {
			return errors.New("nothing was done")
		}
		return nil
	})
	w.follows(t)
	w.follows(t)
	notes := balanced()
	must.Len(t, 1, notes)
	must.Eq(t, "", notes[0].Error)
	must.True(t, slices.Contains(mine, notes[0].Job))
	on := make(map[string]int)
	for _, id := range mine {
		m := &moving{site: s, id: id}
		now, err := m.only(t)
		must.NoError(t, err)
		on[now.NodeName]++
	}
	must.Eq(t, map[string]int{"a": 1, "b": 1}, on)
	for _, id := range others {
		stubs, err := s.a.agent.Allocs(deadline(t, stepDeadline), id)
		must.NoError(t, err)
		must.Len(t, 1, stubs, must.Sprint("a job that has not opted in stays"))
		must.Eq(t, uint64(0), stubs[0].JobVersion)
	}
	stop()
}

// testShimKilled kills a shim with four moves in different phases.
func (s *site) testShimKilled(t *testing.T) {
	cliPath, err := s.h.Tools.CLI(deadline(t, startDeadline))
	must.NoError(t, err)
	start := func(name, address, policies string) *harness.Process {
		file := filepath.Join(t.TempDir(), name+".hcl")
		must.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf(shimConfig, address, policies)), 0o644))
		p, err := s.h.Start(deadline(t, startDeadline), name, []string{cliPath, "shim", "-config", file}, nil)
		must.NoError(t, err)
		return p
	}
	s.eligible(t, s.b, false)
	for i := range 4 {
		s.a.start(t, grower(fmt.Sprintf("beside-%d", i)))
	}
	var jobs []job
	for _, p := range phases {
		jobs = append(jobs, optIn(learner("shim-"+string(p))))
	}
	moves := s.learn(t, jobs...)
	d := newAPIProxy(t, s.server.Addr)
	f := holdFour(moves, d)
	killed := start("shim-killed", d.URL, "placement {\n enabled = true\n window = \"5m\"\n}")
	f.reached(t, func() {})
	must.NoError(t, killed.Signal(unix.SIGKILL)) // its held requests are not forwarded
	next := start("shim-next", s.server.Addr, "")
	t.Run("then", func(t *testing.T) {
		for i, m := range moves {
			t.Run(string(phases[i]), func(t *testing.T) {
				t.Parallel()
				now, starts := m.checkOnce(t)
				t.Logf("%s runs on %s, started at steps %v", m.id, now.NodeName, starts)
				want := "a"
				if phases[i] == bound || phases[i] == running {
					want = "b"
				}
				must.Eq(t, want, now.NodeName)
			})
		}
	})
	must.NoError(t, next.Signal(unix.SIGTERM))
	must.NoError(t, next.Wait(deadline(t, stepDeadline)))
}

// shimConfig allows concurrent moves.
const shimConfig = shimToKill + `limits {
  in_flight        = 4
  per_node         = 4
  moves_per_minute = 100
}
%s
`
