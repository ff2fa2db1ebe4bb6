// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package version

import (
	"regexp"
	"testing"

	"github.com/shoenig/test/must"
)

func TestString(t *testing.T) {
	defer func(v, c string) { Version, Commit = v, c }(Version, Commit)

	// Nomad's plugin loader refuses a version that is not a semantic one.
	must.RegexMatch(t, regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`), Version)

	Version, Commit = "1.2.3", ""
	must.Eq(t, "1.2.3", String())
	Commit = "1e63d37"
	must.Eq(t, "1.2.3 (1e63d37)", String())
}
