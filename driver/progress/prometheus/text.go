// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package prometheus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

const (
	maxSamples = 20_000 // of the wanted metrics
	maxOthers  = 64     // names of other metrics that are kept
)

type sample struct {
	name   string
	labels labels.Labels // without the name
	value  float64
}

// label returns a label's value; "" if missing.
func (s *sample) label(name string) string { return s.labels.Get(name) }

// key returns the labels except one as a string.
func (s *sample) key(but string) string {
	return labels.NewBuilder(s.labels).Del(but).Labels().String()
}

type page struct {
	samples []sample          // of the wanted names
	types   map[string]string // of the wanted names
	others  []string          // other metrics, by their TYPE lines
	lines   int64
	full    bool
}

// parse reads Prometheus or OpenMetrics text and keeps the wanted samples. As in
// Prometheus, one invalid line invalidates the text.
func parse(text []byte, openMetrics bool, want func(name string) bool) (p page, err error) {
	defer func() {
		// A panic of the parser must not end the driver.
		if r := recover(); r != nil {
			err = fmt.Errorf("reading the text: %v", r)
		}
	}()
	p = page{types: map[string]string{}, lines: int64(bytes.Count(text, []byte("\n")))}
	symbols := labels.NewSymbolTable()
	parser := textparse.NewPromParser(text, symbols, false)
	if openMetrics {
		parser = textparse.NewOpenMetricsParser(text, symbols)
	}
	for {
		entry, err := parser.Next()
		switch {
		case errors.Is(err, io.EOF):
			return p, nil
		case err != nil:
			return p, err
		case entry == textparse.EntryType:
			name, kind := parser.Type()
			if want(string(name)) {
				p.types[string(name)] = string(kind)
			} else if len(p.others) < maxOthers && len(name) <= 100 && !slices.Contains(p.others, string(name)) {
				p.others = append(p.others, string(name))
			}
		case entry == textparse.EntrySeries:
			_, _, value := parser.Series()
			var all labels.Labels
			parser.Labels(&all)
			name := all.Get(labels.MetricName)
			if !want(name) {
				continue
			}
			if len(p.samples) == maxSamples {
				p.full = true
				return p, nil
			}
			p.samples = append(p.samples, sample{name, labels.NewBuilder(all).Del(labels.MetricName).Labels(), value})
		}
	}
}
