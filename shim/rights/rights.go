// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package rights finds the rights that the shim's token lacks. Nomad itself may not report
// them: without list-jobs in a namespace, listings and event streams are just empty. Nomad
// shows a token its own policies.
package rights

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/ryanuber/go-glob"
)

// Policy is an ACL policy as parsed by Nomad, with shorthands such as policy = "write" expanded to
// capabilities.
type Policy struct {
	Namespaces []Namespace
	Node       *struct{ Policy string }
	Agent      *struct{ Policy string }
}

// Namespace is what a policy grants in namespaces matching Name.
type Namespace struct {
	Name         string
	Capabilities []string
	Variables    *struct{ Paths []Path }
}

// Path is what is granted on variables matching PathSpec.
type Path struct {
	PathSpec     string
	Capabilities []string
}

// Needs is where rights are needed.
type Needs struct {
	// Namespaces are all of the cluster's.
	Namespaces []string
	// Namespace and Path are those of the shim's variables.
	Namespace, Path string
}

// Missing lists the missing rights.
type Missing struct {
	// Fatal are those without which the shim cannot work.
	Fatal []string
	// Partly are those without which it cannot move the jobs of some namespaces, or read the limits of
	// a node's garbage collection.
	Partly []string
}

// seeing and moving are the capabilities needed per namespace, each with alternatives. Nomad
// streams no events to a token that cannot read the jobs of all namespaces.
var (
	seeing = [][]string{{"list-jobs"}, {"read-job"}}
	moving = [][]string{{"plan-job", "submit-job"}, {"register-job", "submit-job"}, {"alloc-lifecycle"}, {"read-fs"}}
)

// Find returns the needs that the policies do not grant.
func Find(policies []Policy, needs Needs) Missing {
	var m Missing
	reads := func(of func(Policy) *struct{ Policy string }) bool {
		return slices.ContainsFunc(policies, func(p Policy) bool {
			r := of(p)
			return r != nil && (r.Policy == "read" || r.Policy == "write")
		})
	}
	if !reads(func(p Policy) *struct{ Policy string } { return p.Node }) {
		m.Fatal = append(m.Fatal, "node: read")
	}
	movable := 0
	for _, ns := range needs.Namespaces {
		granted := capabilities(policies, ns)
		m.Fatal = append(m.Fatal, lacks(ns, granted, seeing)...)
		lacking := lacks(ns, granted, moving)
		if len(lacking) == 0 {
			movable++
		}
		m.Partly = append(m.Partly, lacking...)
	}
	if movable == 0 {
		m.Fatal, m.Partly = append(m.Fatal, m.Partly...), nil
	}
	if !reads(func(p Policy) *struct{ Policy string } { return p.Agent }) {
		m.Partly = append(m.Partly, "agent: read")
	}
	for _, v := range []struct {
		path  string
		needs []string
	}{
		{"leader", []string{"write"}},
		{"jobs/NAMESPACE/JOB", []string{"list", "read", "write", "destroy"}},
		{"moves/ENTRY", []string{"list", "write", "destroy"}},
		{"claims/MOVE", []string{"list", "read", "write", "destroy"}},
		{"pause", []string{"read"}},
		{"orders", []string{"read", "write"}},
		{"report", []string{"write"}},
	} {
		full := path.Join(needs.Path, v.path)
		granted := variables(policies, needs.Namespace, full)
		for _, c := range v.needs {
			if !slices.Contains(granted, c) || slices.Contains(granted, "deny") {
				m.Fatal = append(m.Fatal, fmt.Sprintf("namespace %q: variables: path %q: %s", needs.Namespace, full, c))
			}
		}
	}
	return m
}

// lacks returns the needs none of whose alternatives is granted.
func lacks(namespace string, granted []string, needed [][]string) (missing []string) {
	for _, spellings := range needed {
		has := func(c string) bool { return slices.Contains(granted, c) }
		if !slices.ContainsFunc(spellings, has) || has("deny") {
			missing = append(missing, fmt.Sprintf("namespace %q: %s", namespace, spellings[0]))
		}
	}
	return missing
}

