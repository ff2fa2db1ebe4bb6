// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package rights

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/hashicorp/nomad/acl"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// The policies in jobspecs/acl suffice; shim-namespace.hcl grants a change of jobs in one namespace.
func TestShipped(t *testing.T) {
	for name, want := range map[string]Missing{
		"shim.hcl": {},
		"shim-namespace.hcl": {Partly: []string{
			`namespace "default": plan-job`, `namespace "default": register-job`, `namespace "default": alloc-lifecycle`, `namespace "default": read-fs`,
			`namespace "web": plan-job`, `namespace "web": register-job`, `namespace "web": alloc-lifecycle`, `namespace "web": read-fs`,
		}},
	} {
		rules, err := os.ReadFile("../../jobspecs/acl/" + name)
		must.NoError(t, err)
		parsed, err := acl.Parse(string(rules), acl.PolicyParseStrict)
		must.NoError(t, err)
		text, err := json.Marshal(parsed)
		must.NoError(t, err)
		must.Eq(t, want, find(t, []string{"default", "ml", "web"}, string(text)), must.Sprint(name))
	}
}

// enough is jobspecs/acl/shim.hcl as Nomad parses it.
const enough = `{"Namespaces": [{"Name": "*", "Capabilities": ["list-jobs", "read-job", "plan-job", "register-job", "alloc-lifecycle", "read-fs"],
	"Variables": {"Paths": [{"PathSpec": "ebbtide/shim/*", "Capabilities": ["list", "read", "write", "destroy"]}]}}], "Node": {"Policy": "read"}, "Agent": {"Policy": "read"}}`

func find(t *testing.T, namespaces []string, texts ...string) Missing {
	t.Helper()
	var policies []Policy
	for _, text := range texts {
		var p Policy
		must.NoError(t, json.Unmarshal([]byte(text), &p))
		policies = append(policies, p)
	}
	return Find(policies, Needs{Namespaces: namespaces, Namespace: "default", Path: "ebbtide/shim"})
}

func TestFind(t *testing.T) {
	both := []string{"default", "ml"}
	must.Eq(t, Missing{}, find(t, both, enough))

	// Without any policy, each right is named.
	must.Eq(t, Missing{Partly: []string{`agent: read`}, Fatal: []string{
		`node: read`,
		`namespace "default": list-jobs`, `namespace "default": read-job`,
		`namespace "default": plan-job`, `namespace "default": register-job`, `namespace "default": alloc-lifecycle`, `namespace "default": read-fs`,
		`namespace "default": variables: path "ebbtide/shim/leader": write`,
		`namespace "default": variables: path "ebbtide/shim/jobs/NAMESPACE/JOB": list`,
		`namespace "default": variables: path "ebbtide/shim/jobs/NAMESPACE/JOB": read`,
		`namespace "default": variables: path "ebbtide/shim/jobs/NAMESPACE/JOB": write`,
		`namespace "default": variables: path "ebbtide/shim/jobs/NAMESPACE/JOB": destroy`,
		`namespace "default": variables: path "ebbtide/shim/moves/ENTRY": list`,
		`namespace "default": variables: path "ebbtide/shim/moves/ENTRY": write`,
		`namespace "default": variables: path "ebbtide/shim/moves/ENTRY": destroy`,
		`namespace "default": variables: path "ebbtide/shim/claims/MOVE": list`,
		`namespace "default": variables: path "ebbtide/shim/claims/MOVE": read`,
		`namespace "default": variables: path "ebbtide/shim/claims/MOVE": write`,
		`namespace "default": variables: path "ebbtide/shim/claims/MOVE": destroy`,
		`namespace "default": variables: path "ebbtide/shim/pause": read`,
		`namespace "default": variables: path "ebbtide/shim/orders": read`,
		`namespace "default": variables: path "ebbtide/shim/orders": write`,
		`namespace "default": variables: path "ebbtide/shim/report": write`,
	}}, find(t, []string{"default"}))

	// The closest namespace pattern wins; policies add up.
	narrow := `{"Namespaces": [{"Name": "ml", "Capabilities": ["list-jobs", "read-job"]}]}`
	must.Eq(t, Missing{Partly: []string{`namespace "ml": plan-job`, `namespace "ml": register-job`, `namespace "ml": alloc-lifecycle`, `namespace "ml": read-fs`}}, find(t, both, enough, narrow))
	more := `{"Namespaces": [{"Name": "ml", "Capabilities": ["submit-job", "alloc-lifecycle", "read-fs"]}]}`
	must.Eq(t, Missing{}, find(t, both, enough, narrow, more))
	must.Eq(t, Missing{Fatal: []string{`namespace "ml": list-jobs`, `namespace "ml": read-job`}}, find(t, both, enough, more))
	denied := `{"Namespaces": [{"Name": "m*", "Capabilities": ["list-jobs", "read-job", "deny"]}]}`
	must.Eq(t, []string{`namespace "ml": list-jobs`, `namespace "ml": read-job`}, find(t, both, enough, denied).Fatal)

	// The closest path wins.
	readOnly := `{"Namespaces": [{"Name": "*", "Capabilities": [], "Variables": {"Paths": [{"PathSpec": "ebbtide/shim/leader", "Capabilities": ["read"]}]}}]}`
	must.Eq(t, Missing{Fatal: []string{`namespace "default": variables: path "ebbtide/shim/leader": write`}}, find(t, both, enough, readOnly))
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		patterns []string
		want     string
	}{
		{nil, ""}, {[]string{"*", "ml-*", "ml*"}, "ml-*"}, {[]string{"*", "ml-a"}, "ml-a"}, {[]string{"*-b", "x"}, ""}, {[]string{"*-a", "*"}, "*-a"},
	} {
		got, ok := match(c.patterns, "ml-a")
		must.Eq(t, c.want, got)
		must.Eq(t, c.want != "", ok)
	}
}

