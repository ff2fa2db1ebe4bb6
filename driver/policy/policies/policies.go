// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package policies is the table of the policies of a node: those that share out its
// CPU, and the one that sorts its tasks for the shim.
package policies

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/driver/policy/auto"
	"github.com/ebbtide/ebbtide/driver/policy/dqoes"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/none"
	"github.com/ebbtide/ebbtide/driver/policy/specon"
	"github.com/ebbtide/ebbtide/driver/policy/tradl"
	"github.com/ebbtide/ebbtide/internal/strictjson"
)

// Names of the policies that the driver runs.
const (
	Auto    = "auto"
	FlowCon = "flowcon"
	TRADL   = "tradl"
	DQoES   = "dqoes"
	None    = "none"
)

// Policy is one of the policies.
type Policy struct {
	Name     string // in the configuration and on the command line
	Synopsis string
	Example  any // a valid input

	// DecideJSON runs the policy on an input in JSON. The error tells everything that
	// is wrong with it, a line each.
	DecideJSON func(input []byte) (output any, err error)
}

var table = []Policy{
	New(Auto, "services first, the rest by growth and targets",
		auto.Input{Params: auto.DefaultParams()}, auto.Example(), auto.Decide),
	New(FlowCon, "limits by growth efficiency (FlowCon, Algorithms 1 to 3)",
		flowcon.Input{Params: flowcon.DefaultParams()}, flowcon.Example(), flowcon.Decide),
	New(TRADL, "limits by acceptable and objective targets (TRADL)",
		tradl.Input{Params: tradl.DefaultParams()}, tradl.Example(), tradl.Decide),
	New(DQoES, "limits by the response times of services (DQoES)",
		dqoes.Input{Params: dqoes.DefaultParams()}, dqoes.Example(), dqoes.Decide),
	New(None, "no limits, for comparison; takes flowcon's snapshot",
		none.Input{Params: flowcon.DefaultParams()}, flowcon.Example(), none.Decide),
	New("specon-categorise", "progressing, watching or converged, and who asks to be moved (SpeCon, Algorithm 1)",
		specon.Input{Params: specon.DefaultParams()}, specon.Example(), specon.Decide),
}

// New makes a Policy of a pure function. Defaults holds the values of the optional
// fields; In's method Validate() error, where it has one, is used.
func New[In, Out any](name, synopsis string, defaults, example In, decide func(In) Out) Policy {
	return Policy{
		Name: name, Synopsis: synopsis, Example: example,
		DecideJSON: func(input []byte) (any, error) {
			in := defaults
			if err := strictjson.Decode("snapshot", input, &in); err != nil {
				return nil, err
			}
			return decide(in), nil
		},
	}
}

// All returns the policies of a node, the default first.
func All() []Policy { return slices.Clone(table) }

// Names returns the names of those that the driver runs, the default first.
func Names() []string { return []string{Auto, FlowCon, TRADL, DQoES, None} }

// Find returns the one of the policies that has the name, or an error that lists the
// names of all of them.
func Find(all []Policy, name string) (Policy, error) {
	var known []string
	for _, p := range all {
		if p.Name == name {
			return p, nil
		}
		known = append(known, p.Name)
	}
	return Policy{}, fmt.Errorf("unknown policy %q, must be one of: %s", name, strings.Join(known, ", "))
}
