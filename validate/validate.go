// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package validate checks jobspecs before they are registered: what Ebbtide's driver would
// refuse when a task starts, and what would not do what it seems to.
//
// A jobspec is read by Nomad's own parser, and what is allowed is decided by the code of
// driver and shim. What is here is the way from one to the other, and the places: Nomad's
// parser forgets where in the file something stands.
package validate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/driver/progress"
)

// Options say how jobspecs are read, as those of `nomad job run` do.
type Options struct {
	Vars     []string // name=value
	VarFiles []string
	Env      []string // the environment, of which NOMAD_VAR_name counts
	BaseDir  string   // of paths in functions such as file(); "" is that of the jobspec
}

// Severity is how bad a Finding is.
type Severity string

// The severities.
const (
	// Error is what Nomad or the driver refuses.
	Error Severity = "error"
	// Warning is what is accepted, and does not do what it seems to.
	Warning Severity = "warning"
)

// Finding is something that is wrong.
type Finding struct {
	File     string   `json:"file"`
	Line     int      `json:"line"`
	Column   int      `json:"column"`
	Severity Severity `json:"severity"`
	// At is the job, group or task: "train/workers/resnet"; "" for the file.
	At string `json:"at"`
	// Field is the path of the field: "progress.metric"; "" for the whole.
	Field   string `json:"field"`
	Problem string `json:"problem"`
}

// String is a finding as compilers write it.
func (f Finding) String() string {
	parts := []string{fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column), string(f.Severity)}
	for _, part := range []string{f.At, f.Field, f.Problem} {
		if part != "" {
			parts = append(parts, oneLine(part))
		}
	}
	return strings.Join(parts, ": ")
}

// Plan is what Ebbtide does with a task that is right.
type Plan struct {
	At string `json:"at"` // "train/workers/resnet"
	// Does are sentences for people.
	Does []string `json:"does"`

	Task     string          `json:"-"`
	Progress progress.Config `json:"-"`
	// Unknown says why Progress is not known; "" = it is.
	Unknown string `json:"-"`
}

// Report is what was found in one jobspec.
type Report struct {
	File     string    `json:"file"`
	Findings []Finding `json:"findings"`
	// Tasks are those that run under Ebbtide; none if there are errors.
	Tasks []Plan `json:"tasks"`
}

// Count counts the findings of a severity.
func (r Report) Count(s Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// Jobspec checks a jobspec, HCL or JSON.
func Jobspec(name string, body []byte, o Options) Report {
	r := Report{File: name, Findings: []Finding{}, Tasks: []Plan{}}
	job, findings := parse(name, body, o)
	if job == nil {
		r.Findings = findings
		return r
	}
	job.Canonicalize() // with the defaults that its servers would fill in
	c := newChecker(name, job, placesOf(body))
	c.check()
	for _, f := range c.findings {
		if !slices.Contains(r.Findings, f) { // of a key that several tasks have of their job
			r.Findings = append(r.Findings, f)
		}
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if r.Count(Error) == 0 && c.plans != nil {
		r.Tasks = c.plans
	}
	return r
}

// Counts are how many findings there are in all.
type Counts struct {
	Files    int `json:"files"`
	Errors   int `json:"errors"`
	Warnings int `json:"warnings"`
}

// Count counts what was found in several jobspecs.
func Count(reports []Report) (n Counts) {
	for _, r := range reports {
		n.Files++
		n.Errors += r.Count(Error)
		n.Warnings += r.Count(Warning)
	}
	return n
}

// Write writes reports for people and editors: a line for each finding, then what Ebbtide
// does with the tasks that are right.
func Write(w io.Writer, reports []Report) error {
	var out strings.Builder
	for _, r := range reports {
		for _, f := range r.Findings {
			fmt.Fprintln(&out, f)
		}
	}
	for _, r := range reports {
		for _, p := range r.Tasks {
			fmt.Fprintf(&out, "%s: %s\n", r.File, p.At)
			for _, does := range p.Does {
				fmt.Fprintf(&out, "  %s\n", does)
			}
		}
		if r.Count(Error) == 0 && len(r.Tasks) == 0 {
			fmt.Fprintf(&out, "%s: no task runs under Ebbtide\n", r.File)
		}
	}
	n := Count(reports)
	fmt.Fprintf(&out, "%s, %s in %s\n", plural(n.Errors, "error"), plural(n.Warnings, "warning"), plural(n.Files, "file"))
	_, err := io.WriteString(w, out.String())
	return err
}

// WriteJSON writes reports for scripts.
func WriteJSON(w io.Writer, reports []Report) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(struct {
		Files  []Report `json:"files"`
		Counts Counts   `json:"counts"`
	}{reports, Count(reports)})
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
