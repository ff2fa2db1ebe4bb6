// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package wire

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// UUID is a GPU's UUID.
type UUID [16]byte

// ParseUUID parses NVML's format, GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	plain := strings.ReplaceAll(strings.TrimPrefix(s, "GPU-"), "-", "")
	// The round trip rejects misplaced dashes.
	if b, err := hex.DecodeString(plain); err != nil || copy(u[:], b) != len(u) || u.String() != s {
		return UUID{}, fmt.Errorf("GPU UUID: must have the form GPU-01234567-89ab-cdef-0123-456789abcdef, got %q", s)
	}
	return u, nil
}

// String formats it as NVML does.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return "GPU-" + h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// Words returns the UUID as Attach carries it, in ID and Arg.
func (u UUID) Words() (id, arg uint64) {
	return binary.LittleEndian.Uint64(u[:8]), binary.LittleEndian.Uint64(u[8:])
}

// UUID returns the UUID in an Attach.
func (m Message) UUID() UUID {
	var u UUID
	binary.LittleEndian.PutUint64(u[:8], m.ID)
	binary.LittleEndian.PutUint64(u[8:], m.Arg)
	return u
}
