// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package policies finds the policy that shares out a node's CPU by its name in
// the configuration.
package policies

import (
	"fmt"
	"strings"

	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/none"
)

// Policy decides the limits of a node's tasks. It is a pure function and assumes a
// valid input.
type Policy func(flowcon.Input) flowcon.Output

// Names of the policies.
const (
	Auto    = "auto"
	FlowCon = "flowcon"
	TRADL   = "tradl"
	DQoES   = "dqoes"
	None    = "none"
)

// Names returns the names that Find knows, the default first.
func Names() []string { return []string{Auto, FlowCon, TRADL, DQoES, None} }

// Find returns the policy of that name, or an error that lists the names.
func Find(name string) (Policy, error) {
	switch name {
	case FlowCon:
		return flowcon.Decide, nil
	case None:
		return none.Decide, nil
	default:
		return nil, fmt.Errorf("unknown policy %q, must be one of: %s", name, strings.Join(Names(), ", "))
	}
}
