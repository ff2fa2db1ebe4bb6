// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/e2e/bench/result"
)

// results is the JSON file.
type results struct {
	Time    time.Time         `json:"time"` // of the start
	Machine machine           `json:"machine"`
	Options map[string]string `json:"options"`
	Plugin  []pluginRun       `json:"plugin,omitempty"`
	Lone    []loneRun         `json:"lone,omitempty"`
}

func (r results) write(path string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("encoding the results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making the directory of the results: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the results: %w", err)
	}
	return nil
}

func printPlugin(w io.Writer, r results) {
	fmt.Fprintf(w, "\nThe plugin with %s tasks that report once a second; CPU in %% of a core, over %s:\n\n", r.Options["tasks"], r.Options["window"])
	fmt.Fprintln(w, "| policy | round | plugin | executors | Nomad | machine | plugin's RSS, MiB | categories | changes | pictures |")
	fmt.Fprintln(w, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	by := make(map[string][]float64)
	for _, p := range r.Plugin {
		by[p.Policy] = append(by[p.Policy], p.Plugin)
		fmt.Fprintf(w, "| %s | %d | %.2f | %.1f | %.1f | %.0f | %.0f | %s | %d | %d |\n",
			p.Policy, p.Round, p.Plugin, p.Executors, p.Agent, 100*p.Busy, p.RSS, counts(p.Categories), p.Changes, p.Pictures)
	}
	flowcon, none := result.SpreadOf(by["flowcon"]), result.SpreadOf(by["none"])
	fmt.Fprintf(w, "\nMedian: flowcon %.2f, none %.2f. Overhead, flowcon − none: %+.2f %% of a core; in the worst case (highest − lowest) %+.2f.\n",
		flowcon.Median, none.Median, flowcon.Median-none.Median, flowcon.Max-none.Min)
}

func counts(m map[string]int) string {
	var out []string
	for _, c := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%d %s", m[c], c))
	}
	return strings.TrimSpace(strings.Join(out, ", "))
}

func printLone(w io.Writer, r results) {
	fmt.Fprintf(w, "\nA lone task that wants all CPU, over %s: cores, of those that everything else on the machine left, and training steps a second. The ratios to stock are of the cores, of the cores by those left, and of the steps:\n\n", r.Options["window-lone"])
	fmt.Fprintln(w, "| round | stock | weight | quota | weight : stock, % | quota : stock, % |")
	fmt.Fprintln(w, "| --- | --- | --- | --- | --- | --- |")
	ratios := make(map[string][3][]float64)
	for _, of := range byRound(r.Lone) {
		stock := of["stock"]
		fmt.Fprintf(w, "| %d |", stock.Round)
		for _, way := range ways {
			run := of[way]
			fmt.Fprintf(w, " %.3f of %.2f, %.1f |", run.Cores, run.Left, run.Steps)
		}
		for _, way := range ways[1:] {
			run, all := of[way], ratios[way]
			now := [3]float64{100 * run.Cores / stock.Cores, 100 * run.share() / stock.share(), 100 * run.Steps / stock.Steps}
			for i, v := range now {
				all[i] = append(all[i], v)
			}
			ratios[way] = all
			fmt.Fprintf(w, " %.1f, %.1f, %.1f |", now[0], now[1], now[2])
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w, "\n| % of stock: median (worst … best) | cores | cores by those left | steps |\n| --- | --- | --- | --- |")
	for _, way := range ways[1:] {
		fmt.Fprintf(w, "| %s |", way)
		for _, values := range ratios[way] {
			s := result.SpreadOf(values)
			fmt.Fprintf(w, " %.1f (%.1f … %.1f) |", s.Median, s.Min, s.Max)
		}
		fmt.Fprintln(w)
	}
}

// byRound groups measurements by round and way.
func byRound(runs []loneRun) []map[string]loneRun {
	var rounds []map[string]loneRun
	for _, run := range runs {
		for len(rounds) < run.Round {
			rounds = append(rounds, make(map[string]loneRun))
		}
		rounds[run.Round-1][run.Way] = run
	}
	return rounds
}
