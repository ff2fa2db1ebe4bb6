// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"
)

// entry is an initramfs entry, a directory if Mode says so.
type entry struct {
	name    string
	mode    uint32
	content []byte
}

const (
	modeDir  = 0o040755
	modeExec = 0o100755
	modeFile = 0o100644
)

// writeCPIO writes the kernel's "newc" format
// (Documentation/driver-api/early-userspace/buffer-format.rst).
func writeCPIO(w io.Writer, entries []entry) error {
	for i, e := range append(entries, entry{name: "TRAILER!!!"}) {
		links := 1
		header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
			i+1, e.mode, 0, 0, links, 0, len(e.content), 0, 0, 0, 0, len(e.name)+1, 0)
		if _, err := io.WriteString(w, header+e.name+"\x00"+padding(len(header)+len(e.name)+1)); err != nil {
			return err
		}
		if _, err := w.Write(e.content); err != nil {
			return err
		}
		if _, err := io.WriteString(w, padding(len(e.content))); err != nil {
			return err
		}
	}
	return nil
}

func padding(n int) string { return "\x00\x00\x00"[:(4-n%4)%4] }
