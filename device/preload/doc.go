// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package preload tests libebbtide-cuda.so, a C library (in src) that is loaded before a program's
// own libraries and hooks the CUDA driver: it asks the gate on the host before the program allocates,
// and holds back work while the gate pauses the program. The tests build it and run it with
// device/fake. docs/gpu-internals.md lists what it counts.
//
// With sanitizers and valgrind:
//
//	EBBTIDE_CFLAGS="-O1 -g -fsanitize=address,undefined" EBBTIDE_PRELOAD_FIRST=$(gcc -print-file-name=libasan.so) \
//	  ASAN_OPTIONS=detect_leaks=0 go test ./device/preload -run 'Resolve|Threads|Gate|Pause|Capture|Fork|Limit|Shrink|Newer|Pinned'
//	EBBTIDE_WRAPPER="valgrind -q --error-exitcode=99" go test ./device/preload -run 'Resolve/dlsym|Threads'
//	go test -run '^$' -fuzz FuzzGate ./device/gate
package preload
