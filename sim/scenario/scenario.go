// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package scenario reads scenarios from HCL. docs/sim.md lists the fields.
package scenario

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"

	"github.com/ebbtide/ebbtide/internal/fields"
	"github.com/ebbtide/ebbtide/sim/workload"
)

// Values of Scenario.Sizes: what nodes know of jobs' sizes.
const (
	Exact     = "exact"
	Estimated = "estimated" // from reports, by the driver's code
	Unknown   = "unknown"
)

// Values of Scenario.Placement.
const (
	Spread   = "spread"   // Nomad's: the least allocated node
	Binpack  = "binpack"  // Nomad's: the most allocated node with room
	Alg4     = "alg4"     // FlowCon's Algorithm 4
	Relocate = "relocate" // spread, plus relocation
	// Orders of jobs that wait for cores. Placement is Nomad's without one.
	Queue   = "queue"   // fair finish
	Turns   = "turns"   // the same, but no job is suspended
	Fifo    = "fifo"    // Nomad's batch_queue: the first blocks the rest
	Dynamic = "dynamic" // Nomad's batch_queue: by age, size and the owner's use
	EASY    = "easy"    // fifo, with backfilling
	LAS     = "las"     // least attained service, with quanta
	SRTF    = "srtf"    // shortest remaining time first, by true sizes
)

func Placements() []string {
	return append([]string{Spread, Binpack, Alg4, Relocate}, Orders()...)
}

// Orders are the values of Placement that order waiting jobs.
func Orders() []string { return []string{Queue, Turns, Fifo, Dynamic, EASY, LAS, SRTF} }

// Scenario is a simulation's input. Times are in seconds.
type Scenario struct {
	Name       string   `hcl:"name,optional"`
	Data       string   `hcl:"data,optional"`       // of real curves and traces
	Sizes      string   `hcl:"sizes,optional"`      // Exact, Estimated or Unknown
	Mode       string   `hcl:"mode,optional"`       // weight or quota
	Placement  string   `hcl:"placement,optional"`  // see Placements
	IntervalS  float64  `hcl:"interval_s,optional"` // as in an agent's configuration
	MaxS       float64  `hcl:"max_interval_s,optional"`
	Contention float64  `hcl:"contention,optional"` // relative slowdown by a second running task
	Overhead   float64  `hcl:"overhead,optional"`   // see workload.Job
	MoveS      float64  `hcl:"move_s,optional"`     // downtime of a move, cost of a suspension
	Local      bool     `hcl:"local,optional"`      // a suspended job goes on on its node only
	SizeError  *float64 `hcl:"size_error,optional"` // jobs come with a duration, wrong by 2 to a normal power of this σ
	// Options are an agent's policy options.
	Options map[string]string `hcl:"options,optional"`

	Nodes     []Node     `hcl:"node,block"`
	Workloads []Workload `hcl:"workload,block"`
	Services  []Service  `hcl:"service,block"`
	Failures  *Failures  `hcl:"failures,block"`
}

type Node struct {
	Name  string  `hcl:"name,label"`
	Count int     `hcl:"count,optional"`
	Cores float64 `hcl:"cores"`
}

// Workload is a set of jobs; see workload.Spec.
type Workload struct {
	Source   string    `hcl:"source,label"`
	Jobs     int       `hcl:"jobs"`
	MedianS  float64   `hcl:"median_cpu_s,optional"`
	Sigma    *float64  `hcl:"sigma,optional"`
	OverS    float64   `hcl:"over_s,optional"`
	Spread   float64   `hcl:"spread,optional"`
	ArriveS  []float64 `hcl:"arrive_s,optional"`
	CapCores []float64 `hcl:"cap_cores,optional"`
	Weights  []float64 `hcl:"weights,optional"`
	// Overheads are the jobs' by arrival, repeated; none for the scenario's.
	Overheads []float64 `hcl:"overheads,optional"`
	Asks      bool      `hcl:"asks,optional"`
	Steps     int       `hcl:"steps,optional"`
	Reports   int       `hcl:"reports,optional"`
	Noise     *float64  `hcl:"noise,optional"`
	Targets   bool      `hcl:"targets,optional"`
	Totals    []float64 `hcl:"totals,optional"`
	List      int       `hcl:"list,optional"`
}

