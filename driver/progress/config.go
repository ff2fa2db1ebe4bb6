// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"path/filepath"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	PresetAuto        = "auto"        // all of these
	PresetHuggingFace = "huggingface" // {'loss': 0.5, 'epoch': 1.0}, old and new quoting, and progress bars
	PresetKeras       = "keras"       // 12/469 ━━━ 1s 2ms/step - loss: 0.5, [===>..] and verbose=2
	PresetLightning   = "lightning"   // Epoch 3:  10%|█ | 10/100 [00:01<00:09, train_loss=0.5]
	PresetTQDM        = "tqdm"        // 10%|█ | 10/100 [00:01<00:09, loss=0.5]
	PresetPlain       = "plain"       // step=10 loss=0.5; Epoch [1/5], Step [100/600], Loss: 0.3
	PresetJSONL       = "jsonl"       // {"step": 10, "loss": 0.5}
)

// Presets returns the valid values of Config.Preset.
func Presets() []string {
	return []string{PresetAuto, PresetHuggingFace, PresetKeras, PresetLightning, PresetPlain, PresetTQDM, PresetJSONL}
}

const (
	maxMetric  = 128  // bytes
	maxPattern = 4096 // bytes
	maxProgram = 2000 // instructions, which bound the cost per byte of log
)

const (
	FormatJSONL = "jsonl" // an object per line
	FormatCSV   = "csv"   // a header and rows, separated by commas, semicolons or tabs
)

// Formats returns the valid values of Config.Format.
func Formats() []string { return []string{FormatJSONL, FormatCSV} }

// Config selects the source of a task's progress: its output, or one of File,
// TensorBoard and Prometheus. The zero value tries all kinds of output.
type Config struct {
	// Preset is one of Presets; "" means auto.
	Preset string
	// Metric is the metric's full name as printed, in any case; "" means automatic.
	Metric string
	// Pattern is a regular expression (RE2) with the group value and optionally step
	// and total. It replaces the presets; Metric then only names the result.
	Pattern string
	// Goal is min or max; "" infers it from the metric's name.
	Goal string

	// File is a file to which the trainer appends reports, by the task's path:
	// /local/…, local/…, /alloc/… or alloc/….
	File string
	// Format is one of Formats; "" infers it from the file's name.
	Format string
	// TensorBoard is a directory with TensorBoard event files, at any depth, by the
	// task's path.
	TensorBoard string
	// Prometheus is the URL of the task's metrics endpoint on this host.
	Prometheus string
	// Labels select one of several series of the metric.
	Labels map[string]string
	// Step and Total name the endpoint's metrics, or the file's fields, of steps done and
	// in total; "" means none or, in a file, automatic. With Step, no metric is needed.
	Step, Total string
	// Quantile, in (0, 1), is read from a histogram or summary; 0 means
	// DefaultQuantile.
	Quantile float64

	// Scale multiplies values, such as 0.001 for milliseconds; 0 means 1.
	Scale float64
}

// Declared returns the configured metric, "" for automatic, and the configured or
// inferred goal, "" for neither.
func (c Config) Declared() (metric, goal string) {
	metric, goal = c.Metric, c.Goal
	if metric == "" && c.Pattern != "" {
		metric = "value" // the group's name
	}
	if inferred, ok := InferGoal(metric); ok && goal == "" {
		goal = inferred
	}
	return metric, goal
}

// DefaultQuantile is the default quantile of a histogram.
const DefaultQuantile = 0.95

// Roots of source paths: the directories that every engine shares with the task.
const (
	RootLocal = "local" // the task's own (NOMAD_TASK_DIR)
	RootAlloc = "alloc" // the allocation's (NOMAD_ALLOC_DIR)
)

// SplitPath splits a path by the task's naming: "/alloc/runs/a" is "runs/a" in
// RootAlloc. ok is false outside the roots.
func SplitPath(name string) (root, path string, ok bool) {
	clean := strings.TrimPrefix(filepath.Clean(name), "/")
	root, path, _ = strings.Cut(clean, "/")
	if path == "" {
		path = "."
	}
	return root, path, name != "" && (root == RootLocal || root == RootAlloc)
}

