// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/top/snapshot"
)

// nodesFake is a Nomad whose nodes have snapshots.
type nodesFake struct {
	nodes  []*api.NodeListStub
	allocs []*api.Allocation
	files  map[string]string // snapshots by allocation
	denied map[string]bool   // namespaces without read-fs
	asked  atomic.Int32      // requests for files
}

func (f *nodesFake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var answer any
	switch base, name := path.Dir(r.URL.Path), path.Base(r.URL.Path); {
	case r.URL.Path == "/v1/nodes":
		answer = f.nodes
	case r.URL.Path == "/v1/allocations":
		stubs := []map[string]string{}
		for _, a := range f.allocs {
			if strings.HasPrefix(a.ID, r.URL.Query().Get("prefix")) {
				stubs = append(stubs, map[string]string{"ID": a.ID})
			}
		}
		answer = stubs
	case name == "allocations":
		on := []*api.Allocation{}
		for _, a := range f.allocs {
			if base == "/v1/node/"+a.NodeID {
				on = append(on, a)
			}
		}
		answer = on
	case base == "/v1/allocation":
		answer = f.find(name)
	case base == "/v1/client/fs/stat" || base == "/v1/client/fs/cat":
		a := f.find(name)
		text, ok := f.files[name]
		switch {
		case a == nil || f.denied[a.Namespace]:
			http.Error(w, "Permission denied", http.StatusForbidden)
		case r.URL.Query().Get("path") != ".ebbtide/snapshot.json" || !ok:
			http.Error(w, "open /nomad/x: no such file or directory", http.StatusInternalServerError)
		case path.Base(base) == "cat":
			_, _ = w.Write([]byte(text))
		default:
			_, _ = w.Write([]byte("{}"))
		}
		if path.Base(base) == "stat" {
			f.asked.Add(1)
		}
		return
	}
	if answer == nil {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (f *nodesFake) find(id string) *api.Allocation {
	for _, a := range f.allocs {
		if a.ID == id {
			return a
		}
	}
	return nil
}

func (f *nodesFake) node(id, name string, drivers map[string]*api.DriverInfo) {
	f.nodes = append(f.nodes, &api.NodeListStub{ID: id, Name: name, Drivers: drivers})
}

func (f *nodesFake) alloc(id, node, driver, snapshot string) *api.Allocation {
	group := "g"
	a := &api.Allocation{
		ID: id, NodeID: node, Namespace: "ml", TaskGroup: group, ClientStatus: api.AllocClientStatusRunning, CreateIndex: uint64(len(f.allocs)),
		Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: &group, Tasks: []*api.Task{{Name: "log", Driver: "raw_exec"}, {Name: "train", Driver: driver}}}}},
	}
	f.allocs = append(f.allocs, a)
	if snapshot != "" {
		f.files[id] = snapshot
	}
	return a
}

var (
	underItsName  = map[string]*api.DriverInfo{"docker": {}, "ebbtide": {Attributes: map[string]string{"driver.ebbtide.version": "1"}}}
	underDockers  = map[string]*api.DriverInfo{"docker": {Attributes: map[string]string{"driver.docker.ebbtide.version": "1"}}}
	withoutDriver = map[string]*api.DriverInfo{"docker": {Attributes: map[string]string{"driver.docker": "1"}}}
)

func taken(ago time.Duration, more string) string {
	return fmt.Sprintf(`{"now_s": %d%s}`, time.Now().Add(-ago).Unix(), more)
}

