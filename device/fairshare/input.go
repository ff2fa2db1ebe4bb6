// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare

import (
	"maps"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/internal/fields"
)

// Mode is how the memory is divided.
type Mode string

const (
	// Adaptive divides by Set_i of equation 1 and redistributes what a container does not want.
	// It is the default, "".
	Adaptive Mode = "adaptive"
	// Static gives each container its cap, or an equal part of its group's 1/n of the card: the
	// paper's "static fair-share", for comparison.
	Static Mode = "static"
	// WholeCard gives the card to one container at a time: the paper's "default", for comparison.
	WholeCard Mode = "whole-card"
)

func (m Mode) valid() bool { return m == "" || m == Adaptive || m == Static || m == WholeCard }

// maxNumber bounds counts and sizes (4 PiB in MiB), so that their sums are exact.
const maxNumber = 1 << 32

const (
	DefaultPriority = 50
	maxPriority     = 100
)

// DefaultFloor is the default of Params.Floor.
const DefaultFloor = 0.5

// Input is the snapshot of a card for Decide. All sizes are whole MiB.
type Input struct {
	MemoryMiB int `json:"memory_mib" doc:"the card's memory, in MiB"`
	// ReserveMiB is never given to a container.
	ReserveMiB int `json:"reserve_mib" strict:"optional"`
	// Mode is Adaptive if "".
	Mode Mode `json:"mode" strict:"optional"`
	// Groups are those of the job window, in any order.
	Groups []Group `json:"groups" doc:"the groups of jobs"`
	// Coefficients are for groups without own ones.
	Coefficients Coefficients `json:"coefficients" doc:"\"equal\", \"count-only\" or the coefficients"`
	// Containers are those on the card. Without any, the result is what each group would get.
	Containers []Container `json:"containers" strict:"optional"`
	Params     Params      `json:"params" strict:"optional"`
}

// Group is a group of jobs in the window; Grp_i of the figure.
type Group struct {
	// ID is unique in the snapshot.
	ID string `json:"id" doc:"the group's unique ID"`
	// Jobs is g_i, ≥ 1.
	Jobs int `json:"jobs" doc:"the number of its jobs"`
	// Properties are those that all of its jobs share, by name.
	Properties map[string]Property `json:"properties" doc:"the properties that all its jobs share, by name"`
	// Coefficients are the group's own, as moved by Adapt; default: the input's.
	Coefficients Coefficients `json:"coefficients,omitzero" strict:"optional"`
}

// Property is a group's value of a property.
type Property struct {
	// Value is, for example, "resnet50", "20M", "alice".
	Value string `json:"value" doc:"the value of the property, for example \"resnet50\""`
	// Rank is the value's rank among the values of this property, ≥ 1; a higher one gets more
	// memory. Equal values have equal ranks.
	Rank int `json:"rank" doc:"its rank among the values of the property, from 1; a higher one gets more memory"`
}

// Container is a container on the card.
type Container struct {
	// ID is unique in the snapshot.
	ID string `json:"id" doc:"the container's unique ID"`
	// Group is the ID of its group.
	Group string `json:"group" doc:"the ID of its group"`
	// CapMiB is the most that it may get; nil: unlimited.
	CapMiB *int `json:"cap_mib" strict:"optional"`
	// MinimumMiB is its measured working set; 0 if unknown.
	MinimumMiB int `json:"minimum_mib" strict:"optional"`
	// Priority is its job's, 1 to 100; 0 is 50.
	Priority int `json:"priority" strict:"optional"`
	InUseMiB int `json:"in_use_mib" strict:"optional"`
	// ArrivedS is its arrival, in seconds, for WholeCard.
	ArrivedS float64 `json:"arrived_s" strict:"optional"`
}

func (c Container) priority() int {
	if c.Priority == 0 {
		return DefaultPriority
	}
	return c.Priority
}

// Params are the operator's settings.
type Params struct {
	// Floor, in [0, 1], is the fraction of an equal share that each container gets whatever its
	// weight.
	Floor float64 `json:"floor" strict:"optional"`
}

// DefaultParams returns DefaultFloor.
func DefaultParams() Params { return Params{Floor: DefaultFloor} }

func (g Group) propertyNames() []string {
	return append([]string{Count}, slices.Sorted(maps.Keys(g.Properties))...)
}