// capabilities returns the capabilities that all policies together grant in a namespace. As in
// Nomad, the closest pattern takes precedence.
func capabilities(policies []Policy, namespace string) (granted []string) {
	for _, n := range closest(policies, namespace) {
		granted = append(granted, n.Capabilities...)
	}
	return granted
}

// variables returns the capabilities on a variable's path.
func variables(policies []Policy, namespace, full string) (granted []string) {
	var specs []string
	all := closest(policies, namespace)
	for _, n := range all {
		if n.Variables != nil {
			for _, p := range n.Variables.Paths {
				specs = append(specs, p.PathSpec)
			}
		}
	}
	spec, ok := match(specs, full)
	if !ok {
		return nil
	}
	for _, n := range all {
		if n.Variables == nil {
			continue
		}
		for _, p := range n.Variables.Paths {
			if p.PathSpec == spec {
				granted = append(granted, p.Capabilities...)
			}
		}
	}
	return granted
}

func closest(policies []Policy, namespace string) (blocks []Namespace) {
	var patterns []string
	for _, p := range policies {
		for _, n := range p.Namespaces {
			patterns = append(patterns, n.Name)
		}
	}
	pattern, ok := match(patterns, namespace)
	if !ok {
		return nil
	}
	for _, p := range policies {
		for _, n := range p.Namespaces {
			if n.Name == pattern {
				blocks = append(blocks, n)
			}
		}
	}
	return blocks
}

// match returns the closest pattern: the name itself, or the one with most literal characters.
func match(patterns []string, name string) (best string, ok bool) {
	says := func(pattern string) int { return len(pattern) - strings.Count(pattern, glob.GLOB) }
	for _, p := range patterns {
		switch {
		case p == name:
			return p, true
		case glob.Glob(p, name) && (!ok || says(p) > says(best)):
			best, ok = p, true
		}
	}
	return best, ok
}

// ErrUnknown means that Nomad rejects the token.
var ErrUnknown = errors.New("the token is unknown to Nomad or has expired")

// Ask returns what the client's token lacks; nothing if ACLs are disabled.
func Ask(ctx context.Context, client *api.Client, namespace, path string) (Missing, error) {
	q := (&api.QueryOptions{}).WithContext(ctx)
	token, _, err := client.ACLTokens().Self(q)
	switch code := status(err); {
	case code == http.StatusForbidden:
		return Missing{}, ErrUnknown
	case err != nil:
		// A workload identity is not a token; other errors show up below.
	case token.Type == "management" || token.AccessorID == "acls-disabled":
		return Missing{}, nil
	}
	stubs, _, err := client.ACLPolicies().List(q)
	switch code := status(err); {
	case code == http.StatusBadRequest && strings.Contains(err.Error(), "ACL support disabled"):
		return Missing{}, nil
	case code == http.StatusForbidden:
		return Missing{}, ErrUnknown
	case err != nil:
		return Missing{}, fmt.Errorf("listing the token's policies: %w", err)
	}
	var policies []Policy
	for _, s := range stubs {
		var p struct{ RulesJSON Policy }
		if _, err := client.Raw().Query("/v1/acl/policy/"+url.PathEscape(s.Name), &p, q); err != nil {
			return Missing{}, fmt.Errorf("reading the token's policy %s: %w", s.Name, err)
		}
		policies = append(policies, p.RulesJSON)
	}
	needs := Needs{Namespace: namespace, Path: path}
	// Namespaces without any right are not listed; always check the default one and the variables'.
	needs.Namespaces = []string{api.DefaultNamespace, namespace}
	spaces, _, err := client.Namespaces().List(q)
	if err != nil && status(err) != http.StatusForbidden {
		return Missing{}, fmt.Errorf("listing namespaces: %w", err)
	}
	for _, n := range spaces {
		needs.Namespaces = append(needs.Namespaces, n.Name)
	}
	slices.Sort(needs.Namespaces)
	needs.Namespaces = slices.Compact(needs.Namespaces)
	return Find(policies, needs), nil
}

// status returns the response's status code, 0 without a response.
func status(err error) int {
	if err == nil {
		return http.StatusOK
	}
	var response api.UnexpectedResponseError
	if errors.As(err, &response) {
		return response.StatusCode()
	}
	return 0
}