func TestSnapshot(t *testing.T) {
	fake := func() *nodesFake {
		f := &nodesFake{files: make(map[string]string), denied: make(map[string]bool)}
		f.node("aa11", "one", underItsName)
		f.node("ff00", "plain", withoutDriver)
		return f
	}
	run := func(f *nodesFake, args ...string) (status int, stdout, stderr string) {
		nomad := httptest.NewServer(f)
		defer nomad.Close()
		return ebbtide("", append([]string{"snapshot", "-address", nomad.URL}, args...)...)
	}
	good := func(f *nodesFake, want string, args ...string) (stderr string) {
		t.Helper()
		status, stdout, stderr := run(f, append(args, "-compact")...)
		must.Eq(t, exitOK, status, must.Sprint(stderr))
		must.Eq(t, want+"\n", stdout)
		return stderr
	}
	bad := func(f *nodesFake, want string, args ...string) {
		t.Helper()
		status, stdout, stderr := run(f, args...)
		must.Eq(t, exitError, status)
		must.Eq(t, "", stdout)
		must.StrContains(t, stderr, "ebbtide snapshot: ")
		must.StrContains(t, stderr, want)
	}

	// The only node with Ebbtide, and its newest snapshot. Other allocations are not read.
	f := fake()
	f.alloc("a1", "aa11", "ebbtide", taken(time.Minute, ""))
	f.alloc("a2", "aa11", "ebbtide", taken(0, `, "big": 12345678901234567890, "z": "<", "a": 1.50`))
	f.alloc("a3", "aa11", "ebbtide", "")
	f.alloc("a4", "aa11", "docker", taken(-time.Hour, ""))
	f.alloc("a5", "aa11", "ebbtide", taken(-time.Hour, "")).ClientStatus = api.AllocClientStatusComplete
	f.alloc("b1", "ff00", "docker", taken(-time.Hour, ""))
	compact := strings.ReplaceAll(f.files["a2"], " ", "")
	must.Eq(t, "", good(f, compact))
	must.Eq(t, 3, f.asked.Load())
	must.Eq(t, "", good(f, compact, "-node", "one"))
	must.Eq(t, "", good(f, compact, "-node", "aa"))
	status, stdout, _ := run(f)
	must.Eq(t, exitOK, status)
	must.StrContains(t, stdout, "{\n  \"now_s\": ")
	must.Eq(t, "", good(f, strings.ReplaceAll(f.files["a1"], " ", ""), "-alloc", "a1"))
	bad(f, `no allocation has the ID prefix "c"`, "-alloc", "c")
	bad(f, "none of 1 allocations has a snapshot", "-alloc", "a3")
	bad(f, `no node has the name or ID prefix "two"`, "-node", "two")
	bad(f, "no Ebbtide task runs on node plain", "-node", "plain")

	// Replacing Nomad's docker driver.
	f.nodes = append(f.nodes, &api.NodeListStub{ID: "cc33", Name: "three", Drivers: underDockers})
	f.alloc("c1", "cc33", "docker", taken(0, ""))
	must.Eq(t, "", good(f, strings.ReplaceAll(f.files["c1"], " ", ""), "-node", "three"))
	bad(f, "2 nodes match, choose one with -node: one (aa11), three (cc33)")

	// Old, or without a time: printed with a warning.
	f = fake()
	f.alloc("a1", "aa11", "ebbtide", taken(time.Hour, ""))
	must.StrContains(t, good(f, strings.ReplaceAll(f.files["a1"], " ", "")), "warning: the snapshot is 1h0m")
	f.files["a1"] = `{"tasks":[]}`
	must.StrContains(t, good(f, f.files["a1"]), "warning: the snapshot has no time")
	for _, text := range []string{"[]", "null", `{"now_s": 1} {}`, "", `{"now_s"`} {
		f.files["a1"] = text
		bad(f, "the snapshot in allocation a1 is not a JSON object")
	}

	delete(f.files, "a1")
	bad(f, "node one: none of 1 allocations has a snapshot: there was no decision yet, or the driver is older")
	f.denied["ml"] = true
	bad(f, "the token needs read-fs in namespace ml")
	f = fake()
	bad(f, "no Ebbtide task runs on node one in any namespace whose jobs the token can read")
	f.nodes = f.nodes[1:]
	bad(f, "no node has Ebbtide's driver")

	// The number of allocations read is bounded.
	f = fake()
	for i := range snapshot.MostAsked + 10 {
		f.alloc(fmt.Sprintf("%04x", i), "aa11", "ebbtide", "")
	}
	bad(f, fmt.Sprintf("none of %d allocations", snapshot.MostAsked))
	must.Eq(t, snapshot.MostAsked, f.asked.Load())
}

func TestSnapshot_usage(t *testing.T) {
	for want, args := range map[string][]string{
		"-node and -alloc cannot be used together":      {"-node", "a", "-alloc", "b"},
		`unexpected argument "a"`:                       {"a"},
		"allowed are -address, -alloc":                  {"-x"},
		"the address of Nomad's API must be a URL like": {"-address", "x"},
	} {
		status, stdout, stderr := ebbtide("", append([]string{"snapshot"}, args...)...)
		must.Eq(t, exitUsage, status)
		must.Eq(t, "", stdout)
		must.StrContains(t, stderr, want)
	}
	t.Setenv("NOMAD_ADDR", "http://127.0.0.1:1")
	status, _, stderr := ebbtide("", "snapshot")
	must.Eq(t, exitError, status)
	must.StrContains(t, stderr, "listing the nodes: ")
}
