// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Write prints a line per finding, its remedy, and a summary line.
func Write(w io.Writer, findings []Finding) error {
	width := 0
	for _, f := range findings {
		width = max(width, len(f.Name))
	}
	var out bytes.Buffer
	for _, f := range findings {
		fmt.Fprintf(&out, "%-4s  %-*s  %s\n", f.Status, width, f.Name, f.Seen)
		if f.Do != "" {
			end := ""
			if f.Add != "" {
				end = ":"
			}
			fmt.Fprintf(&out, "      → %s%s\n", f.Do, end)
		}
		if f.Add != "" {
			for line := range strings.SplitSeq(f.Add, "\n") {
				out.WriteString(strings.TrimRight("          "+line, " ") + "\n")
			}
		}
	}
	n := count(findings)
	fmt.Fprintf(&out, "\n%d ok, %d warn, %d fail, %d skip\n", n[OK], n[Warn], n[Fail], n[Skip])
	_, err := w.Write(out.Bytes())
	return err
}

func WriteJSON(w io.Writer, findings []Finding) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Checks []Finding      `json:"checks"`
		Counts map[Status]int `json:"counts"`
	}{findings, count(findings)})
}

func count(findings []Finding) map[Status]int {
	n := map[Status]int{OK: 0, Warn: 0, Fail: 0, Skip: 0}
	for _, f := range findings {
		n[f.Status]++
	}
	return n
}
