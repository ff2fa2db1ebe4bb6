// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package options

// Field is a field of a Block.
type Field struct {
	Name     string
	Type     string // as HCL writes it
	Required bool
}

// Block is one of Ebbtide's blocks in a task's config.
type Block struct {
	Name   string
	Fields []Field
}

// Schema lists the blocks, each of which may occur once.
func Schema() []Block {
	const text, number = "string", "number"
	return []Block{
		{"progress", []Field{
			{Name: "preset", Type: text},
			{Name: "metric", Type: text},
			{Name: "pattern", Type: text},
			{Name: "goal", Type: text},
			{Name: "file", Type: text},
			{Name: "format", Type: text},
			{Name: "tensorboard", Type: text},
			{Name: "prometheus", Type: text},
			{Name: "labels", Type: "list(map(string))"},
			{Name: "step", Type: text},
			{Name: "total", Type: text},
			{Name: "quantile", Type: number},
			{Name: "scale", Type: number},
		}},
		{"target", []Field{
			{Name: "signal", Type: text},
			{Name: "stop_signal", Type: text},
			{Name: "grace", Type: text},
		}},
		{"checkpoint", []Field{
			{Name: "path", Type: text, Required: true},
			{Name: "shared", Type: "bool"},
			{Name: "signal", Type: text},
			{Name: "timeout", Type: text},
			{Name: "lease", Type: text},
		}},
	}
}

// Blocks is the part of a task's config for Ebbtide, decoded by Schema: from Nomad's
// message (codec) or from JSON.
type Blocks struct {
	// The decorated driver's own, which may contain the training's length.
	Command string   `codec:"command" json:"command"`
	Args    []string `codec:"args" json:"args"`

	Progress   *Progress   `codec:"progress" json:"progress"`
	Target     *Target     `codec:"target" json:"target"`
	Checkpoint *Checkpoint `codec:"checkpoint" json:"checkpoint"`
}

type Progress struct {
	Preset      string              `codec:"preset" json:"preset"`
	Metric      string              `codec:"metric" json:"metric"`
	Pattern     string              `codec:"pattern" json:"pattern"`
	Goal        string              `codec:"goal" json:"goal"`
	File        string              `codec:"file" json:"file"`
	Format      string              `codec:"format" json:"format"`
	TensorBoard string              `codec:"tensorboard" json:"tensorboard"`
	Prometheus  string              `codec:"prometheus" json:"prometheus"`
	Labels      []map[string]string `codec:"labels" json:"labels"` // a block is a list of one
	Step        string              `codec:"step" json:"step"`
	Total       string              `codec:"total" json:"total"`
	Quantile    any                 `codec:"quantile" json:"quantile"` // see Number
	Scale       any                 `codec:"scale" json:"scale"`
}

type Target struct {
	Signal     string `codec:"signal" json:"signal"`
	StopSignal string `codec:"stop_signal" json:"stop_signal"`
	Grace      string `codec:"grace" json:"grace"`
}

type Checkpoint struct {
	Path    string `codec:"path" json:"path"`
	Shared  bool   `codec:"shared" json:"shared"`
	Signal  string `codec:"signal" json:"signal"`
	Timeout string `codec:"timeout" json:"timeout"`
	Lease   string `codec:"lease" json:"lease"`
}
