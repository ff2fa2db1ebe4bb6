// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package version has the version of this build.
package version

import (
	"runtime/debug"
	"strings"
)

// Version is the version of this build, as semantic versioning writes it
// (https://semver.org). A release sets it:
//
//	go build -ldflags "-X github.com/ebbtide/ebbtide/internal/version.Version=1.2.3"
var Version = "0.1.0-dev"

// Commit is the commit that was built, set in the same way; empty if the build
// did not set it.
var Commit = ""

// Nomad returns the version of Nomad whose drivers a program contains, from its build information; ""
// if it has none.
func Nomad(info *debug.BuildInfo) string {
	if info == nil {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path == "github.com/hashicorp/nomad" {
			return strings.TrimPrefix(m.Version, "v")
		}
	}
	return ""
}

// String returns the human-readable version: "0.1.0-dev (1e63d37)", or the bare
// version if the commit is not known.
func String() string {
	if Commit == "" {
		return Version
	}
	return Version + " (" + Commit + ")"
}
