// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Presets, which say what kinds of lines are looked at.
const (
	PresetAuto        = "auto"        // every kind
	PresetHuggingFace = "huggingface" // {'loss': 0.5, 'epoch': 1.0}, old and new quoting, and the bars between
	PresetKeras       = "keras"       // 12/469 ━━━ 1s 2ms/step - loss: 0.5, [===>..] and verbose=2
	PresetLightning   = "lightning"   // Epoch 3:  10%|█ | 10/100 [00:01<00:09, train_loss=0.5]
	PresetTQDM        = "tqdm"        // 10%|█ | 10/100 [00:01<00:09, loss=0.5]
	PresetPlain       = "plain"       // step=10 loss=0.5; Epoch [1/5], Step [100/600], Loss: 0.3
	PresetJSONL       = "jsonl"       // {"step": 10, "loss": 0.5}
)

// Presets returns the names that Config.Preset may have.
func Presets() []string {
	return []string{PresetAuto, PresetHuggingFace, PresetKeras, PresetLightning, PresetPlain, PresetTQDM, PresetJSONL}
}

const (
	maxMetric  = 128  // bytes
	maxPattern = 4096 // bytes
	maxProgram = 2000 // instructions: what a pattern costs per byte of log, at worst
)

// Config says where the progress is found in a trainer's output. The zero value
// tries everything.
type Config struct {
	// Preset is one of Presets; empty means auto.
	Preset string
	// Metric is the name of the metric as the trainer prints it, whole, in any
	// case; empty means that the parser chooses.
	Metric string
	// Pattern is a regular expression (RE2) with the named group value and, if
	// wanted, step and total. It replaces the presets; Metric then only names what
	// it finds.
	Pattern string
	// Goal is min or max; empty means that it follows from the metric's name.
	Goal string
}

// FieldError is one thing that is wrong with a Config.
type FieldError struct {
	Field   string // preset, metric, pattern or goal
	Value   string // what was given
	Problem string // what is wrong, and what is allowed
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("progress.%s: %s, got %q", e.Field, e.Problem, e.Value)
}

// Validate returns every error of the configuration, joined; each is a *FieldError
// and begins with the field's path, as in `progress.goal: must be …`.
func (c Config) Validate() error {
	_, err := c.compile()
	return err
}

// compile validates the configuration and compiles its pattern, nil if it has none.
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

	re := c.compilePattern(bad)
	return re, errors.Join(errs...)
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

// programSize returns the number of instructions of a valid pattern.
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
