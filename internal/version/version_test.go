// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package version

import (
	"errors"
	"os/exec"
	"regexp"
	"runtime/debug"
	"testing"

	"github.com/shoenig/test/must"
)

var semantic = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

// What `make build` sets must be such a version, too, whatever has been tagged.
func TestMake(t *testing.T) {
	out, err := exec.Command("make", "-n", "-C", "../..", "build").Output()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("there is no make here")
	}
	must.NoError(t, err)
	must.StrContains(t, string(out), "version.Commit=")
	for _, m := range regexp.MustCompile(`version\.Version=(\S*?)['"]?\s`).FindAllStringSubmatch(string(out), -1) {
		must.RegexMatch(t, semantic, m[1])
	}
}

func TestNomad(t *testing.T) {
	must.Eq(t, "", Nomad(nil))
	must.Eq(t, "", Nomad(&debug.BuildInfo{Deps: []*debug.Module{{Path: "github.com/hashicorp/nomad/api", Version: "v0.1.0"}}}))
	must.Eq(t, "1.11.3", Nomad(&debug.BuildInfo{Deps: []*debug.Module{{Path: "github.com/hashicorp/nomad", Version: "v1.11.3"}}}))
}

func TestString(t *testing.T) {
	defer func(v, c string) { Version, Commit = v, c }(Version, Commit)

	// Nomad's plugin loader refuses a version that is not a semantic one.
	must.RegexMatch(t, semantic, Version)

	Version, Commit = "1.2.3", ""
	must.Eq(t, "1.2.3", String())
	Commit = "1e63d37"
	must.Eq(t, "1.2.3 (1e63d37)", String())
}
