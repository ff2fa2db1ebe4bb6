// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package validate checks jobspecs before registration. In: a jobspec, parsed by Nomad's own
// parser. Out: Findings of what Ebbtide's driver would reject and of what has no effect,
// decided by the driver's and shim's own code, and a Plan per task. Start with validate.go;
// position.go adds the positions, which Nomad's parser does not keep.
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

// Options are parser options as of `nomad job run`.
type Options struct {
	Vars     []string // name=value
	VarFiles []string
	Env      []string // for NOMAD_VAR_name
	BaseDir  string   // for functions such as file(); "" for the jobspec's directory
	// Parse asks an agent to parse a job, with a file of variables, and returns what its parser
	// refuses, "" for nothing; nil without an agent.
	Parse func(hcl, variables string) (problems string, err error)
}

type Severity string

const (
	// Error is rejected by Nomad or the driver.
	Error Severity = "error"
	// Warning is accepted but has no or another effect.
	Warning Severity = "warning"
	// Note could not be checked.
	Note Severity = "note"
)

type Finding struct {
	File     string   `json:"file"`
	Line     int      `json:"line"`
	Column   int      `json:"column"`
	Severity Severity `json:"severity"`
	// At is the job, group or task, such as "train/workers/resnet"; "" for the file.
	At string `json:"at"`
	// Field is a path such as "progress.metric"; "" for the whole.
	Field   string `json:"field"`
	Problem string `json:"problem"`
}

// String is in the format of compilers.
func (f Finding) String() string {
	parts := []string{fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column), string(f.Severity)}
	for _, part := range []string{f.At, f.Field, f.Problem} {
		if part != "" {
			parts = append(parts, oneLine(part))
		}
	}
	return strings.Join(parts, ": ")
}

// Plan is how Ebbtide handles a valid task.
type Plan struct {
	At string `json:"at"` // such as "train/workers/resnet"
	// Actions are sentences.
	Actions []string `json:"actions"`

	Task     string          `json:"-"`
	Progress progress.Config `json:"-"`
	// Unknown says why Progress is not known, "" if it is.
	Unknown string `json:"-"`
}

type Report struct {
	File     string    `json:"file"`
	Findings []Finding `json:"findings"`
	// Tasks are those under Ebbtide, none after errors.
	Tasks []Plan `json:"tasks"`
}

func (r Report) Count(s Severity) (n int) {
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

func Jobspec(name string, body []byte, o Options) Report {
	r := Report{File: name, Findings: []Finding{}, Tasks: []Plan{}}
	job, findings := parse(name, body, o)
	if job == nil {
		r.Findings = findings
		return r
	}
	job.Canonicalize() // add the servers' defaults
	c := newChecker(name, job, positionsOf(body))
	c.check()
	for _, f := range append(findings, c.findings...) {
		if !slices.Contains(r.Findings, f) { // repeated for each task that inherits a key
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

type Counts struct {
	Files    int `json:"files"`
	Errors   int `json:"errors"`
	Warnings int `json:"warnings"`
}

func Count(reports []Report) (n Counts) {
	for _, r := range reports {
		n.Files++
		n.Errors += r.Count(Error)
		n.Warnings += r.Count(Warning)
	}
	return n
}

// Write prints a line per finding, then the plans of valid tasks.
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
			for _, does := range p.Actions {
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
