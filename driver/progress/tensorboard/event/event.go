// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package event

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Version is the file_version of a file's first event.
const Version = "brain.Event:2"

// ErrMalformed means that a record with a valid checksum is no Event.
var ErrMalformed = errors.New("the record is no TensorBoard event")

// Scalar is a number with a tag.
type Scalar struct {
	Tag   string
	Step  int64
	Wall  float64 // seconds since 1970
	Value float64 // may be NaN or ±Inf
}

// Event is the content of a record that is used here.
type Event struct {
	Wall    float64
	Step    int64
	Version string // of a file's first event, else ""
	Scalars []Scalar
	Other   int // values that are no scalars: images, histograms, texts
}

// Types of tensors that can be scalars.
const (
	typeFloat    = 1
	typeDouble   = 2
	typeInt32    = 3
	typeInt64    = 9
	typeBFloat16 = 14
	typeHalf     = 19
)

// Field numbers from the .proto files.
const (
	eventWall    = 1
	eventStep    = 2
	eventVersion = 3
	eventSummary = 5

	summaryValue = 1

	valueTag      = 1
	valueSimple   = 2
	valueOldHisto = 3
	valueImage    = 4
	valueHisto    = 5
	valueAudio    = 6
	valueTensor   = 8
	valueMetadata = 9

	metadataPlugin = 1
	metadataClass  = 4
	pluginName     = 1
	classScalar    = 1

	tensorType    = 1
	tensorShape   = 2
	tensorContent = 4
	tensorFloat   = 5
	tensorDouble  = 6
	tensorInt     = 7
	tensorInt64   = 10
	tensorHalf    = 13

	shapeDim     = 2
	shapeUnknown = 3
	dimSize      = 1
)

// FileName returns a file's name as by TensorBoard's writers; it contains "tfevents" and sorts by
// time.
func FileName(created time.Time, host string, pid int) string {
	return fmt.Sprintf("events.out.tfevents.%010d.%s.%d.0", created.Unix(), host, pid)
}

// EncodeVersion encodes a file's first event.
func EncodeVersion(wall float64) []byte {
	b := appendDouble(nil, eventWall, wall)
	b = protowire.AppendTag(b, eventVersion, protowire.BytesType)
	return protowire.AppendString(b, Version)
}

// EncodeSimple encodes an event with a simple_value of 32 bits.
func EncodeSimple(s Scalar) []byte {
	return encode(s, protowire.AppendFixed32(
		protowire.AppendTag(nil, valueSimple, protowire.Fixed32Type), math.Float32bits(float32(s.Value))))
}

// EncodeTensor encodes an event with a tensor of one 32-bit number, as TensorFlow 2
// does.
func EncodeTensor(s Scalar) []byte {
	t := []byte{tensorType << 3, typeFloat, tensorShape<<3 | 2, 0} // a shape without dimensions
	t = protowire.AppendTag(t, tensorContent, protowire.BytesType)
	t = protowire.AppendBytes(t, binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(s.Value))))
	return encodeTensor(s, t)
}

func encodeTensor(s Scalar, tensor []byte) []byte {
	wrap := func(b []byte, number protowire.Number, data []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), data)
	}
	v := wrap(nil, valueTensor, tensor)
	return encode(s, wrap(v, valueMetadata, wrap(nil, metadataPlugin, wrap(nil, pluginName, []byte("scalars")))))
}

// encode makes an event from a Summary.Value without its tag.
func encode(s Scalar, value []byte) []byte {
	v := protowire.AppendTag(nil, valueTag, protowire.BytesType)
	v = protowire.AppendString(v, s.Tag)
	v = append(v, value...)
	summary := protowire.AppendTag(nil, summaryValue, protowire.BytesType)
	summary = protowire.AppendBytes(summary, v)

	b := appendDouble(nil, eventWall, s.Wall)
	b = protowire.AppendTag(b, eventStep, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(s.Step))
	b = protowire.AppendTag(b, eventSummary, protowire.BytesType)
	return protowire.AppendBytes(b, summary)
}

func appendDouble(b []byte, number protowire.Number, v float64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, number, protowire.Fixed64Type), math.Float64bits(v))
}

// Decode decodes an event. ErrMalformed means that it is no protocol buffer message;
// values that are no readable scalars are counted in Other.
func Decode(data []byte) (Event, error) {
	var e Event
	err := fields(data, func(f field) error {
		switch {
		case f.is(eventWall, protowire.Fixed64Type):
			e.Wall = math.Float64frombits(f.number)
		case f.is(eventStep, protowire.VarintType):
			e.Step = int64(f.number)
		case f.is(eventVersion, protowire.BytesType):
			e.Version = string(f.bytes)
		case f.is(eventSummary, protowire.BytesType):
			return fields(f.bytes, func(f field) error {
				if !f.is(summaryValue, protowire.BytesType) {
					return nil
				}
				s, ok, err := decodeValue(f.bytes)
				if ok {
					e.Scalars = append(e.Scalars, s)
				} else if err == nil {
					e.Other++
				}
				return err
			})
		}
		return nil
	})
	if err != nil {
		return Event{}, err
	}
	for i := range e.Scalars { // fields may come in any order
		e.Scalars[i].Step, e.Scalars[i].Wall = e.Step, e.Wall
	}
	return e, nil
}

