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
	// HeaderSize is how many bytes of a record precede the data: its length and
	// the length's checksum.
	HeaderSize = 12
	// FooterSize is how many follow the data: its checksum.
	FooterSize = 4
	// MaxRecord is how many bytes of data a record may have for us. Scalars need a
	// few dozen; graphs and pictures, which are passed over, some millions.
	MaxRecord = 16 << 20

	maskDelta = 0xa282ead8
)

var (
	// ErrTorn means that a record ends before its length says: of a file that is
	// being written, the rest is to come.
	ErrTorn = errors.New("the record is not complete")
	// ErrChecksum means that a record is not what was written. Where the next one
	// begins is then not known either.
	ErrChecksum = errors.New("the record's checksum is wrong")
	// ErrTooLong means that a record says, with a right checksum, that it has more
	// than MaxRecord bytes.
	ErrTooLong = errors.New("the record is too long")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the masked CRC-32C of data, as records hold it.
func Checksum(data []byte) uint32 { return mask(crc32.Checksum(data, castagnoli)) }

// NewChecksum is for data that comes in parts: Masked of it is their Checksum.
func NewChecksum() hash.Hash32 { return crc32.New(castagnoli) }

// Masked is the checksum of what was written to a hash of NewChecksum.
func Masked(h hash.Hash32) uint32 { return mask(h.Sum32()) }

func mask(crc uint32) uint32 { return (crc>>15 | crc<<17) + maskDelta }

// AppendRecord appends data to dst as a record.
func AppendRecord(dst, data []byte) []byte {
	from := len(dst)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(data)))
	dst = binary.LittleEndian.AppendUint32(dst, Checksum(dst[from:]))
	dst = append(dst, data...)
	return binary.LittleEndian.AppendUint32(dst, Checksum(data))
}

// ReadHeader returns how many bytes of data the record at the beginning of b has:
// ErrTorn, ErrChecksum or ErrTooLong otherwise. It needs HeaderSize bytes.
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

// ReadRecord returns the data of the record at the beginning of b, and the length of
// the whole record: where the next one begins. The data is a part of b. The error is
// ErrTorn, ErrChecksum or ErrTooLong, perhaps wrapped.
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
