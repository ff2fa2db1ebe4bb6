// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package preload tests libebbtide-cuda.so, a C library (in src) that is loaded before a program's
// own libraries and hooks the CUDA driver: a program allocates what the gate on the host grants, and
// submits no work while the gate has paused it. The tests build it and run it with device/fake.
// docs/gpu-internals.md tells what it hooks.
package preload
