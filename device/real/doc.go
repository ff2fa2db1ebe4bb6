// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package real holds the tests of GPU sharing that run on a real NVIDIA card and on the fake one:
// the same programs, the same checks. With go test they build what they need, and use the fake card
// unless EBBTIDE_TEST_GPU says "real". In the bundle of make gpu-bundle everything is next to
// them (package bundle), and what they measure goes into its report (package report). There is no Nomad
// and no container; the gate is in the test's process.
package real
