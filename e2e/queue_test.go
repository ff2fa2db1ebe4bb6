// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/cli"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/shim/store"
)

// TestQueue: jobs that need most of a client's memory run one after the other, the shortest first,
// whatever the order of their submission. Without the shim they would wait; drained of it, Nomad
// places them.
func TestQueue(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	c := newCluster(t, h, "exec", clusterOptions{})
	node, _, err := c.agent.API.Nodes().Info(c.agent.NodeID(), nil)
	must.NoError(t, err)
	memory := int(node.NodeResources.Memory.MemoryMB) * 6 / 10

	queued := func(id, duration string) job {
		k := shell("until [ -e /alloc/data/end ]; do sleep 0.1; done")
		k.memory = memory
		return job{
			id: id, tasks: []task{k},
			body: fmt.Sprintf("meta {\n ebbtide_queue = \"true\"\n ebbtide_duration = %q\n}\nconstraint {\n attribute = \"${meta.ebbtide_hold}\"\n value = \"released\"\n}", duration),
		}
	}
	end := func(a *api.AllocationListStub) {
		must.NoError(t, os.WriteFile(filepath.Join(c.agent.AllocDir(a.ID), "alloc/data/end"), nil, 0o644))
	}
	running := func() []*api.AllocationListStub {
		all, _, err := c.agent.API.Allocations().List(nil)
		must.NoError(t, err)
		return slices.DeleteFunc(all, func(a *api.AllocationListStub) bool { return a.ClientStatus != "running" })
	}
	shimConfig := config.Default()
	shimConfig.Interval = time.Second
	shimConfig.Web.Address, shimConfig.Nomad.Address = "", c.agent.Addr
	stop := runShims(t, shimConfig, "shim")

	c.register(t, queued("first", "10h"))
	eventually(t, "the first has its place", func() error {
		if len(running()) == 0 {
			return errors.New("nothing runs")
		}
		return nil
	})
	c.register(t, queued("long", "2h"))
	c.register(t, queued("short", "5m"))
	c.register(t, queued("middle", "1h"))
	eventually(t, "the queue has them in order", func() error {
		var out, errs bytes.Buffer
		must.Eq(t, 0, cli.Run([]string{"queue", "-address", c.agent.Addr}, nil, &out, &errs), must.Sprint(errs.String()))
		at := func(id string) int { return strings.Index(out.String(), "default/"+id+" ") }
		if at("short") < 0 || at("middle") < at("short") || at("long") < at("middle") || !strings.Contains(out.String(), "no place is free") {
			return fmt.Errorf("it has\n%s", out.String())
		}
		t.Log(out.String())
		return nil
	})
	var owners, errs bytes.Buffer
	must.Eq(t, 0, cli.Run([]string{"queue", "-owners", "-address", c.agent.Addr}, nil, &owners, &errs), must.Sprint(errs.String()))
	must.RegexMatch(t, regexp.MustCompile(`\ndefault +1 +60\.\d% +\d+\.\d% +1 +3\n`), owners.String())

	var order []string
	for range 3 {
		all := running()
		must.Len(t, 1, all, must.Sprint("there is room for one"))
		order = append(order, all[0].JobID)
		end(all[0])
		eventually(t, "the next has its place", func() error {
			if next := running(); len(next) != 1 || next[0].JobID == all[0].JobID {
				return fmt.Errorf("%d run", len(next))
			}
			return nil
		})
	}
	must.Eq(t, []string{"first", "short", "middle"}, order)
	must.StrContains(t, movesOf(t, c.agent, "short"), " queue placed number 1 of the queue")

	// All shims are gone: jobs wait, until one has not led for long enough, or an operator opens the hold.
	stop()
	placed := func(id string) {
		eventually(t, "Nomad places "+id, func() error {
			if !slices.ContainsFunc(running(), func(a *api.AllocationListStub) bool { return a.JobID == id }) {
				return errors.New("it waits")
			}
			return nil
		})
	}
	fallback := func() string {
		var out, errs bytes.Buffer
		must.Eq(t, 0, cli.Run([]string{"queue", "drain", "-fallback", "1h", "-address", c.agent.Addr}, nil, &out, &errs), must.Sprint(errs.String()))
		return out.String()
	}
	c.register(t, queued("left", "1m"))
	must.StrContains(t, fallback(), "a shim has led ")
	vars := store.Store{Client: c.agent.API, Namespace: "default", Path: shimConfig.Leader.Path}
	report, err := vars.LoadReport(t.Context())
	must.NoError(t, err)
	report.At = report.At.Add(-time.Hour)
	must.NoError(t, vars.SaveReport(t.Context(), *report))
	must.StrContains(t, fallback(), "default/left is released\n")
	last := running()
	must.Len(t, 1, last)
	must.Eq(t, "long", last[0].JobID)
	end(last[0])
	placed("left")

	c.register(t, queued("alone", "1m"))
	end(running()[0])
	released := "released"
	_, err = c.agent.API.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{NodeID: c.agent.NodeID(), Meta: map[string]*string{"ebbtide_hold": &released}}, nil)
	must.NoError(t, err)
	placed("alone")
}
