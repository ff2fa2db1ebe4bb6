// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"strings"
)

// notes returns the changelog section of a version ("## 1.2.3 - 2026-12-01", or with brackets). A
// pre-release such as 1.2.3-rc.1 without its own section uses Unreleased.
func notes(changes, version string) (string, error) {
	sections := make(map[string]string)
	var name string
	for line := range strings.Lines(changes) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			name = strings.Trim(strings.Fields(heading + " -")[0], "[]")
			continue
		}
		if name != "" {
			sections[name] += line
		}
	}
	text, ok := sections[version]
	if !ok && strings.Contains(version, "-") {
		text, ok = sections["Unreleased"]
	}
	text = strings.TrimSpace(text)
	if !ok || text == "" {
		return "", fmt.Errorf("CHANGELOG.md: must have a section %q with the changes of this version", "## "+version)
	}
	return fmt.Sprintf("# Ebbtide %s\n\n%s\n", version, text), nil
}
