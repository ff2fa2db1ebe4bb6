// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package metrics

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
)

// Bound is the policy with the largest possible gain, shortest remaining work first with exact
// sizes.
const Bound = "srpt"

// WriteTable writes a table per scenario with changes relative to the base, their intervals and
// the losers. If the runs include Bound, the last column is relative to its gain.
func WriteTable(w io.Writer, all []Summary) error {
	for from := 0; from < len(all); {
		to := from
		for to < len(all) && all[to].Scenario == all[from].Scenario {
			to++
		}
		if err := writeTable(w, all[from:to]); err != nil {
			return fmt.Errorf("writing the table: %w", err)
		}
		from = to
	}
	return nil
}

func writeTable(w io.Writer, all []Summary) error {
	bound := 0.0
	for _, s := range all {
		if s.Policy == Bound {
			bound = s.Gain()
		}
	}
	base := all[0].Base
	if all[0].Draws > 0 {
		base = fmt.Sprintf("the mean of %d draws of %s", all[0].Draws, base)
	}
	fmt.Fprintf(w, "%s: %d jobs, %d runs, against %s\n", all[0].Scenario, all[0].Jobs, all[0].Runs, base)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	waits := all[0].Share.N > 0 // for places
	more := ""
	if waits {
		more = "first start\tof fair share\tp95\t"
	}
	fmt.Fprint(t, "policy\tcompletion\tmakespan\t50 % quality\t95 % quality\tworst job\tof all\tslower\tρ p95\tidle\tlost\tmoves\tQoE\tof bound\t", more, "\n")
	for _, s := range all {
		of := ""
		if bound > 0 && s.Policy != s.Base {
			of = fmt.Sprintf("%.0f %%", 100*s.Gain()/bound)
		}
		qoe := ""
		if s.QoEHits != nil {
			qoe = fmt.Sprintf("%.0f %%", 100**s.QoEHits)
		}
		name := s.Policy
		if s.Unfinished > 0 {
			name += fmt.Sprintf(" (%d not ended)", s.Unfinished)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%.2f\t%.2f\t%.0f %%\t%.2f\t%.1f %%\t%.1f %%\t%.2g\t%s\t%s\t", name,
			s.Time(Completion).Ratio.change(), s.Time(Makespan).Ratio.change(), s.Time("quality_50").Ratio.change(), s.Time(Quality95).Ratio.change(),
			s.Worst.Mean, s.Ratio.Max, 100*s.Slower, s.Fairness.P95, 100*s.Idle, 100*s.Lost, s.Moves, qoe, of)
		if waits {
			fmt.Fprintf(t, "%s\t%.2f\t%.2f\t", s.Time(Start).Ratio.change(), s.Share.Max, s.Share.P95)
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

func (i Interval) change() string {
	switch {
	case i.N == 0:
		return "–"
	case i.N == 1:
		return fmt.Sprintf("%+.1f %%", 100*(i.Mean-1))
	}
	return fmt.Sprintf("%+.1f %% [%+.1f, %+.1f]", 100*(i.Mean-1), 100*(i.Low-1), 100*(i.High-1))
}

// WriteCSV writes a row per job and run, without draws; unknown fields are empty.
func WriteCSV(w io.Writer, runs []Run) error {
	out := csv.NewWriter(w)
	header := []string{"scenario", "policy", "seed", "job", "kind", "arrive_s", "start_s", "end_s", "fair_end_s",
		"quality_50_s", "quality_90_s", "quality_95_s", "acceptable_s", "objective_s",
		"cpu_s", "lost_cpu_s", "throttled_s", "moves", "qoe_checks", "qoe_hits", "rho"}
	if err := out.Write(header); err != nil {
		return fmt.Errorf("writing the jobs: %w", err)
	}
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', 9, 64) }
	known := func(x *float64) string {
		if x == nil {
			return ""
		}
		return number(*x)
	}
	for _, r := range runs {
		rho := r.Fairness()
		for i, j := range r.Jobs {
			err := out.Write([]string{r.Scenario, r.Policy, strconv.FormatUint(r.Seed, 10), j.ID, j.Kind, number(j.ArriveS), known(j.StartS), known(j.EndS), known(j.FairEndS),
				known(j.Quality50S), known(j.Quality90S), known(j.Quality95S), known(j.AcceptableS), known(j.ObjectiveS),
				number(j.CPUS), number(j.LostCPUS), number(j.ThrottledS), strconv.Itoa(j.Moves), strconv.Itoa(j.QoEChecks), strconv.Itoa(j.QoEHits), number(rho[i])})
			if err != nil {
				return fmt.Errorf("writing the jobs: %w", err)
			}
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("writing the jobs: %w", err)
	}
	return nil
}
