// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package preload is about libebbtide-cuda.so, a C library (in src) that is loaded before a
// program's own and stands between it and the CUDA driver: memory is allocated as far as the
// gate on the host grants it, and work is held back while the gate says so. The tests build it
// and run it against the fakes of device/fake. docs/gpu-internals.md tells what it hooks.
package preload
