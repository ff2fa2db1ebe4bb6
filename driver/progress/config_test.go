// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"errors"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestConfig_Validate(t *testing.T) {
	const groups = `(?P<value>…), required, and (?P<step>…) and (?P<total>…), optional`
	for _, c := range []struct {
		config Config
		want   []string // prefixes
	}{
		{Config{}, nil},
		{Config{Preset: "keras", Metric: "val loss", Goal: "min"}, nil},
		{Config{Preset: "auto", Pattern: `x=(?P<value>\S+) (?P<step>\d+)/(?<total>\d+)`, Metric: "x", Goal: "max"}, nil},
		{Config{File: "/local/a.csv", Step: "it", Total: "its"}, nil},
		{Config{Prometheus: "http://127.0.0.1:1/", Step: "it", Total: "its"}, nil},
		{Config{Prometheus: "http://127.0.0.1:1/", Total: "its"}, []string{`progress.metric: must name the metric that is read from progress.prometheus (or progress.step that of the steps done), got ""`}},
		{Config{File: "/local/a.csv", Step: "a\nb"}, []string{`progress.step: must be the name of a field, of at most 128 bytes`}},
		{Config{Step: "it", Total: "its"}, []string{
			`progress.step: is for progress.prometheus and progress.file, which are not set, got "it"`,
			`progress.total: is for progress.prometheus and progress.file, which are not set, got "its"`}},
		{Config{TensorBoard: "/local/a", Step: "it"}, []string{`progress.step: is for progress.prometheus and progress.file, which are not set, got "it"`}},
		{Config{Preset: "hf"}, []string{`progress.preset: must be one of auto, huggingface, keras, lightning, plain, tqdm, jsonl (did you mean "huggingface"?), got "hf"`}},
		{Config{Preset: "json"}, []string{`progress.preset: must be one of auto, huggingface, keras, lightning, plain, tqdm, jsonl (did you mean "jsonl"?), got "json"`}},
		{Config{Preset: "Keras"}, []string{`progress.preset: must be one of auto, huggingface, keras, lightning, plain, tqdm, jsonl (did you mean "keras"?)`}},
		{Config{Preset: "x"}, []string{`progress.preset: must be one of auto, huggingface, keras, lightning, plain, tqdm, jsonl, got "x"`}},
		{Config{Goal: "minimise"}, []string{`progress.goal: must be "min", "max", or empty to infer it from the metric's name, got "minimise"`}},
		{Config{Metric: " loss"}, []string{`progress.metric: must not begin or end with a space`}},
		{Config{Metric: "a\nb"}, []string{`progress.metric: must not contain control characters`}},
		{Config{Metric: "a\xff"}, []string{`progress.metric: must be valid UTF-8`}},
		{Config{Metric: strings.Repeat("m", 129)}, []string{`progress.metric: must have at most 128 bytes`}},
		{Config{Pattern: `loss (.*`}, []string{`progress.pattern: must be a regular expression (RE2 syntax: no look-around, no back-references): missing closing )`}},
		{Config{Pattern: `(?=loss)`}, []string{`progress.pattern: must be a regular expression`}},
		{Config{Pattern: `loss (.*)`}, []string{`progress.pattern: lacks the group "value"; the named groups are ` + groups + `, got "loss (.*)"`}},
		{Config{Pattern: `(?P<loss>.*)`}, []string{
			`progress.pattern: has the unknown group "loss"; the named groups are ` + groups,
			`progress.pattern: lacks the group "value"`}},
		{Config{Pattern: `(?P<value>.*)`, Preset: "keras"}, []string{`progress.pattern: cannot be used together with preset "keras": leave one of them out`}},
		{Config{Pattern: `(?P<value>.*)` + strings.Repeat(" ", 5000)}, []string{`progress.pattern: must have at most 4096 bytes`}},
		{Config{Pattern: `(?P<value>(a{50}b{50}){12}(c{50}d{50}){12})`}, []string{`progress.pattern: is too costly`}},
		{Config{Preset: "x", Goal: "y", Pattern: "("}, []string{"progress.preset:", "progress.goal:", "progress.pattern: cannot", "progress.pattern: must"}},
	} {
		err := c.config.Validate()
		_, other := NewParser(c.config)
		if c.want == nil {
			must.NoError(t, err)
			must.NoError(t, other)
			continue
		}
		must.Error(t, err)
		must.Eq(t, err.Error(), other.Error())
		got := strings.Split(err.Error(), "\n")
		must.Len(t, len(c.want), got, must.Sprint(err))
		for i, line := range got {
			must.StrHasPrefix(t, c.want[i], line)
		}
		var field *FieldError
		must.True(t, errors.As(err, &field))
	}
}