// FieldError is an invalid field of a Config.
type FieldError struct {
	Field   string // as in the task's progress block
	Value   string // the given value
	Problem string // what is wrong and what is allowed
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("progress.%s: %s, got %q", e.Field, e.Problem, e.Value)
}

// Validate returns all errors, joined; each is a *FieldError such as `progress.goal:
// must be …`.
func (c Config) Validate() error {
	_, err := c.compile()
	return err
}

func (c Config) compile() (*regexp.Regexp, error) {
	var errs []error
	bad := func(field, value, format string, args ...any) {
		if len(value) > 200 {
			value = strings.ToValidUTF8(value[:200], "") + "…"
		}
		errs = append(errs, &FieldError{field, value, fmt.Sprintf(format, args...)})
	}

	if c.Preset != "" && !slices.Contains(Presets(), c.Preset) {
		hint := ""
		switch strings.ToLower(c.Preset) {
		case "hf", "transformers", "hugging_face", "hugging-face":
			hint = PresetHuggingFace
		case "json", "jsonlines", "ndjson":
			hint = PresetJSONL
		case "pytorch_lightning", "pl", "pytorch-lightning":
			hint = PresetLightning
		case "tensorflow", "tf":
			hint = PresetKeras
		case "text", "log", "kv", "pytorch":
			hint = PresetPlain
		default:
			if slices.Contains(Presets(), strings.ToLower(strings.TrimSpace(c.Preset))) {
				hint = strings.ToLower(strings.TrimSpace(c.Preset))
			}
		}
		if hint != "" {
			hint = fmt.Sprintf(" (did you mean %q?)", hint)
		}
		bad("preset", c.Preset, "must be one of %s%s", strings.Join(Presets(), ", "), hint)
	}

	switch {
	case len(c.Metric) > maxMetric:
		bad("metric", c.Metric, "must have at most %d bytes", maxMetric)
	case !utf8.ValidString(c.Metric):
		bad("metric", c.Metric, "must be valid UTF-8")
	case strings.ContainsFunc(c.Metric, unicode.IsControl):
		bad("metric", c.Metric, "must not contain control characters")
	case c.Metric != strings.TrimSpace(c.Metric):
		bad("metric", c.Metric, "must not begin or end with a space")
	}

	switch c.Goal {
	case "", GoalMin, GoalMax:
	default:
		bad("goal", c.Goal, "must be %q, %q, or empty to infer it from the metric's name", GoalMin, GoalMax)
	}

	c.checkSource(bad)
	re := c.compilePattern(bad)
	return re, errors.Join(errs...)
}

func (c Config) checkSource(bad func(field, value, format string, args ...any)) {
	type field struct{ name, value string }
	var first string
	for _, f := range []field{{"file", c.File}, {"tensorboard", c.TensorBoard}, {"prometheus", c.Prometheus}} {
		switch {
		case f.value == "":
		case first == "":
			first = f.name
		default:
			bad(f.name, redacted(f.value), "cannot be used together with %s: a task's progress is read from one place", first)
		}
	}
	for _, f := range []field{{"preset", c.Preset}, {"pattern", c.Pattern}} {
		if first != "" && f.value != "" {
			bad(f.name, f.value, "is for the task's output and cannot be used together with %s: leave one of them out", first)
		}
	}

	for _, f := range []field{{"file", c.File}, {"tensorboard", c.TensorBoard}} {
		root, path, ok := SplitPath(f.value)
		switch {
		case f.value == "":
		case !ok:
			bad(f.name, f.value, "must be beneath /local or /alloc (${NOMAD_TASK_DIR}, ${NOMAD_ALLOC_DIR}): other places in a container cannot be read from outside")
		case f.name == "file" && path == ".":
			bad(f.name, f.value, "must name a file beneath /%s", root)
		}
	}
	switch {
	case c.Format != "" && c.File == "":
		bad("format", c.Format, "is that of progress.file, which is not set")
	case c.Format != "" && !slices.Contains(Formats(), c.Format):
		bad("format", c.Format, "must be one of %s", strings.Join(Formats(), ", "))
	case c.File != "" && c.Format == "" && FormatOf(c.File) == "":
		bad("file", c.File, "does not end in .jsonl, .ndjson, .json, .csv or .tsv: set progress.format to one of %s", strings.Join(Formats(), ", "))
	}

	if c.Prometheus == "" {
		if len(c.Labels) > 0 {
			bad("labels", fmt.Sprint(len(c.Labels)), "are for progress.prometheus, which is not set")
		}
		if c.Quantile != 0 {
			bad("quantile", fmt.Sprint(c.Quantile), "is for progress.prometheus, which is not set")
		}
		for _, f := range []field{{"step", c.Step}, {"total", c.Total}} {
			switch {
			case f.value == "":
			case c.File == "":
				bad(f.name, f.value, "is for progress.prometheus and progress.file, which are not set")
			case len(f.value) > maxMetric || !utf8.ValidString(f.value) || strings.ContainsFunc(f.value, unicode.IsControl):
				bad(f.name, f.value, "must be the name of a field, of at most %d bytes", maxMetric)
			}
		}
	} else {
		c.checkEndpoint(bad)
	}
	if c.Scale < 0 || math.IsNaN(c.Scale) || math.IsInf(c.Scale, 0) {
		bad("scale", fmt.Sprint(c.Scale), "must be a number > 0")
	}
}

