// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package policies is the registry of policies for the driver, `ebbtide decide` and the
// simulator. A new policy is a folder and one entry in All.
package policies

import (
	"fmt"
	"strings"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/auto"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/fsp"
	"github.com/ebbtide/ebbtide/driver/policy/none"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
)

// All returns the policies, the default first.
func All() []policy.Policy {
	return []policy.Policy{
		auto.Policy(),
		fsp.Policy(),
		flowcon.Policy(),
		tradl.Policy(),
		dqoes.Policy(),
		none.Policy(),
	}
}

func Find(name string) (policy.Policy, error) {
	for _, p := range All() {
		if p.Name == name {
			return p, nil
		}
	}
	return policy.Policy{}, fmt.Errorf("must be one of %s, got %q", strings.Join(Names(), ", "), name)
}

func Names() []string {
	var names []string
	for _, p := range All() {
		names = append(names, p.Name)
	}
	return names
}

// Options returns the agent options of all policies, each once.
func Options() []policy.Option {
	var out []policy.Option
	seen := make(map[string]bool)
	for _, p := range All() {
		for _, o := range p.Options {
			if !seen[o.Name] {
				seen[o.Name] = true
				out = append(out, o)
			}
		}
	}
	return out
}

// Queries returns what `ebbtide decide` can run for a node: the policies, and the
// categorisation of tasks for the shim.
func Queries() []policy.Query {
	var out []policy.Query
	for _, p := range All() {
		out = append(out, p.Query)
	}
	return append(out, policy.NewQuery("specon-categorise",
		"progressing, watching or converged, and which task requests a move (SpeCon, Algorithm 1)",
		specon.Input{Params: specon.DefaultParams()}, specon.Example(), specon.Decide, specon.Departures()...))
}
