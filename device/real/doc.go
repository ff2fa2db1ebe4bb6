// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package real holds the tests of GPU sharing that run on a real NVIDIA card (make test-gpu) and
// on the fake one (go test): the same program, the same checks. There is no Nomad and no
// container; the gate is in the test's process.
package real
