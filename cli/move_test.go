// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestMove_usage(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "must have two arguments, ALLOCATION and NODE, got 0"},
		{[]string{"a"}, "ALLOCATION and NODE, got 1"},
		{[]string{"-force", "a", "b"}, "flag provided but not defined: -force; allowed are -address, -ca-cert, -client-cert, -client-key, -dry-run, -namespace, -path, -region, -tls-server-name, -token"},
		{[]string{"-address", "not a url", "a", "b"}, `the address of Nomad's API must be a URL like https://127.0.0.1:4646, got "not a url"`},
	} {
		status, stdout, stderr := ebbtide("", append([]string{"move"}, tc.args...)...)
		must.Eq(t, exitUsage, status, must.Sprint(stderr))
		must.Eq(t, "", stdout)
		must.StrContains(t, stderr, "ebbtide move: ")
		must.StrContains(t, stderr, tc.want)
	}
}

func TestMove_ids(t *testing.T) {
	lists := map[string][]string{
		"/v1/allocations": {"aa11", "aa22", "bb33"},
		"/v1/nodes":       {"cc44"},
	}
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ids, ok := lists[r.URL.Path]
		if !ok {
			http.Error(w, "Permission denied", http.StatusForbidden)
			return
		}
		var found []map[string]string
		for _, id := range ids {
			if strings.HasPrefix(id, r.URL.Query().Get("prefix")) {
				found = append(found, map[string]string{"ID": id})
			}
		}
		_ = json.NewEncoder(w).Encode(found)
	}))
	defer nomad.Close()
	for ids, want := range map[string]string{
		"aa cc":  `2 allocations have the ID prefix "aa": aa11, aa22`,
		"dd cc":  `no allocation has the ID prefix "dd"`,
		"aa1 dd": `no node has the ID prefix "dd"`,
		"aa1 cc": "check: reading allocation aa11: Unexpected response code: 403",
	} {
		status, stdout, stderr := ebbtide("", append([]string{"move", "-address", nomad.URL}, strings.Fields(ids)...)...)
		must.Eq(t, exitError, status)
		must.Eq(t, "", stdout)
		must.StrContains(t, stderr, want, must.Sprint(fmt.Sprint(ids)))
	}
}
