// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package progress

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

var update = flag.Bool("update", false, "rewrite testdata/*.want")

func render(r Report) string {
	n := func(v float64) string {
		if !isSet(v) {
			return "-"
		}
		return fmt.Sprintf("%.10g", v)
	}
	return fmt.Sprintf("line %d: step %s of %s: %s = %v\n", r.Line, n(r.Step), n(r.Total), r.Metric, r.Value)
}

func readAll(t testing.TB, r *Reader) []Report {
	var out []Report
	for {
		report, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		must.NoError(t, err)
		out = append(out, report)
	}
}

// misread are samples that are not read as in their .want, with the reason.
var misread = map[string]string{
	"plain-cifar":   "the position is the last word of the line, 10/391",
	"plain-cntk":    "a step is a range, \"Minibatch[ 1- 100]\"",
	"plain-darknet": "a setting of the loss in brackets, (iou: 0.75, …), is taken for an IoU until the first loss comes",
	"plain-dl4j":    "\"Score at iteration 10 is 0.5\" is a sentence",
	"plain-garage":  "the step comes behind the metric, in a table without bars",
	"plain-kaldi":   "\"objective function for 'output' for minibatches 0-9 is -3.5\" is a sentence",
	"plain-parlai":  "total_steps says how many there were, not how many there will be",
	"plain-wenet":   "\"Batch 1/100\" is an epoch and a batch",
}

// TestGolden reads samples in the formats of public frameworks, automatically and with
// the preset in their names. At least 95 % must be read fully, with every value, step
// and total.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.log")
	must.NoError(t, err)
	must.Greater(t, 100, len(files))
	logs := len(slices.DeleteFunc(slices.Clone(files), func(f string) bool { return strings.HasPrefix(f, "testdata/noise") }))
	share := 1 - float64(len(misread))/float64(logs)
	t.Logf("%.1f %% of %d samples", 100*share, logs)
	must.GreaterEq(t, 0.95, share)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".log")
		preset, _, _ := strings.Cut(name, "-")
		for _, config := range []Config{{}, {Preset: preset}} {
			if preset == "noise" && config.Preset != "" {
				continue
			}
			t.Run(name+"/"+config.Preset, func(t *testing.T) {
				data, err := os.ReadFile(file)
				must.NoError(t, err)
				p, err := NewParser(config)
				must.NoError(t, err)
				reader := NewReader(bytes.NewReader(data), p)
				var got strings.Builder
				for _, r := range readAll(t, reader) {
					if !r.StepOnly() {
						got.WriteString(render(r))
					}
				}
				st := p.Stats()
				must.Eq(t, st.Lines, st.Reports+st.Noise+st.Other+st.NotNumber+st.Shape+st.Eval)

				golden := "testdata/" + name + ".want"
				if *update && config.Preset == "" && misread[name] == "" {
					must.NoError(t, os.WriteFile(golden, []byte(got.String()), 0o644))
				}
				want, err := os.ReadFile(golden)
				must.NoError(t, err)
				if misread[name] != "" {
					must.NotEq(t, string(want), got.String(), must.Sprint("is read now: take it off the list"))
					return
				}
				must.Eq(t, string(want), got.String())
			})
		}
	}
}