func decodeValue(b []byte) (s Scalar, ok bool, err error) {
	foreign := false // of another plugin, whose tensors are no scalars
	err = fields(b, func(f field) error {
		switch {
		case f.is(valueTag, protowire.BytesType):
			s.Tag = string(f.bytes)
		case f.is(valueSimple, protowire.Fixed32Type):
			s.Value, ok = float64(math.Float32frombits(uint32(f.number))), true
		case f.is(valueTensor, protowire.BytesType):
			s.Value, ok, err = decodeTensor(f.bytes)
			return err
		case f.is(valueMetadata, protowire.BytesType):
			plugin, class, err := decodeMetadata(f.bytes)
			foreign = plugin != "" && plugin != "scalars" && class != classScalar
			return err
		case f.of == valueOldHisto, f.of == valueImage, f.of == valueHisto, f.of == valueAudio:
			ok = false // the last one of these and a number counts
		}
		return nil
	})
	return s, ok && !foreign && s.Tag != "", err
}

func decodeMetadata(b []byte) (plugin string, class uint64, err error) {
	err = fields(b, func(f field) error {
		switch {
		case f.is(metadataPlugin, protowire.BytesType):
			return fields(f.bytes, func(f field) error {
				if f.is(pluginName, protowire.BytesType) {
					plugin = string(f.bytes)
				}
				return nil
			})
		case f.is(metadataClass, protowire.VarintType):
			class = f.number
		}
		return nil
	})
	return plugin, class, err
}

func decodeTensor(b []byte) (v float64, ok bool, err error) {
	var kind uint64
	var content []byte
	var count [tensorHalf + 1]int // of the elements in each list
	var first [tensorHalf + 1]uint64
	single := true // according to the shape
	err = fields(b, func(f field) error {
		switch {
		case f.is(tensorType, protowire.VarintType):
			kind = f.number
		case f.is(tensorContent, protowire.BytesType):
			content = f.bytes
		case f.is(tensorShape, protowire.BytesType):
			return fields(f.bytes, func(f field) error {
				if f.is(shapeUnknown, protowire.VarintType) {
					single = single && f.number == 0
				}
				if !f.is(shapeDim, protowire.BytesType) {
					return nil
				}
				size := uint64(0)
				err := fields(f.bytes, func(f field) error {
					if f.is(dimSize, protowire.VarintType) {
						size = f.number
					}
					return nil
				})
				single = single && size == 1
				return err
			})
		case f.of == tensorFloat, f.of == tensorDouble, f.of == tensorInt, f.of == tensorInt64, f.of == tensorHalf:
			return f.each(func(n uint64) {
				if count[f.of] == 0 {
					first[f.of] = n
				}
				count[f.of]++
			})
		}
		return nil
	})
	if err != nil || !single {
		return 0, false, err
	}
	one := func(list, width int) (uint64, bool) {
		switch {
		case count[list] > 0:
			return first[list], count[list] == 1
		case len(content) == 0:
			return 0, true // TensorFlow reads a tensor without elements as zeros
		case len(content) != width:
			return 0, false
		}
		var whole [8]byte
		copy(whole[:], content)
		return binary.LittleEndian.Uint64(whole[:]), true
	}
	var n uint64
	switch kind {
	case typeFloat:
		n, ok = one(tensorFloat, 4)
		v = float64(math.Float32frombits(uint32(n)))
	case typeDouble:
		n, ok = one(tensorDouble, 8)
		v = math.Float64frombits(n)
	case typeHalf:
		n, ok = one(tensorHalf, 2)
		v = half(uint16(n))
	case typeBFloat16:
		n, ok = one(tensorHalf, 2)
		v = float64(math.Float32frombits(uint32(n) << 16)) // the upper half of a float32
	case typeInt32:
		n, ok = one(tensorInt, 4)
		v = float64(int32(n))
	case typeInt64:
		n, ok = one(tensorInt64, 8)
		v = float64(int64(n))
	}
	return v, ok, nil
}

type field struct {
	of     protowire.Number
	kind   protowire.Type
	number uint64
	bytes  []byte
}

func (f field) is(of protowire.Number, kind protowire.Type) bool { return f.of == of && f.kind == kind }

// each yields the elements of a repeated number, packed or not.
func (f field) each(do func(uint64)) error {
	if f.kind != protowire.BytesType {
		do(f.number)
		return nil
	}
	for b := f.bytes; len(b) > 0; {
		var v uint64
		var n int
		switch f.of {
		case tensorFloat:
			var w uint32
			w, n = protowire.ConsumeFixed32(b)
			v = uint64(w)
		case tensorDouble:
			v, n = protowire.ConsumeFixed64(b)
		default:
			v, n = protowire.ConsumeVarint(b)
		}
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrMalformed, protowire.ParseError(n))
		}
		do(v)
		b = b[n:]
	}
	return nil
}

// fields yields the fields of a message in order; groups are skipped.
func fields(b []byte, do func(field) error) error {
	for len(b) > 0 {
		of, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrMalformed, protowire.ParseError(n))
		}
		b = b[n:]
		f := field{of: of, kind: kind}
		switch kind {
		case protowire.VarintType:
			f.number, n = protowire.ConsumeVarint(b)
		case protowire.Fixed64Type:
			f.number, n = protowire.ConsumeFixed64(b)
		case protowire.Fixed32Type:
			var w uint32
			w, n = protowire.ConsumeFixed32(b)
			f.number = uint64(w)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(of, kind, b)
		}
		if n < 0 {
			return fmt.Errorf("%w: %w", ErrMalformed, protowire.ParseError(n))
		}
		b = b[n:]
		if err := do(f); err != nil {
			return err
		}
	}
	return nil
}

func half(b uint16) float64 {
	sign, exponent, fraction := 1.0, int(b>>10&0x1f), float64(b&0x3ff)
	if b>>15 != 0 {
		sign = -1
	}
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -24)
	case 0x1f:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}
