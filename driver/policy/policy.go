// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package policy is the contract between measurement and decision. A policy is a pure function from
// a Snapshot to an Outcome: no clock, no I/O, no internal state. The same code runs on a node, in
// `ebbtide decide` and in the simulator, and equal snapshots give equal outcomes.
//
// Each policy is a directory below this one, registered in package policies, with its parameters,
// agent options, checks, example and departures from the paper: see Definition.
package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/internal/fields"
	"github.com/ebbtide/ebbtide/internal/strictjson"
)

const (
	KindString = "string"
	KindNumber = "number"
	KindBool   = "bool"
)

// Option is an option of the plugin's block in the agent's configuration.
type Option struct {
	Name    string
	Kind    string // KindString, KindNumber or KindBool
	Default string // a literal, valid in both HCL and JSON
	Allowed string // human-readable: the values, with their unit
	Doc     string // human-readable: a line of Markdown
	Param   string // path of the parameter that a policy's option sets
}

// Under returns the options with their parameters moved below path, for policies
// composed of others.
func Under(path string, options []Option) []Option {
	out := make([]Option, len(options))
	for i, o := range options {
		o.Param = fields.Member(path, o.Param)
		out[i] = o
	}
	return out
}

// Departure is a difference between a policy and its paper.
type Departure struct {
	Published string
	Ours      string
	Why       string
}

type Definition[P any] struct {
	Name     string
	Synopsis string
	// Defaults are the parameters of snapshots without any: the published ones, which may differ
	// from the agent's defaults (Options).
	Defaults P
	// CheckParams reports all invalid parameters as a fields.Errors.
	CheckParams func(P) error
	// Options are the agent options of the parameters. Policies may share options.
	Options []Option
	// Needs lists fields that a handwritten snapshot must have, such as
	// "tasks[].growth". The others default to zero.
	Needs []string
	// Check reports errors beyond Snapshot.Validate as a fields.Errors, or nil.
	Check   func(Snapshot, P) error
	Example Snapshot
	// Departures lists all differences from the paper.
	Departures []Departure
	// Ghosts means that Decide handles ended tasks (Task.Ended); other policies do not receive
	// them.
	Ghosts bool
	Decide func(Snapshot, P) Outcome
}

// Policy is a policy without set parameters.
type Policy struct {
	Query
	Options []Option
	// Params are the default parameters as JSON.
	Params json.RawMessage

	configure func(params []byte) (Decider, error)
}

// Query is a pure function for `ebbtide decide`.
type Query struct {
	Name     string // on the command line; for policies also in the configuration
	Synopsis string
	Example  any // a valid input
	// Departures lists all differences from the paper.
	Departures []Departure
	// Decide runs the function on JSON. The error is a fields.Errors with all errors of the input.
	Decide func(input []byte) (output any, err error)
}

// Decider is a policy with its parameters.
type Decider struct {
	Name   string
	Params json.RawMessage
	// Check reports an invalid snapshot as a fields.Errors.
	Check func(Snapshot) error
	// Decide decides on a checked snapshot, without changing it.
	Decide func(Snapshot) Outcome
}

// NewQuery returns a Query of a pure function. defaults holds the optional fields; In's method
// Validate() error is called if present.
func NewQuery[In, Out any](name, synopsis string, defaults, example In, decide func(In) Out, departures ...Departure) Query {
	return Query{
		Name: name, Synopsis: synopsis, Example: example, Departures: departures,
		Decide: func(input []byte) (any, error) {
			in := defaults
			if err := strictjson.Decode("snapshot", input, &in); err != nil {
				return nil, err
			}
			return decide(in), nil
		},
	}
}

