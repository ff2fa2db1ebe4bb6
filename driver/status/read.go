// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package status

// MaxStatus bounds what is read of a status file, in bytes.
const MaxStatus = maxStatus

// Decode reads a status file as it came from elsewhere, such as Nomad's file API. What is
// missing in it is unknown, not zero.
func Decode(data []byte) (Status, error) { return decode("the status", data) }

// ParseHistory reads a history file, or the end of one, as it came from elsewhere. Lines
// that cannot be read are left out.
func ParseHistory(data []byte) []Row { return parseHistory(data) }
