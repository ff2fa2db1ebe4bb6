// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package rights says which rights a token lacks for what the shim does. Nomad itself
// often does not: who may not list the jobs of a namespace gets an empty list, and a
// stream of events without any.
//
// What a token may do is in its policies, which Nomad shows to the token itself.
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

// Policy is an ACL policy as Nomad reads it. Its shorthands are resolved: what
// policy = "write" grants is among the capabilities.
type Policy struct {
	Namespaces []Namespace
	Node       *struct{ Policy string }
}

// Namespace is what a policy grants in the namespaces that a pattern matches.
type Namespace struct {
	Name         string
	Capabilities []string
	Variables    *struct{ Paths []Path }
}

// Path is what is granted of the variables whose paths a pattern matches.
type Path struct {
	PathSpec     string
	Capabilities []string
}

// Needs say where the rights are needed.
type Needs struct {
	// Namespaces are all that there are.
	Namespaces []string
	// Namespace and Path are those of the variables in which the shim remembers.
	Namespace, Path string
}

// Missing are rights that a token lacks.
type Missing struct {
	// Fatal are those without which nothing can be done.
	Fatal []string
	// Partly are those without which the jobs of some namespaces stay where they are.
	Partly []string
}

// seeing and moving are what is needed in a namespace, each in any of the spellings.
// Nomad streams events to nobody who may not read the jobs of all namespaces.
var (
	seeing = [][]string{{"list-jobs"}, {"read-job"}}
	moving = [][]string{{"plan-job", "submit-job"}, {"register-job", "submit-job"}, {"alloc-lifecycle"}, {"read-fs"}}
)

// Find finds what the policies of a token do not grant.
func Find(policies []Policy, needs Needs) Missing {
	var m Missing
	if !slices.ContainsFunc(policies, func(p Policy) bool {
		return p.Node != nil && (p.Node.Policy == "read" || p.Node.Policy == "write")
	}) {
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
	for _, v := range []struct {
		path  string
		needs []string
	}{
		{"leader", []string{"write"}},
		{"jobs/NAMESPACE/JOB", []string{"list", "read", "write", "destroy"}},
		{"moves/ENTRY", []string{"list", "write", "destroy"}},
		{"claims/MOVE", []string{"list", "read", "write", "destroy"}},
		{"pause", []string{"read"}},
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

// lacks are the capabilities of which none of the spellings is granted.
func lacks(namespace string, granted []string, needed [][]string) (missing []string) {
	for _, spellings := range needed {
		has := func(c string) bool { return slices.Contains(granted, c) }
		if !slices.ContainsFunc(spellings, has) || has("deny") {
			missing = append(missing, fmt.Sprintf("namespace %q: %s", namespace, spellings[0]))
		}
	}
	return missing
}

// capabilities are those in a namespace: of the patterns that match the closest counts, as
// in Nomad, with what all policies say of it.
func capabilities(policies []Policy, namespace string) (granted []string) {
	for _, n := range closest(policies, namespace) {
		granted = append(granted, n.Capabilities...)
	}
	return granted
}

// variables are the capabilities on the variable of a path.
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

// closest are the blocks whose pattern matches a namespace best.
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

// match is the pattern that matches a name best: the name itself, or the one that says
// most of it.
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

// ErrUnknown says that Nomad does not accept the token.
var ErrUnknown = errors.New("the token is unknown to Nomad, or has expired")

// Ask asks Nomad what its token lacks. Where ACLs are off, that is nothing.
func Ask(ctx context.Context, client *api.Client, namespace, path string) (Missing, error) {
	q := (&api.QueryOptions{}).WithContext(ctx)
	token, _, err := client.ACLTokens().Self(q)
	switch code := status(err); {
	case code == http.StatusForbidden:
		return Missing{}, ErrUnknown
	case err != nil:
		// The identity of a workload is no token; what else may be wrong comes up below.
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
		return Missing{}, fmt.Errorf("asking Nomad for the token's policies: %w", err)
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
	// Those for which it has no right at all are not shown; the one that there is always,
	// and the one of the variables, are looked at in any case.
	needs.Namespaces = []string{api.DefaultNamespace, namespace}
	spaces, _, err := client.Namespaces().List(q)
	if err != nil && status(err) != http.StatusForbidden {
		return Missing{}, fmt.Errorf("asking Nomad for its namespaces: %w", err)
	}
	for _, n := range spaces {
		needs.Namespaces = append(needs.Namespaces, n.Name)
	}
	slices.Sort(needs.Namespaces)
	needs.Namespaces = slices.Compact(needs.Namespaces)
	return Find(policies, needs), nil
}

// status is that of an answer; 0 if there was none.
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
