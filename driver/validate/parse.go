// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package validate

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/jobspec2"
)

// parse parses a jobspec as `nomad job run` does. Errors are findings, and fields that only a newer
// Nomad may know are notes.
func parse(name string, body []byte, o Options) (*api.Job, []Finding) {
	if job, findings, ok := parseAPI(name, body); ok {
		return job, findings
	}
	var unknown, errs []Finding
	rest := slices.Clone(body)
	for {
		job, err := jobspec2.ParseWithConfig(&jobspec2.ParseConfig{
			Path: name, BaseDir: o.BaseDir, Body: rest, AllowFS: true,
			ArgVars: o.Vars, VarFiles: o.VarFiles, Envs: o.Env, Strict: true,
		})
		before := len(unknown)
		if errs = nil; err != nil {
			for _, f := range parserFindings(name, err) {
				switch {
				case slices.Contains(unknown, f): // repeated for each block that is made from it
				case isUnknown(f) && f.File == name && blank(rest, f.Line, f.Column):
					unknown = append(unknown, f)
				default:
					errs = append(errs, f)
				}
			}
		}
		if len(unknown) == before {
			return job, append(judge(unknown, body, o), errs...)
		}
	}
}

// parseAPI parses a job in the API's JSON; ok is false for anything else.
func parseAPI(name string, body []byte) (job *api.Job, findings []Finding, ok bool) {
	if !isJSON(body) {
		return nil, nil, false
	}
	bad := func(err error) []Finding {
		p := placeOfError(body, err)
		return []Finding{{File: name, Line: p.line, Column: p.column, Severity: Error, Problem: fmt.Sprintf("is not valid JSON: %v", err)}}
	}
	if err := json.Unmarshal(body, new(any)); err != nil {
		return nil, bad(err), true
	}
	root := placesInJSON(body)
	switch {
	case root.parts["Job"] != nil:
		var of struct{ Job *api.Job }
		if err := json.Unmarshal(body, &of); err != nil {
			return nil, bad(err), true
		}
		job = of.Job
	case root.parts["TaskGroups"] != nil:
		if err := json.Unmarshal(body, &job); err != nil {
			return nil, bad(err), true
		}
	default:
		return nil, nil, false
	}
	if job == nil || root.hasNullElement() {
		return nil, bad(errors.New("the job or a list element is null")), true
	}
	return job, nil, true
}

// hclPosition matches HCL's positions.
var hclPosition = regexp.MustCompile(`^(?:<nil>|(.*?):(\d+),(\d+)(?:-[\d,]+)?): (.*)$`)

// parserFindings converts errors of Nomad's parser, some of which are joined as text.
func parserFindings(name string, err error) []Finding {
	var findings []Finding
	var diags hcl.Diagnostics
	lines := strings.Split(err.Error(), "\n")
	if errors.As(err, &diags) {
		lines = nil
		for _, d := range diags {
			lines = append(lines, oneLine(d.Error()))
		}
	}
	for _, line := range lines {
		m := hclPosition.FindStringSubmatch(line)
		switch {
		case m != nil:
			f := Finding{File: name, Line: 1, Column: 1, Severity: Error, Problem: m[4]}
			if m[1] != "" {
				f.File = m[1]
				f.Line, _ = strconv.Atoi(m[2])
				f.Column, _ = strconv.Atoi(m[3])
			}
			findings = append(findings, f)
		case len(findings) > 0 && line != "":
			findings[len(findings)-1].Problem += " " + strings.TrimSpace(line)
		case line != "":
			findings = append(findings, Finding{File: name, Line: 1, Column: 1, Severity: Error, Problem: line})
		}
	}
	return findings
}

// oneLine joins lines: a finding has one.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