// Service is a service with a response-time target.
type Service struct {
	Name       string  `hcl:"name,label"`
	Count      int     `hcl:"count,optional"`
	ObjectiveS float64 `hcl:"objective_s"`
	BatchCPUS  float64 `hcl:"batch_cpu_s"`
	CapCores   float64 `hcl:"cap_cores,optional"`
	ArriveS    float64 `hcl:"arrive_s,optional"`
	ForS       float64 `hcl:"for_s"`
}

type Failures struct {
	EveryS      float64 `hcl:"every_s"` // mean time between failures of a node
	RepairS     float64 `hcl:"repair_s"`
	CheckpointS float64 `hcl:"checkpoint_s,optional"` // between checkpoints, in CPU-seconds of the job; 0 for none
}

// Changes override fields of a scenario; zero values do not.
type Changes struct {
	Jobs  int    // per workload
	Sizes string // see Scenario.Sizes
}

func (c Changes) apply(s *Scenario) {
	if c.Jobs != 0 {
		s.Name += fmt.Sprintf(", %d jobs", c.Jobs)
		for i := range s.Workloads {
			s.Workloads[i].Jobs = c.Jobs
		}
	}
	if c.Sizes != "" {
		s.Name += ", " + c.Sizes
		s.Sizes = c.Sizes
	}
}

// Parse reads a scenario. The error is a fields.Errors or the parser's, and includes all
// problems.
func Parse(name string, text []byte, changes Changes) (Scenario, error) {
	var s Scenario
	file, diags := hclsyntax.ParseConfig(text, name, hcl.InitialPos)
	if diags.HasErrors() {
		return s, problems(diags)
	}
	body, ok := file.Body.(*hclsyntax.Body)
	if !ok {
		return s, fmt.Errorf("reading %s: not HCL's native syntax", name)
	}
	if err := unknown(body); err != nil {
		return s, err
	}
	if diags := gohcl.DecodeBody(body, nil, &s); diags.HasErrors() {
		return s, problems(diags)
	}
	if s.Name == "" {
		base := name[strings.LastIndexByte(name, '/')+1:]
		s.Name = strings.TrimSuffix(base, ".hcl")
	}
	changes.apply(&s)
	s.fill()
	return s, s.validate()
}

func problems(diags hcl.Diagnostics) error {
	var errs []error
	for _, d := range diags {
		where := ""
		if d.Subject != nil {
			where = fmt.Sprintf("%s:%d: ", d.Subject.Filename, d.Subject.Start.Line)
		}
		errs = append(errs, fmt.Errorf("%s%s: %s", where, d.Summary, d.Detail))
	}
	return errors.Join(errs...)
}

// unknown reports unknown attributes and blocks, with those allowed.
func unknown(body *hclsyntax.Body) error {
	var errs fields.Errors
	check := func(path string, b *hclsyntax.Body, like any) {
		schema, _ := gohcl.ImpliedBodySchema(like)
		var allowed []string
		for _, a := range schema.Attributes {
			allowed = append(allowed, a.Name)
		}
		for _, a := range schema.Blocks {
			allowed = append(allowed, a.Type)
		}
		slices.Sort(allowed)
		refuse := func(name string, at hcl.Range) {
			if !slices.Contains(allowed, name) {
				errs.Add(fields.Member(path, name), "is unknown (line %d), must be one of %s", at.Start.Line, strings.Join(allowed, ", "))
			}
		}
		for _, name := range sorted(b.Attributes) {
			refuse(name, b.Attributes[name].NameRange)
		}
		for _, inner := range b.Blocks {
			refuse(inner.Type, inner.TypeRange)
		}
	}
	check("", body, Scenario{})
	for _, b := range body.Blocks {
		if like, ok := map[string]any{"node": Node{}, "workload": Workload{}, "service": Service{}, "failures": Failures{}}[b.Type]; ok {
			check(strings.Join(append([]string{b.Type}, b.Labels...), " "), b.Body, like)
		}
	}
	return errs.Err()
}

