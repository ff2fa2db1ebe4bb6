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
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

var update = flag.Bool("update", false, "write testdata/*.want anew")

// render is how a .want file shows a report.
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

// TestGolden reads the samples of testdata, which are what the frameworks print, with
// automatic settings, and with the preset that their names begin with.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.log")
	must.NoError(t, err)
	must.Greater(t, 25, len(files))
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
					got.WriteString(render(r))
				}
				st := p.Stats()
				must.Eq(t, st.Lines, st.Reports+st.Noise+st.Other+st.NotNumber+st.Shape+st.Eval)

				golden := "testdata/" + name + ".want"
				if *update && config.Preset == "" {
					must.NoError(t, os.WriteFile(golden, []byte(got.String()), 0o644))
				}
				want, err := os.ReadFile(golden)
				must.NoError(t, err)
				must.Eq(t, string(want), got.String())
			})
		}
	}
}
