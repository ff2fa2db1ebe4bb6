// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"fmt"
	"strings"

	"github.com/shoenig/test/must"
)

// counted returns the series of our counters and histograms that are not 0, with the sum of
// a histogram in seconds.
func (b *bench) counted() map[string]float64 {
	b.Helper()
	families, err := b.opts.Metrics.Registry.Gather()
	must.NoError(b, err)
	all := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				if l.GetName() != "card" {
					name += fmt.Sprintf(" %s=%s", l.GetName(), l.GetValue())
				}
			}
			if h := m.Histogram; h != nil && h.GetSampleCount() > 0 {
				all[name+" count"], all[name+" sum"] = float64(h.GetSampleCount()), h.GetSampleSum()
			}
			if v := m.GetCounter().GetValue(); v > 0 {
				all[name] = v
			}
		}
	}
	for name := range all {
		if !strings.HasPrefix(name, "ebbtide_gpu_") {
			delete(all, name)
		}
	}
	return all
}