// Validate returns every error in the input as a fields.Errors, by JSON path.
func (in Input) Validate() error {
	var errs fields.Errors
	if in.MemoryMiB < 1 || in.MemoryMiB > maxNumber {
		errs.Add("memory_mib", "must be ≥ 1 and ≤ %d, got %d", maxNumber, in.MemoryMiB)
	}
	if in.ReserveMiB < 0 || in.ReserveMiB > max(in.MemoryMiB, 0) {
		errs.Add("reserve_mib", "must be ≥ 0 and ≤ memory_mib = %d, got %d", in.MemoryMiB, in.ReserveMiB)
	}
	if !in.Mode.valid() {
		errs.Add("mode", `must be one of "adaptive", "static", "whole-card", got %q`, string(in.Mode))
	}
	known := validateGroups(&errs, in.Groups, in.Coefficients)
	ids := fields.IDs{List: "containers"}
	for i, c := range in.Containers {
		at := func(name string) string { return fields.Member(fields.Index("containers", i), name) }
		ids.Check(&errs, i, c.ID)
		if !known[c.Group] {
			errs.Add(at("group"), "must be the id of one of groups, got %q", c.Group)
		}
		if c.CapMiB != nil {
			validateSize(&errs, at("cap_mib"), *c.CapMiB)
		}
		validateSize(&errs, at("minimum_mib"), c.MinimumMiB)
		validateSize(&errs, at("in_use_mib"), c.InUseMiB)
		if c.Priority < 0 || c.Priority > maxPriority {
			errs.Add(at("priority"), "must be 0 for the default, %d, or ≥ 1 and ≤ %d, got %d", DefaultPriority, maxPriority, c.Priority)
		}
		if !fields.Finite(c.ArrivedS) {
			errs.Add(at("arrived_s"), "must be a finite number, got %v", c.ArrivedS)
		}
	}
	if f := in.Params.Floor; !(f >= 0 && f <= 1) {
		errs.Add("params.floor", "must be ≥ 0 and ≤ 1, got %v", f)
	}
	return errs.Err()
}

func validateGroups(errs *fields.Errors, groups []Group, coefficients Coefficients) map[string]bool {
	type value struct{ property, value string }
	ids, known := fields.IDs{List: "groups"}, make(map[string]bool, len(groups))
	first, names := make(map[value]int), map[string]bool{Count: true}
	for i, g := range groups {
		at := func(name string) string { return fields.Member(fields.Index("groups", i), name) }
		ids.Check(errs, i, g.ID)
		known[g.ID] = true
		if g.Jobs < 1 || g.Jobs > maxNumber {
			errs.Add(at("jobs"), "must be ≥ 1 and ≤ %d, got %d", maxNumber, g.Jobs)
		}
		for _, name := range slices.Sorted(maps.Keys(g.Properties)) {
			names[name] = true
			p, path := g.Properties[name], fields.Member(at("properties"), name)
			if name == Count {
				errs.Add(path, "must have another name: %q is the number of jobs", Count)
			}
			if p.Value == "" {
				errs.Add(fields.Member(path, "value"), "must not be empty; a property that the group does not have is left out")
			}
			if p.Rank < 1 || p.Rank > maxNumber {
				errs.Add(fields.Member(path, "rank"), "must be ≥ 1 and ≤ %d, got %d", maxNumber, p.Rank)
			}
			j, seen := first[value{name, p.Value}]
			if !seen {
				first[value{name, p.Value}] = i
			} else if rank := groups[j].Properties[name].Rank; rank != p.Rank {
				errs.Add(fields.Member(path, "rank"), "must be %d, the rank of %q in %s, got %d", rank, p.Value, fields.Index("groups", j), p.Rank)
			}
		}
		g.Coefficients.validate(errs, at("coefficients"), g.propertyNames())
	}
	if coefficients.none() {
		errs.Add("coefficients", `must be "count-only", "equal" or an object of numbers, got null`)
	}
	coefficients.validate(errs, "coefficients", slices.Sorted(maps.Keys(names)))
	return known
}

func validateSize(errs *fields.Errors, path string, mib int) {
	if mib < 0 || mib > maxNumber {
		errs.Add(path, "must be ≥ 0 and ≤ %d, got %d", maxNumber, mib)
	}
}

func joinNames(names []string) string { return strings.Join(names, ", ") }

func figure11() []Group {
	group := func(id string, jobs int, app, size, user string) Group {
		ranks := map[string]int{
			"App_1": 1, "App_2": 1, "10M": 1, "20M": 2, "50M": 3, "User_1": 2, "User_2": 3, "User_3": 1,
		}
		g := Group{ID: id, Jobs: jobs, Properties: map[string]Property{
			"application": {Value: app, Rank: ranks[app]}, "user": {Value: user, Rank: ranks[user]},
		}}
		if size != "" {
			g.Properties["size"] = Property{Value: size, Rank: ranks[size]}
		}
		return g
	}
	return []Group{
		group("grp1", 12, "App_1", "10M", "User_1"),
		group("grp2", 5, "App_1", "20M", "User_2"),
		group("grp3", 8, "App_2", "", "User_3"),
		group("grp4", 2, "App_2", "", "User_3"),
		group("grp5", 3, "App_2", "50M", "User_3"),
	}
}

// Example returns the window of figure 11, with containers of all groups but the fourth: one with
// a small cap, one that holds much, and two priorities in one group.
func Example() Input {
	limit := func(mib int) *int { return &mib }
	return Input{
		MemoryMiB: 24576, ReserveMiB: 576,
		Mode:         Adaptive,
		Groups:       figure11(),
		Coefficients: Coefficients{Scheme: Equal},
		Containers: []Container{
			{ID: "lammps", Group: "grp1", CapMiB: limit(2048), Priority: 50, InUseMiB: 1536},
			{ID: "qmcpack", Group: "grp2", MinimumMiB: 5389, Priority: 50, InUseMiB: 5200},
			{ID: "mnist-a", Group: "grp3", Priority: 80, InUseMiB: 539},
			{ID: "mnist-b", Group: "grp3", Priority: 20},
			{ID: "alexnet", Group: "grp5", MinimumMiB: 3072, Priority: 50, InUseMiB: 8192},
		},
		Params: DefaultParams(),
	}
}
