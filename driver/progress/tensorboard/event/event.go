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

// Version is the file_version that the first event of a file has.
const Version = "brain.Event:2"

// ErrMalformed means that a record is not an Event, though its checksum is right.
var ErrMalformed = errors.New("the record is no TensorBoard event")

// Scalar is one number under one tag.
type Scalar struct {
	Tag   string
	Step  int64
	Wall  float64 // seconds since 1970
	Value float64 // may be NaN or ±Inf
}

// Event is what a record holds, as far as we look.
type Event struct {
	Wall    float64
	Step    int64
	Version string // of the first event of a file; empty in others
	Scalars []Scalar
	Other   int // values that are no scalars: pictures, histograms, texts
}

// DataType is the type of a tensor's elements.
type DataType int32

// The types that a scalar may have here. A tensor of another type is none.
const (
	Float    DataType = 1
	Double   DataType = 2
	Int32    DataType = 3
	Int64    DataType = 9
	BFloat16 DataType = 14
	Half     DataType = 19
)

// Numbers of the fields, from the .proto files.
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

// FileName is the name that TensorBoard's own writers would give a file: it must
// hold "tfevents" to be found, and sorts by time.
func FileName(created time.Time, host string, pid int) string {
	return fmt.Sprintf("events.out.tfevents.%010d.%s.%d.0", created.Unix(), host, pid)
}

// EncodeVersion encodes the event that a file begins with.
func EncodeVersion(wall float64) []byte {
	b := appendDouble(nil, eventWall, wall)
	b = protowire.AppendTag(b, eventVersion, protowire.BytesType)
	return protowire.AppendString(b, Version)
}

// EncodeSimple encodes an event with a simple_value, which has 32 bits.
func EncodeSimple(s Scalar) []byte {
	return encode(s, protowire.AppendFixed32(
		protowire.AppendTag(nil, valueSimple, protowire.Fixed32Type), math.Float32bits(float32(s.Value))))
}

// EncodeTensor encodes an event with a tensor of one number, as TensorFlow 2 does: in
// the field of its type, or as bytes if content is true. A type that is not one of
// the constants is written as Float.
func EncodeTensor(s Scalar, as DataType, content bool) []byte {
	var t []byte
	var raw []byte
	packed := func(number protowire.Number, value []byte) {
		t = protowire.AppendTag(t, number, protowire.BytesType)
		t = protowire.AppendBytes(t, value)
	}
	kind := func() {
		t = protowire.AppendTag(t, tensorType, protowire.VarintType)
		t = protowire.AppendVarint(t, uint64(as))
		t = protowire.AppendTag(t, tensorShape, protowire.BytesType)
		t = protowire.AppendBytes(t, nil)
	}
	switch as {
	case Double:
		kind()
		raw = binary.LittleEndian.AppendUint64(nil, math.Float64bits(s.Value))
		if !content {
			packed(tensorDouble, raw)
		}
	case Half, BFloat16:
		kind()
		bits := toHalf(s.Value)
		if as == BFloat16 {
			bits = toBfloat16(s.Value)
		}
		raw = binary.LittleEndian.AppendUint16(nil, bits)
		if !content {
			packed(tensorHalf, protowire.AppendVarint(nil, uint64(bits)))
		}
	case Int32:
		kind()
		raw = binary.LittleEndian.AppendUint32(nil, uint32(int32(s.Value)))
		if !content {
			packed(tensorInt, protowire.AppendVarint(nil, uint64(int64(s.Value))))
		}
	case Int64:
		kind()
		raw = binary.LittleEndian.AppendUint64(nil, uint64(int64(s.Value)))
		if !content {
			packed(tensorInt64, protowire.AppendVarint(nil, uint64(int64(s.Value))))
		}
	default:
		as = Float
		kind()
		raw = binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(s.Value)))
		if !content {
			packed(tensorFloat, raw)
		}
	}
	if content {
		packed(tensorContent, raw)
	}

	plugin := protowire.AppendTag(nil, pluginName, protowire.BytesType)
	plugin = protowire.AppendString(plugin, "scalars")
	metadata := protowire.AppendTag(nil, metadataPlugin, protowire.BytesType)
	metadata = protowire.AppendBytes(metadata, plugin)

	v := protowire.AppendTag(nil, valueTensor, protowire.BytesType)
	v = protowire.AppendBytes(v, t)
	v = protowire.AppendTag(v, valueMetadata, protowire.BytesType)
	v = protowire.AppendBytes(v, metadata)
	return encode(s, v)
}