// checkEndpoint validates the settings of the metrics endpoint. prometheus.Reach limits
// its address by the task's allocation.
func (c Config) checkEndpoint(bad func(field, value, format string, args ...any)) {
	u, err := url.Parse(c.Prometheus)
	switch {
	case err != nil:
		bad("prometheus", "", "is not a URL") // the parser's message may contain a password
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		bad("prometheus", redacted(c.Prometheus), "must be a URL like http://127.0.0.1:8000/metrics (${NOMAD_ADDR_label} is the address of a port)")
	}
	if c.Metric == "" && c.Step == "" {
		bad("metric", "", "must name the metric that is read from progress.prometheus (or progress.step that of the steps done)")
	}
	if c.Quantile != 0 && !(c.Quantile > 0 && c.Quantile < 1) {
		bad("quantile", fmt.Sprint(c.Quantile), "must be between 0 and 1, 0.95 for instance")
	}
}

// redacted removes user, password and query from a URL; other texts are unchanged.
func redacted(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return text
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

func FormatOf(name string) string {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".jsonl", ".ndjson", ".json":
		return FormatJSONL
	case ".csv", ".tsv":
		return FormatCSV
	}
	return ""
}

func (c Config) compilePattern(bad func(field, value, format string, args ...any)) *regexp.Regexp {
	if c.Pattern == "" {
		return nil
	}
	if c.Preset != "" && c.Preset != PresetAuto {
		bad("pattern", c.Pattern, "cannot be used together with preset %q: leave one of them out", c.Preset)
	}
	if len(c.Pattern) > maxPattern {
		bad("pattern", c.Pattern, "must have at most %d bytes", maxPattern)
		return nil
	}
	re, err := regexp.Compile(c.Pattern)
	if err != nil {
		bad("pattern", c.Pattern, "must be a regular expression (RE2 syntax: no look-around, no back-references): %s",
			strings.TrimPrefix(err.Error(), "error parsing regexp: "))
		return nil
	}
	if n := programSize(c.Pattern); n > maxProgram {
		bad("pattern", c.Pattern, "is too costly: it compiles to %d instructions, at most %d are allowed (use smaller repeat counts)", n, maxProgram)
	}
	const allowed = "(?P<value>…), required, and (?P<step>…) and (?P<total>…), optional"
	for _, name := range re.SubexpNames() {
		switch name {
		case "", "value", "step", "total":
		default:
			bad("pattern", c.Pattern, "has the unknown group %q; the named groups are %s", name, allowed)
		}
	}
	if re.SubexpIndex("value") < 0 {
		bad("pattern", c.Pattern, "lacks the group \"value\"; the named groups are %s", allowed)
	}
	return re
}

func programSize(pattern string) int {
	tree, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return 0
	}
	return len(prog.Inst)
}
