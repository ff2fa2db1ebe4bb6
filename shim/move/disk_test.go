// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

func TestDisk(t *testing.T) {
	d := func(used, free uint64, inodes float64, allocs int) Disk {
		return Disk{Used: used, Free: free, Inodes: inodes, Allocs: allocs, Limits: GCLimits{80, 70, 50}}
	}
	for _, c := range []struct {
		disk              Disk
		more              uint64
		collects, crowded string
	}{
		{d(80, 20, 70, 49), 0, "", ""},
		{d(81, 19, 0, 0), 0, "its disk is 81.0 % full (gc_disk_usage_threshold 80)", ""},
		{d(40<<20, 60<<20, 0, 0), 50 << 20, "its disk is 90.0 % full with 50 MiB more (gc_disk_usage_threshold 80)", ""},
		{d(1, 1, 71, 50), 0, "71.0 % of its inodes are used (gc_inode_usage_threshold 70)", "it has 50 allocations (gc_max_allocs 50)"},
		{d(1, 1, math.NaN(), 0), 0, "NaN % of its inodes are used (gc_inode_usage_threshold 70)", ""},
	} {
		must.Eq(t, c.collects, c.disk.Collects(c.more))
		must.Eq(t, c.crowded, c.disk.Crowded())
	}
}

// Servers report the disk's use; a node's limits are its own agent's, or unknown.
func TestAPI_Disk(t *testing.T) {
	var self string
	serve := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/client/stats":
			fmt.Fprint(w, `{"AllocDirStats": {"Size": 100, "Used": 60, "Available": 40, "InodesUsedPercent": 3}}`)
		case "/v1/agent/self":
			if self == "" {
				http.Error(w, "Permission denied", http.StatusForbidden)
			}
			fmt.Fprint(w, self)
		}
	}
	nomad := httptest.NewServer(http.HandlerFunc(serve))
	defer nomad.Close()
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	a := API{client, func(*api.Node) (*api.Client, error) { return client, nil }}
	agent := func(node, disk, allocs string) string {
		return fmt.Sprintf(`{"config": {"Client": {"GCDiskUsageThreshold": %s, "GCInodeUsageThreshold": 50, "GCMaxAllocs": 9}}, "stats": {"client": {"node_id": %q, "num_allocations": %q}}}`, disk, node, allocs)
	}

	self = agent("n", "12.5", "7")
	d, err := a.Disk(t.Context(), &api.Node{ID: "n"})
	must.NoError(t, err)
	must.Eq(t, Disk{Used: 60, Free: 40, Inodes: 3, Allocs: 7, Limits: GCLimits{12.5, 50, 9}}, d)
	for answer, want := range map[string]string{
		"":                          "needs agent:read: Unexpected response code: 403",
		agent("other", "12.5", "7"): `node "other" answers at its address`,
		agent("n", "0", "7"):        "its agent reports the limits {Disk:0",
		agent("n", "12.5", ""):      `with "" allocations`,
	} {
		self = answer
		d, err := a.Disk(t.Context(), &api.Node{ID: "n"})
		must.NoError(t, err)
		must.ErrorContains(t, d.Assumed, want)
		must.Eq(t, DefaultGCLimits, d.Limits)
		must.Eq(t, 0, d.Allocs)
	}
	d, err = API{Client: client}.Disk(t.Context(), &api.Node{ID: "n"})
	must.NoError(t, err)
	must.ErrorContains(t, d.Assumed, "not asked")
	nomad.Close()
	_, err = a.Disk(t.Context(), &api.Node{ID: "n"})
	must.ErrorContains(t, err, "reaching node n: ")
}