// encode makes an event of a Summary.Value that lacks its tag.
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

// Decode reads an event. It fails with ErrMalformed on what is no message of protocol
// buffers; a value that is no scalar, or one that cannot be read, is counted in Other.
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
	for i := range e.Scalars { // in whatever order the fields came
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
			ok = false // one of these or a number; the last one counts
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

// decodeTensor returns the number of a tensor that has just one.
func decodeTensor(b []byte) (v float64, ok bool, err error) {
	var kind DataType
	var content []byte
	size := uint64(1)
	known := true // the shape
	type list struct {
		count int
		first uint64
	}
	lists := map[protowire.Number]*list{tensorFloat: {}, tensorDouble: {}, tensorInt: {}, tensorInt64: {}, tensorHalf: {}}

	err = fields(b, func(f field) error {
		switch {
		case f.is(tensorType, protowire.VarintType):
			kind = DataType(f.number)
		case f.is(tensorContent, protowire.BytesType):
			content = f.bytes
		case f.is(tensorShape, protowire.BytesType):
			return fields(f.bytes, func(f field) error {
				switch {
				case f.is(shapeUnknown, protowire.VarintType):
					known = known && f.number == 0
				case f.is(shapeDim, protowire.BytesType):
					n := uint64(0)
					err := fields(f.bytes, func(f field) error {
						if f.is(dimSize, protowire.VarintType) {
							n = f.number
						}
						return nil
					})
					if n != 1 {
						size = 0
					}
					return err
				}
				return nil
			})
		default:
			l := lists[f.of]
			if l == nil {
				return nil
			}
			return f.each(f.of, func(n uint64) {
				if l.count == 0 {
					l.first = n
				}
				l.count++
			})
		}
		return nil
	})
	if err != nil || !known || size != 1 {
		return 0, false, err
	}

	one := func(number protowire.Number, bytes int) (uint64, bool) {
		if l := lists[number]; l.count > 0 {
			return l.first, l.count == 1
		}
		switch {
		case len(content) == 0:
			return 0, true // TensorFlow reads a tensor without elements as zeros
		case len(content) != bytes:
			return 0, false
		case bytes == 2:
			return uint64(binary.LittleEndian.Uint16(content)), true
		case bytes == 4:
			return uint64(binary.LittleEndian.Uint32(content)), true
		}
		return binary.LittleEndian.Uint64(content), true
	}
	var n uint64
	switch kind {
	case Float:
		n, ok = one(tensorFloat, 4)
		v = float64(math.Float32frombits(uint32(n)))
	case Double:
		n, ok = one(tensorDouble, 8)
		v = math.Float64frombits(n)
	case Half:
		n, ok = one(tensorHalf, 2)
		v = half(uint16(n))
	case BFloat16:
		n, ok = one(tensorHalf, 2)
		v = bfloat16(uint16(n))
	case Int32:
		n, ok = one(tensorInt, 4)
		v = float64(int32(n))
	case Int64:
		n, ok = one(tensorInt64, 8)
		v = float64(int64(n))
	}
	return v, ok, nil
}

// field is one field of a message, with its value in number or bytes.
type field struct {
	of     protowire.Number
	kind   protowire.Type
	number uint64
	bytes  []byte
}

func (f field) is(of protowire.Number, kind protowire.Type) bool { return f.of == of && f.kind == kind }

// each gives the elements of a repeated number, packed or not.
func (f field) each(of protowire.Number, do func(uint64)) error {
	if f.kind != protowire.BytesType {
		do(f.number)
		return nil
	}
	for b := f.bytes; len(b) > 0; {
		var v uint64
		var n int
		switch of {
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

// fields gives the fields of a message in their order. Groups, which these messages
// do not have, are passed over.
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