func TestAsk(t *testing.T) {
	answers := map[string]struct {
		code int
		body string
	}{}
	nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, ok := answers[r.URL.Path]
		if !ok {
			http.Error(w, "not asked for: "+r.URL.Path, http.StatusTeapot)
			return
		}
		w.WriteHeader(a.code)
		fmt.Fprint(w, a.body)
	}))
	defer nomad.Close()
	client, err := api.NewClient(&api.Config{Address: nomad.URL})
	must.NoError(t, err)
	answer := func(path string, code int, body string) {
		answers[path] = struct {
			code int
			body string
		}{code, body}
	}
	ask := func() (Missing, error) { return Ask(t.Context(), client, "default", "ebbtide/shim") }

	answer("/v1/acl/token/self", 403, "ACL token not found")
	_, err = ask()
	must.ErrorIs(t, err, ErrUnknown)
	// Nomad fails here for workload identities; only the policies matter.
	answer("/v1/acl/token/self", 500, "UUID must be 36 characters")
	answer("/v1/acl/policies", 500, "no cluster leader")
	_, err = ask()
	must.ErrorContains(t, err, "no cluster leader")
	for _, all := range []string{`{"Type": "management"}`, `{"AccessorID": "acls-disabled", "Type": "client"}`} {
		answer("/v1/acl/token/self", 200, all)
		m, err := ask()
		must.NoError(t, err)
		must.Eq(t, Missing{}, m)
	}

	// A workload identity.
	answer("/v1/acl/token/self", 404, "ACL token not found")
	answer("/v1/acl/policies", 400, "ACL support disabled")
	m, err := ask()
	must.NoError(t, err)
	must.Eq(t, Missing{}, m)
	answer("/v1/acl/policies", 200, `[{"Name": "a shim"}]`)
	answer("/v1/acl/policy/a shim", 200, `{"Name": "a shim", "RulesJSON": `+enough+`}`)
	answer("/v1/namespaces", 200, `[{"Name": "default"}, {"Name": "ml"}]`)
	m, err = ask()
	must.NoError(t, err)
	must.Eq(t, Missing{}, m)

	answer("/v1/acl/token/self", 200, `{"Type": "client"}`)
	answer("/v1/acl/policies", 200, `[]`)
	answer("/v1/namespaces", 403, "Permission denied")
	m, err = ask()
	must.NoError(t, err)
	must.Len(t, 23, m.Fatal)
}
