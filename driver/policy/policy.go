// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package policy is the contract between what is measured on a node and what is
// decided for it. A policy is a pure function from a Snapshot to an Outcome: no
// clock, no I/O, no state of its own. So the same code runs on a node, in
// `ebbtide decide` and in a simulator, and the same snapshot gives the same bytes.
//
// Each policy is one folder below this one and one entry in package policies. The
// folder holds the policy's parameters with defaults and validation, the agent
// options that set them, what it asks of a snapshot, its decision, an example, and
// the table of its departures from the paper: see Definition.
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

// Kinds of agent options: HCL's types.
const (
	KindString = "string"
	KindNumber = "number"
	KindBool   = "bool"
)

// Option is an option of the plugin's block in an agent's configuration.
type Option struct {
	Name    string
	Kind    string // KindString, KindNumber or KindBool
	Default string // a literal, the same in HCL and in JSON
	Allowed string // for people: the values, with their unit
	Doc     string // for people: what it does, a line of Markdown
	Param   string // for a policy's option: the parameter that it sets, by its path
}

// Under returns the options with the parameter of each below path, for a policy that
// is composed of others.
func Under(path string, options []Option) []Option {
	out := make([]Option, len(options))
	for i, o := range options {
		o.Param = fields.Member(path, o.Param)
		out[i] = o
	}
	return out
}

// Departure is one point in which a policy differs from what was published.
type Departure struct {
	Published string
	Ours      string
	Why       string
}

// Definition is a policy with parameters of type P.
type Definition[P any] struct {
	Name     string
	Synopsis string
	// Defaults are the parameters of a snapshot that gives none: as published, where the
	// agent's default (Options) is ours.
	Defaults P
	// CheckParams reports every wrong parameter as a fields.Errors, by its path.
	CheckParams func(P) error
	// Options are the agent options that set parameters. Several policies may share one.
	Options []Option
	// Needs lists the fields that a snapshot written by hand must give, such as
	// "tasks[].growth". All others keep their zero value.
	Needs []string
	// Check reports what Snapshot.Validate does not know to be wrong, as a
	// fields.Errors; nil if there is nothing.
	Check   func(Snapshot, P) error
	Example Snapshot
	// Departures lists every point in which the policy differs from its paper.
	Departures []Departure
	// Ghosts says that Decide knows what to do with tasks that have ended (Task.Ended).
	// Other policies do not see them.
	Ghosts bool
	Decide func(Snapshot, P) Outcome
}

// Policy is a policy whose parameters have not been set.
type Policy struct {
	Query
	Options    []Option
	Departures []Departure
	// Params are the default parameters, as JSON.
	Params json.RawMessage

	configure func(params []byte) (Decider, error)
}

// Query is a pure function that `ebbtide decide` can run.
type Query struct {
	Name     string // on the command line and, of a node's policy, in the configuration
	Synopsis string
	Example  any // a valid input
	// Decide runs the function on an input in JSON. The error is a fields.Errors that
	// reports everything wrong with the input.
	Decide func(input []byte) (output any, err error)
}

// Decider is a policy with its parameters.
type Decider struct {
	Name string
	// Params are the parameters, as JSON.
	Params json.RawMessage
	// Check reports what is wrong with a snapshot, as a fields.Errors.
	Check func(Snapshot) error
	// Decide decides on a snapshot that Check accepts. It does not change it.
	Decide func(Snapshot) Outcome
}

// NewQuery makes a Query of a pure function with an input of its own. Defaults holds
// the values of the optional fields; In's method Validate() error, where it has one,
// is used.
func NewQuery[In, Out any](name, synopsis string, defaults, example In, decide func(In) Out) Query {
	return Query{
		Name: name, Synopsis: synopsis, Example: example,
		Decide: func(input []byte) (any, error) {
			in := defaults
			if err := strictjson.Decode("snapshot", input, &in); err != nil {
				return nil, err
			}
			return decide(in), nil
		},
	}
}

// Policy returns the policy without the type of its parameters.
func (d Definition[P]) Policy() Policy {
	params, err := json.Marshal(d.Defaults)
	if err != nil {
		panic(err) // the defaults are constants
	}
	shown := d.Example
	shown.Params = params
	p := Policy{
		Query:   Query{Name: d.Name, Synopsis: d.Synopsis, Example: example{shown, d.Needs}, Decide: d.decideJSON},
		Options: d.Options, Departures: d.Departures, Params: params,
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

// params decodes parameters over the defaults.
func (d Definition[P]) params(data []byte) (P, error) {
	params := d.Defaults
	if len(data) == 0 {
		return params, nil
	}
	err := strictjson.DecodeBy("params", data, &params, strictjson.Rules{Validate: func() error { return d.CheckParams(params) }})
	return params, err
}

// check reports what is wrong with a snapshot for this policy.
func (d Definition[P]) check(s Snapshot, params P) error {
	if d.Check == nil {
		return s.Validate()
	}
	return join(s.Validate(), d.Check(s, params))
}

// decideJSON is Query.Decide.
func (d Definition[P]) decideJSON(input []byte) (any, error) {
	var s Snapshot
	params := d.Defaults
	validate := func() (err error) {
		for i := range s.Tasks {
			if s.Tasks[i].Entitlement == 0 {
				s.Tasks[i].Entitlement = 1 // equal requests, as in the papers
			}
		}
		if s.Policy != "" && s.Policy != d.Name {
			s.State = nil // it is another policy's
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

// decide is Decide on what the policy sees.
func (d Definition[P]) decide(s Snapshot, params P) Outcome {
	ended := func(t Task) bool { return t.Ended }
	if !d.Ghosts && slices.ContainsFunc(s.Tasks, ended) {
		s.Tasks = slices.DeleteFunc(slices.Clone(s.Tasks), ended)
	}
	return d.Decide(s, params)
}

// join merges errors of fields; any other error stands for all.
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

// Configure returns the policy with the parameters that an agent's options set; values
// holds them by name, in JSON, and those left out have their defaults. Its error names
// each wrong option: exactly what the policy does not accept.
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

// set stores a value below the path "a.b".
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

// Find returns the query that has the name, or an error that lists all names.
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
