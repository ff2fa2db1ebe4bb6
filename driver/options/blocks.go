// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package options

// Field is a field of one of Ebbtide's blocks in a task's config. Descriptions are Markdown.
type Field struct {
	Name     string
	Type     string // as HCL writes it
	Required bool
	Default  string // human-readable
	Allowed  string // human-readable
	Doc      string // human-readable
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
			{Name: "preset", Type: text, Default: "`auto`", Allowed: "see below",
				Doc: "Format of the output lines."},
			{Name: "metric", Type: text, Allowed: "≤ 128 bytes", Default: "a training loss",
				Doc: "Full name as the trainer prints it; not case-sensitive."},
			{Name: "pattern", Type: text, Allowed: "RE2, ≤ 4096 bytes",
				Doc: "Regular expression instead of a preset. Named groups: `value`, optionally `step`, `total`. `metric` then only labels the value."},
			{Name: "goal", Type: text, Default: "from the name, else `min`", Allowed: "`min`, `max`",
				Doc: "Direction in which the metric improves."},
			{Name: "file", Type: text, Allowed: "beneath `/local` or `/alloc`",
				Doc: "File to read, to which the trainer appends."},
			{Name: "format", Type: text, Default: "from the name", Allowed: "`jsonl`, `csv`",
				Doc: "Format of `file`."},
			{Name: "tensorboard", Type: text, Allowed: "beneath `/local` or `/alloc`",
				Doc: "Directory tree of event files to read."},
			{Name: "prometheus", Type: text, Allowed: "a URL of the allocation",
				Doc: "Metrics endpoint to read. Requires `metric` or `step`."},
			{Name: "labels", Type: "list(map(string))", Allowed: "a block",
				Doc: "Labels that select one of several `prometheus` series."},
			{Name: "step", Type: text, Allowed: "name",
				Doc: "Steps done, in `prometheus` or `file`."},
			{Name: "total", Type: text, Allowed: "name",
				Doc: "Steps in total, in `prometheus` or `file`."},
			{Name: "quantile", Type: number, Default: "0.95", Allowed: "> 0, < 1",
				Doc: "Quantile of a `prometheus` histogram or summary."},
			{Name: "scale", Type: number, Default: "1", Allowed: "> 0",
				Doc: "Factor for values; 0.001 converts milliseconds to seconds."},
		}},
		{"target", []Field{
			{Name: "signal", Type: text, Allowed: "signal name",
				Doc: "Sent at the acceptable target, for example to save the best parameters."},
			{Name: "stop_signal", Type: text, Default: "the engine's", Allowed: "signal name",
				Doc: "Sent at the objective."},
			{Name: "grace", Type: text, Default: "30s", Allowed: "0s to 1h",
				Doc: "Time from `stop_signal` until the task is killed."},
		}},
		{"checkpoint", []Field{
			{Name: "path", Type: text, Required: true, Allowed: "path or pattern with `*`, `?`, `[…]`, beneath `/local` or `/alloc/data`",
				Doc: "Files or directories that the task saves; no symbolic links. Required."},
			{Name: "shared", Type: "bool", Default: "false",
				Doc: "`path` is on a volume with the same content on every node (NFS, CSI)."},
			{Name: "signal", Type: text, Default: "SIGUSR1", Allowed: "signal name, `none`",
				Doc: "Makes the task save. After SIGTERM, SIGINT, SIGQUIT or SIGHUP the task may exit. `none`: the task's own next save is awaited."},
			{Name: "timeout", Type: text, Default: "1m, with `none` 30m", Allowed: "1s to 1h, with `none` to 24h",
				Doc: "Maximum time for saving."},
			{Name: "lease", Type: text, Default: "1m", Allowed: "1s to 1h",
				Doc: "Maximum freeze afterwards."},
		}},
	}
}

// Blocks is Ebbtide's part of a task's config, decoded with Schema: from msgpack (codec) or from
// JSON.
type Blocks struct {
	// The decorated driver's fields, which may contain the number of steps.
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
	Labels      []map[string]string `codec:"labels" json:"labels"` // a block is a list of one element
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
