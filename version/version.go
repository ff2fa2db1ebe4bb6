// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package version says which build of Ebbtide this is.
package version

// Version is the version of this build, as semantic versioning writes it
// (https://semver.org). A release sets it:
//
//	go build -ldflags "-X github.com/ebbtide/ebbtide/version.Version=1.2.3"
var Version = "0.1.0-dev"

// Commit is the commit that was built, set in the same way; empty when the
// build did not say.
var Commit = ""

// String returns the version for people: "0.1.0-dev (1e63d37)", or the bare
// version when the commit is not known.
func String() string {
	if Commit == "" {
		return Version
	}
	return Version + " (" + Commit + ")"
}
