// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package event

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
)

const (
	// HeaderSize is the length of a record's header, in bytes: the data's length and
	// its checksum.
	HeaderSize = 12
	// FooterSize is the length of the data's checksum.
	FooterSize = 4
	// MaxRecord bounds a record's data, in bytes. Scalars need a few dozen; graphs and
	// images, which are skipped, some millions.
	MaxRecord = 16 << 20

	maskDelta = 0xa282ead8
)

var (
	// ErrTorn means that a record is incomplete; in a file being written the rest
	// follows.
	ErrTorn = errors.New("the record is not complete")
	// ErrChecksum means that a record is corrupt; the next one cannot be found.
	ErrChecksum = errors.New("the record's checksum is wrong")
	// ErrTooLong means that a record, with a valid checksum, claims more than MaxRecord
	// bytes.
	ErrTooLong = errors.New("the record is too long")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the masked CRC-32C of data.
func Checksum(data []byte) uint32 { return mask(crc32.Checksum(data, castagnoli)) }

// NewChecksum is for data in parts: Masked of it is their Checksum.
func NewChecksum() hash.Hash32 { return crc32.New(castagnoli) }

func Masked(h hash.Hash32) uint32 { return mask(h.Sum32()) }

func mask(crc uint32) uint32 { return (crc>>15 | crc<<17) + maskDelta }

func AppendRecord(dst, data []byte) []byte {
	from := len(dst)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(data)))
	dst = binary.LittleEndian.AppendUint32(dst, Checksum(dst[from:]))
	dst = append(dst, data...)
	return binary.LittleEndian.AppendUint32(dst, Checksum(data))
}

// ReadHeader returns the size of the data of the record at the start of b, or ErrTorn,
// ErrChecksum or ErrTooLong.
func ReadHeader(b []byte) (size int, err error) {
	if len(b) < HeaderSize {
		return 0, ErrTorn
	}
	if binary.LittleEndian.Uint32(b[8:]) != Checksum(b[:8]) {
		return 0, fmt.Errorf("%w (of its length)", ErrChecksum)
	}
	n := binary.LittleEndian.Uint64(b)
	if n > MaxRecord {
		return 0, fmt.Errorf("%w: %d bytes, at most %d are read", ErrTooLong, n, MaxRecord)
	}
	return int(n), nil
}

// ReadRecord returns the data of the record at the start of b, as a part of b, and the
// length of the whole record. The error wraps ErrTorn, ErrChecksum or ErrTooLong.
func ReadRecord(b []byte) (data []byte, n int, err error) {
	size, err := ReadHeader(b)
	if err != nil {
		return nil, 0, err
	}
	n = HeaderSize + size + FooterSize
	if len(b) < n {
		return nil, 0, ErrTorn
	}
	data = b[HeaderSize : HeaderSize+size : HeaderSize+size]
	if binary.LittleEndian.Uint32(b[HeaderSize+size:]) != Checksum(data) {
		return nil, 0, ErrChecksum
	}
	return data, n, nil
}