func sorted(attributes hclsyntax.Attributes) []string {
	var names []string
	for name := range attributes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

const (
	defaultIntervalS = 5
	defaultMaxS      = 300
	defaultMoveS     = 5 // SpeCon: saving and resuming takes less than 5 s
	defaultMedianS   = 200
	defaultSigma     = 1
	defaultSpread    = 0.5
	defaultReports   = 100
	defaultSteps     = 1000
	defaultNoise     = 0.01
)

func (s *Scenario) fill() {
	or := func(x *float64, value float64) {
		if *x == 0 {
			*x = value
		}
	}
	text := func(x *string, value string) {
		if *x == "" {
			*x = value
		}
	}
	count := func(x *int, value int) {
		if *x == 0 {
			*x = value
		}
	}
	text(&s.Sizes, Estimated)
	text(&s.Mode, "weight")
	text(&s.Placement, Spread)
	or(&s.IntervalS, defaultIntervalS)
	or(&s.MaxS, max(defaultMaxS, s.IntervalS))
	or(&s.MoveS, defaultMoveS)
	for i := range s.Nodes {
		count(&s.Nodes[i].Count, 1)
	}
	for i := range s.Services {
		count(&s.Services[i].Count, 1)
	}
	for i := range s.Workloads {
		w := &s.Workloads[i]
		or(&w.MedianS, defaultMedianS)
		or(&w.Spread, defaultSpread)
		count(&w.Reports, defaultReports)
		count(&w.Steps, defaultSteps)
		given := func(x **float64, value float64) { // 0 is a value
			if *x == nil {
				*x = &value
			}
		}
		given(&w.Sigma, defaultSigma)
		given(&w.Noise, defaultNoise)
	}
}

// MaxCount bounds jobs and nodes.
const MaxCount = 1_000_000

func (s Scenario) validate() error {
	var errs fields.Errors
	positive := func(path string, x float64) {
		if !fields.Positive(x) {
			errs.Add(path, "must be > 0, got %v", x)
		}
	}
	least := func(path string, x float64) {
		if !fields.NonNegative(x) {
			errs.Add(path, "must be ≥ 0, got %v", x)
		}
	}
	count := func(path string, n int) {
		if n < 1 || n > MaxCount {
			errs.Add(path, "must be from 1 to %d, got %d", MaxCount, n)
		}
	}
	one := func(path, x string, of ...string) {
		if !slices.Contains(of, x) {
			errs.Add(path, "must be one of %s, got %q", strings.Join(of, ", "), x)
		}
	}
	one("sizes", s.Sizes, Exact, Estimated, Unknown)
	one("mode", s.Mode, "weight", "quota")
	one("placement", s.Placement, Placements()...)
	positive("interval_s", s.IntervalS)
	if !(s.MaxS >= s.IntervalS) || !fields.Finite(s.MaxS) {
		errs.Add("max_interval_s", "must be ≥ interval_s = %v, got %v", s.IntervalS, s.MaxS)
	}
	least("contention", s.Contention)
	least("move_s", s.MoveS)
	if s.SizeError != nil {
		least("size_error", *s.SizeError)
	}
	if len(s.Nodes) == 0 {
		errs.Add("node", "must be there once at least: a node has a name and cores")
	}
	if len(s.Workloads)+len(s.Services) == 0 {
		errs.Add("workload", "must be there once at least, or a service")
	}
	names := make(map[string]bool)
	for _, n := range s.Nodes {
		path := "node " + n.Name
		if names[n.Name] {
			errs.Add(path, "is duplicated")
		}
		names[n.Name] = true
		count(path+".count", n.Count)
		positive(path+".cores", n.Cores)
	}
	for _, w := range s.Workloads {
		path := "workload " + w.Source
		one(path, w.Source, workload.Sources()...)
		count(path+".jobs", w.Jobs)
		positive(path+".median_cpu_s", w.MedianS)
		least(path+".sigma", *w.Sigma)
		if *w.Sigma > 4 {
			errs.Add(path+".sigma", "must be ≤ 4, got %v", *w.Sigma)
		}
		least(path+".over_s", w.OverS)
		positive(path+".spread", w.Spread)
		if n := len(w.ArriveS); n > 0 && n != w.Jobs {
			errs.Add(path+".arrive_s", "must have a moment for each of %d jobs, got %d", w.Jobs, n)
		}
		for i, at := range w.ArriveS {
			least(fields.Index(path+".arrive_s", i), at)
		}
		if w.Asks && len(w.CapCores) == 0 && (w.Source == workload.Generated || w.Source == workload.Papers) {
			errs.Add(path+".cap_cores", "must be given with asks: what the jobs ask for")
		}
		for i, c := range w.CapCores {
			positive(fields.Index(path+".cap_cores", i), c)
		}
		for i, x := range w.Weights {
			if !(x >= 0.01 && x <= 100) {
				errs.Add(fields.Index(path+".weights", i), "must be ≥ 0.01 and ≤ 100, got %v", x)
			}
		}
		for i, x := range w.Overheads {
			least(fields.Index(path+".overheads", i), x)
		}
		for i, x := range w.Totals {
			positive(fields.Index(path+".totals", i), x)
		}
		count(path+".steps", w.Steps)
		count(path+".reports", w.Reports)
		least(path+".noise", *w.Noise)
		if w.List < 0 || w.List > 4 {
			errs.Add(path+".list", "must be from 1 to 4, or 0 for one by the seed, got %d", w.List)
		}
	}
	for _, v := range s.Services {
		path := "service " + v.Name
		count(path+".count", v.Count)
		positive(path+".objective_s", v.ObjectiveS)
		positive(path+".batch_cpu_s", v.BatchCPUS)
		positive(path+".for_s", v.ForS)
		least(path+".cap_cores", v.CapCores)
		least(path+".arrive_s", v.ArriveS)
	}
	if f := s.Failures; f != nil {
		positive("failures.every_s", f.EveryS)
		positive("failures.repair_s", f.RepairS)
		least("failures.checkpoint_s", f.CheckpointS)
	}
	return errs.Err()
}

func (s Scenario) PoolCores() float64 {
	sum := 0.0
	for _, n := range s.Nodes {
		sum += float64(n.Count) * n.Cores
	}
	return sum
}

// NodeCount returns the number of nodes of all kinds.
func (s Scenario) NodeCount() int {
	sum := 0
	for _, n := range s.Nodes {
		sum += n.Count
	}
	return sum
}

// Jobs returns a seed's jobs and services, in order of arrival.
func (s Scenario) Jobs(data fs.FS, seed uint64) ([]workload.Job, error) {
	var all []workload.Job
	for i, w := range s.Workloads {
		jobs, err := workload.Make(workload.Spec{
			Source: w.Source, Jobs: w.Jobs, MedianCPUS: w.MedianS, Sigma: *w.Sigma, OverS: w.OverS, Spread: w.Spread, At: w.ArriveS,
			Caps: w.CapCores, Weights: w.Weights, Asks: w.Asks, Steps: w.Steps, Reports: w.Reports, Noise: *w.Noise, Targets: w.Targets, List: w.List,
			Totals: w.Totals, PoolCores: s.PoolCores(),
		}, workload.Data{FS: data}, seed+uint64(i)<<32)
		if err != nil {
			return nil, err
		}
		overheads := w.Overheads
		if len(overheads) == 0 {
			overheads = []float64{s.Overhead}
		}
		for k := range jobs {
			jobs[k].Overhead = overheads[k%len(overheads)]
		}
		if len(s.Workloads) > 1 {
			for k := range jobs {
				jobs[k].ID = fmt.Sprintf("%d-%s", i, jobs[k].ID)
			}
		}
		all = append(all, jobs...)
	}
	for _, v := range s.Services {
		for k := range v.Count {
			all = append(all, workload.Job{
				ID: fmt.Sprintf("%s-%d", v.Name, k), Kind: v.Name, ArriveS: v.ArriveS, CapCores: v.CapCores, Weight: 1,
				Service: &workload.Service{ObjectiveS: v.ObjectiveS, BatchCPUS: v.BatchCPUS, ForS: v.ForS},
			})
		}
	}
	slices.SortStableFunc(all, func(a, b workload.Job) int {
		switch {
		case a.ArriveS < b.ArriveS:
			return -1
		case a.ArriveS > b.ArriveS:
			return 1
		}
		return 0
	})
	return all, nil
}