// Policy converts d to a Policy, without the type of its parameters.
func (d Definition[P]) Policy() Policy {
	params, err := json.Marshal(d.Defaults)
	if err != nil {
		panic(err) // the defaults are constants
	}
	shown := d.Example
	shown.Params = params
	p := Policy{
		Query:   Query{Name: d.Name, Synopsis: d.Synopsis, Example: example{shown, d.Needs}, Departures: d.Departures, Decide: d.decideJSON},
		Options: d.Options, Params: params,
	}
	p.configure = func(data []byte) (Decider, error) {
		params, err := d.params(data)
		if err != nil {
			return Decider{}, err
		}
		text, err := json.Marshal(params)
		if err != nil {
			return Decider{}, fmt.Errorf("encoding the parameters of policy %s: %w", d.Name, err)
		}
		return Decider{
			Name: d.Name, Params: text,
			Check:  func(s Snapshot) error { return d.check(s, params) },
			Decide: func(s Snapshot) Outcome { return d.decide(s, params) },
		}, nil
	}
	return p
}

func (d Definition[P]) params(data []byte) (P, error) {
	params := d.Defaults
	if len(data) == 0 {
		return params, nil
	}
	err := strictjson.DecodeBy("params", data, &params, strictjson.Rules{Validate: func() error { return d.CheckParams(params) }})
	return params, err
}

func (d Definition[P]) check(s Snapshot, params P) error {
	if d.Check == nil {
		return s.Validate()
	}
	return join(s.Validate(), d.Check(s, params))
}

func (d Definition[P]) decideJSON(input []byte) (any, error) {
	var s Snapshot
	params := d.Defaults
	validate := func() (err error) {
		if s.Policy != "" && s.Policy != d.Name {
			s.State = nil // another policy's
		}
		text := s.Params
		if len(text) == 0 {
			text = s.Policies[d.Name]
		}
		var errs fields.Errors
		if params, err = d.params(text); err != nil && !errors.As(err, &errs) {
			return err
		}
		return join(d.check(s, params), errs.Under("params"))
	}
	if err := strictjson.DecodeBy("snapshot", input, &s, strictjson.Rules{Needs: d.Needs, Validate: validate}); err != nil {
		return nil, err
	}
	return d.decide(s, params), nil
}

func (d Definition[P]) decide(s Snapshot, params P) Outcome {
	ended := func(t Task) bool { return t.Ended }
	if !d.Ghosts && slices.ContainsFunc(s.Tasks, ended) {
		s.Tasks = slices.DeleteFunc(slices.Clone(s.Tasks), ended)
	}
	return d.Decide(s, params)
}

// join merges errors of fields; any other error is returned alone.
func join(first, second error) error {
	var errs, more fields.Errors
	if first != nil && !errors.As(first, &errs) {
		return first
	}
	if second != nil && !errors.As(second, &more) {
		return second
	}
	errs.Merge(more)
	return errs.Err()
}

// Configure returns the policy with parameters from an agent's options; values holds
// them as JSON by name, with defaults for the others. The error names every invalid
// option.
func (p Policy) Configure(values map[string]json.RawMessage) (Decider, error) {
	params := make(map[string]any)
	names := make(map[string]string, len(p.Options))
	for _, o := range p.Options {
		names[o.Param] = o.Name
		value, ok := values[o.Name]
		if !ok {
			value = json.RawMessage(o.Default)
		}
		set(params, o.Param, value)
	}
	data, err := json.Marshal(params)
	if err != nil {
		return Decider{}, fmt.Errorf("encoding the options of policy %s: %w", p.Name, err)
	}
	d, err := p.configure(data)
	var errs fields.Errors
	if errors.As(err, &errs) {
		for i, e := range errs {
			if name, ok := names[e.Path]; ok {
				errs[i].Path = name
			}
		}
		return Decider{}, errs
	}
	return d, err
}

func set(into map[string]any, path string, value any) {
	name, rest, nested := strings.Cut(path, ".")
	if !nested {
		into[name] = value
		return
	}
	below, ok := into[name].(map[string]any)
	if !ok {
		below = make(map[string]any)
		into[name] = below
	}
	set(below, rest, value)
}

func Find(all []Query, name string) (Query, error) {
	known := make([]string, len(all))
	for i, q := range all {
		if q.Name == name {
			return q, nil
		}
		known[i] = q.Name
	}
	return Query{}, fmt.Errorf("unknown policy %q, must be one of: %s", name, strings.Join(known, ", "))
}
