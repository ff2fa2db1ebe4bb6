// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package event

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"google.golang.org/protobuf/encoding/protowire"
)

func bytesOf(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	must.NoError(t, err)
	return b
}

// The published check value of CRC-32C is e3069283 for the digits 1 to 9. Masked by
// hand: e3069283>>15 is 0001c60d, e3069283<<17 is 25060000; together 2507c60d, plus
// a282ead8 is c78ab0e5.
func TestChecksum(t *testing.T) {
	must.Eq(t, 0xc78ab0e5, Checksum([]byte("123456789")))
	must.Eq(t, 0xa282ead8, Checksum(nil)) // the CRC-32C of no data is 0

	h := NewChecksum()
	_, _ = h.Write([]byte("1234"))
	_, _ = h.Write([]byte("56789"))
	must.Eq(t, 0xc78ab0e5, Masked(h))
}

// Every file of TensorBoard's writers begins with these twelve bytes: 24 bytes of data,
// and their length's checksum.
const begin = "1800000000000000 a37f4b22"

func TestRecord_vector(t *testing.T) {
	data := EncodeVersion(1.5)
	must.Eq(t, bytesOf(t, "09 000000000000f83f 1a 0d 627261696e2e4576656e743a32"), data)
	record := AppendRecord([]byte("before"), data)
	must.Eq(t, "before", string(record[:6]))
	record = record[6:]
	must.Eq(t, bytesOf(t, begin), record[:HeaderSize])

	// The whole of it, with the data's checksum computed bit by bit.
	want := append(bytesOf(t, begin), data...)
	want = binary.LittleEndian.AppendUint32(want, slowChecksum(data))
	must.Eq(t, want, record)

	got, n, err := ReadRecord(append(record, "more"...))
	must.NoError(t, err)
	must.Eq(t, data, got)
	must.Eq(t, HeaderSize+24+FooterSize, n)

	e, err := Decode(got)
	must.NoError(t, err)
	must.Eq(t, Event{Wall: 1.5, Version: Version}, e)
}

// Checksums computed by others: the first record is from TensorBoard's tests, the other
// two from a logger with TensorFlow's writer.
func TestRecord_ofOthers(t *testing.T) {
	for _, text := range []string{
		begin + "09 0000c025dd75d541 1a0d 627261696e2e4576656e743a31 ecf3328d",
		begin + "09 0000000000087040 1a0d 627261696e2e4576656e743a32 bc98212b",
		"1900000000000000 8bf10828 09 0000000000087040 10 01 2a0c0a0a0a03 762f31 150000c03f 2cecc087",
	} {
		record := bytesOf(t, text)
		data, n, err := ReadRecord(record)
		must.NoError(t, err)
		must.Eq(t, len(record), n)
		must.Eq(t, record, AppendRecord(nil, data))
		e, err := Decode(data)
		must.NoError(t, err)
		if e.Version == "" {
			must.Eq(t, Event{Wall: 256.5, Step: 1, Scalars: []Scalar{{"v/1", 1, 256.5, 1.5}}}, e)
			must.Eq(t, data, EncodeSimple(e.Scalars[0]))
		}
	}
}

// slowChecksum is CRC-32C by definition: the polynomial 1edc6f41, reflected.
func slowChecksum(data []byte) uint32 {
	crc := ^uint32(0)
	for _, b := range data {
		crc ^= uint32(b)
		for range 8 {
			crc = crc>>1 ^ 0x82f63b78*(crc&1)
		}
	}
	crc = ^crc
	return (crc>>15 | crc<<17) + 0xa282ead8
}

func TestChecksum_definition(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for size := range 200 {
		b := make([]byte, size)
		r.Read(b)
		must.Eq(t, slowChecksum(b), Checksum(b))
	}
}

func TestReadRecord_torn(t *testing.T) {
	record := AppendRecord(nil, []byte("some data"))
	for n := range record {
		_, _, err := ReadRecord(record[:n])
		must.ErrorIs(t, err, ErrTorn)
	}
	empty := AppendRecord(nil, nil)
	data, n, err := ReadRecord(empty)
	must.NoError(t, err)
	must.SliceEmpty(t, data)
	must.Eq(t, 16, n)
}

// Every flipped bit is detected.
func TestReadRecord_corrupt(t *testing.T) {
	record := AppendRecord(nil, EncodeSimple(Scalar{Tag: "loss", Step: 7, Wall: 3, Value: 0.5}))
	for i := range record {
		for bit := range 8 {
			record[i] ^= 1 << bit
			_, _, err := ReadRecord(record)
			must.ErrorIs(t, err, ErrChecksum)
			record[i] ^= 1 << bit
		}
	}
}

func TestReadRecord_tooLong(t *testing.T) {
	for _, n := range []uint64{MaxRecord + 1, 1 << 40, math.MaxUint64} {
		b := binary.LittleEndian.AppendUint64(nil, n)
		b = binary.LittleEndian.AppendUint32(b, Checksum(b))
		_, _, err := ReadRecord(b)
		must.ErrorIs(t, err, ErrTooLong)
		must.ErrorContains(t, err, fmt.Sprint(n))
		must.ErrorContains(t, err, "16777216")
	}
	b := binary.LittleEndian.AppendUint64(nil, MaxRecord)
	b = binary.LittleEndian.AppendUint32(b, Checksum(b))
	n, err := ReadHeader(b)
	must.NoError(t, err)
	must.Eq(t, MaxRecord, n)
}

// What PyTorch's SummaryWriter.add_scalar("Loss/train", 0.25, 10) writes.
func TestEncodeSimple_vector(t *testing.T) {
	data := EncodeSimple(Scalar{Tag: "Loss/train", Step: 10, Wall: 1.5, Value: 0.25})
	must.Eq(t, bytesOf(t, "09 000000000000f83f 10 0a 2a 13 0a 11 0a 0a 4c6f73732f747261696e 15 0000803e"), data)
	e, err := Decode(data)
	must.NoError(t, err)
	must.Eq(t, Event{Wall: 1.5, Step: 10, Scalars: []Scalar{{"Loss/train", 10, 1.5, 0.25}}}, e)
}

// What TensorFlow 2's tf.summary.scalar writes: dtype, a shape without dimensions, a
// number, and the plugin's name.
func TestEncodeTensor_vector(t *testing.T) {
	const (
		head = "09 000000000000f83f 10 0a 2a 21 0a 1f 0a 04 6c6f7373 42"
		meta = "4a 0b 0a 09 0a 07 7363616c617273"
	)
	must.Eq(t, bytesOf(t, head+"0a 08 01 12 00 2a 04 0000803e"+meta),
		anyTensor(Scalar{"loss", 10, 1.5, 0.25}, typeFloat, false))
	must.Eq(t, bytesOf(t, head+"0a 08 01 12 00 22 04 0000803e"+meta), EncodeTensor(Scalar{"loss", 10, 1.5, 0.25}))
}

// anyTensor encodes a tensor of any type: in the field of its type or, with content, as
// bytes. The value must have that type.
func anyTensor(s Scalar, as int, content bool) []byte {
	long, short := math.Float64bits(s.Value), math.Float32bits(float32(s.Value))
	little := binary.LittleEndian
	varint := func(n uint64) []byte { return protowire.AppendVarint(nil, n) }
	c := map[int]struct {
		field         protowire.Number
		value, binary []byte
	}{
		typeFloat:    {tensorFloat, little.AppendUint32(nil, short), little.AppendUint32(nil, short)},
		typeDouble:   {tensorDouble, little.AppendUint64(nil, long), little.AppendUint64(nil, long)},
		typeHalf:     {tensorHalf, varint(uint64(toHalf(s.Value))), little.AppendUint16(nil, toHalf(s.Value))},
		typeBFloat16: {tensorHalf, varint(uint64(short >> 16)), little.AppendUint16(nil, uint16(short>>16))},
		typeInt32:    {tensorInt, varint(uint64(int64(s.Value))), little.AppendUint32(nil, uint32(int32(s.Value)))},
		typeInt64:    {tensorInt64, varint(uint64(int64(s.Value))), little.AppendUint64(nil, uint64(int64(s.Value)))},
	}[as]
	if content {
		c.field, c.value = tensorContent, c.binary
	}
	return encodeTensor(s, message{}.varint(tensorType, uint64(as)).bytes(tensorShape, nil).bytes(c.field, c.value))
}

func toHalf(v float64) uint16 {
	for b := range 1 << 16 {
		if h := half(uint16(b)); h == v && math.Signbit(h) == math.Signbit(v) || math.IsNaN(h) && math.IsNaN(v) {
			return uint16(b)
		}
	}
	return 0
}

func TestDecode_encodings(t *testing.T) {
	values := []float64{0, 1, -1, 0.5, -2.25, 1234, 6.5e4, math.Inf(1), math.Inf(-1), math.NaN(), math.Copysign(0, -1), 0x1p-24}
	for _, v := range values {
		for _, step := range []int64{0, 1, -1, math.MaxInt64, math.MinInt64} {
			want := Scalar{"train/loss", step, 1700000000.25, v}
			all := map[string][]byte{"simple": EncodeSimple(want)}
			for _, as := range []int{typeFloat, typeDouble, typeHalf, typeBFloat16, typeInt32, typeInt64} {
				if (as == typeInt32 || as == typeInt64) && (v != math.Trunc(v) || math.IsInf(v, 0) || math.Signbit(v) && v == 0) {
					continue
				}
				if as == typeHalf && v == 6.5e4 || as == typeBFloat16 && (v == 1234 || v == 6.5e4) {
					continue // not exactly representable
				}
				all[fmt.Sprint(as, " value")] = anyTensor(want, as, false)
				all[fmt.Sprint(as, " content")] = anyTensor(want, as, true)
			}
			for name, data := range all {
				e, err := Decode(data)
				must.NoError(t, err)
				must.Len(t, 1, e.Scalars, must.Sprint(name, v))
				got := e.Scalars[0]
				if math.IsNaN(v) {
					must.True(t, math.IsNaN(got.Value), must.Sprint(name))
					got.Value = 0
					want.Value = 0
				}
				must.Eq(t, math.Signbit(want.Value), math.Signbit(got.Value), must.Sprint(name, v))
				must.Eq(t, want, got, must.Sprint(name))
				want.Value = v
				must.Zero(t, e.Other)
			}
		}
	}
	e, err := Decode(anyTensor(Scalar{"x", 1, 2, 0.1}, typeDouble, false))
	must.NoError(t, err)
	must.Eq(t, 0.1, e.Scalars[0].Value) // all 64 bits
}

// All 16-bit numbers: each exceeds the one before by its exponent's unit.
func TestHalf(t *testing.T) {
	for b := uint16(0); b < 0x7bff; b++ {
		step := math.Ldexp(1, max(int(b>>10), 1)-25)
		must.Eq(t, half(b)+step, half(b+1))
		must.Eq(t, -half(b), half(b|0x8000))
	}
	must.Eq(t, 1, half(0x3c00))
	must.Eq(t, 65504, half(0x7bff))
	must.Eq(t, math.Inf(1), half(0x7c00))
	must.Eq(t, math.Inf(-1), half(0xfc00))
	must.True(t, math.IsNaN(half(0x7e00)) && math.IsNaN(half(0xfc01)))
}

type message []byte

func (m message) bytes(n protowire.Number, b []byte) message {
	return protowire.AppendBytes(protowire.AppendTag(m, n, protowire.BytesType), b)
}
func (m message) varint(n protowire.Number, v uint64) message {
	return protowire.AppendVarint(protowire.AppendTag(m, n, protowire.VarintType), v)
}
func (m message) fixed32(n protowire.Number, v uint32) message {
	return protowire.AppendFixed32(protowire.AppendTag(m, n, protowire.Fixed32Type), v)
}
func (m message) fixed64(n protowire.Number, v uint64) message {
	return protowire.AppendFixed64(protowire.AppendTag(m, n, protowire.Fixed64Type), v)
}
func (m message) group(n protowire.Number) message {
	m = protowire.AppendTag(m, n, protowire.StartGroupType)
	m = m.varint(3, 5)
	return protowire.AppendTag(m, n, protowire.EndGroupType)
}

func event(values ...message) message {
	var s message
	for _, v := range values {
		s = s.bytes(summaryValue, v)
	}
	return message{}.bytes(eventSummary, s)
}

func tagged(tag string) message { return message{}.bytes(valueTag, []byte(tag)) }

func TestDecode_values(t *testing.T) {
	half := math.Float32bits(0.5)
	float := message{}.varint(tensorType, uint64(typeFloat))
	plugin := func(name string) message {
		return message{}.bytes(metadataPlugin, message{}.bytes(pluginName, []byte(name)))
	}
	dim := func(n uint64) []byte { return message{}.bytes(shapeDim, message{}.varint(dimSize, n)) }
	unpacked := func(n int) message {
		m := float
		for range n {
			m = m.fixed32(tensorFloat, half)
		}
		return m
	}
	tensor := func(m message) message { return tagged("loss").bytes(valueTensor, m) }
	is := func(v float64) []float64 { return []float64{v} }
	cases := []struct {
		name  string
		data  message
		want  []float64
		other int
	}{
		{"nothing", nil, nil, 0},
		{"several", event(tagged("a").fixed32(valueSimple, half), tagged("b").fixed32(valueSimple, 0)), []float64{0.5, 0}, 0},
		{"two summaries", append(event(tagged("a").fixed32(valueSimple, half)), event(tagged("b").fixed32(valueSimple, 0))...), []float64{0.5, 0}, 0},
		{"no tag", event(message{}.fixed32(valueSimple, half)), nil, 1},
		{"no value", event(tagged("a")), nil, 1},
		{"a picture", event(tagged("a").bytes(valueImage, []byte("png"))), nil, 1},
		{"a histogram", event(tagged("a").bytes(valueHisto, nil)), nil, 1},
		{"a number, then a histogram", event(tagged("a").fixed32(valueSimple, half).bytes(valueHisto, nil)), nil, 1},
		{"a histogram, then a number", event(tagged("a").bytes(valueHisto, nil).fixed32(valueSimple, half)), is(0.5), 0},
		{"the last number", event(tagged("a").fixed32(valueSimple, 0).fixed32(valueSimple, half)), is(0.5), 0},
		{"wrong wire type", event(tagged("a").varint(valueSimple, 1)), nil, 1},
		{"other fields of a summary", message{}.bytes(eventSummary, message{}.varint(2, 1)), nil, 0},

		{"unpacked", event(tensor(unpacked(1))), is(0.5), 0},
		{"two numbers", event(tensor(unpacked(2))), nil, 1},
		{"no number is zero", event(tensor(float)), is(0), 0},
		{"no type", event(tensor(message{}.fixed32(tensorFloat, half))), nil, 1},
		{"another type", event(tensor(message{}.varint(tensorType, 7).bytes(8, []byte("text")))), nil, 1},
		{"content of another size", event(tensor(float.bytes(tensorContent, []byte("12345678")))), nil, 1},
		{"shape of 1", event(tensor(unpacked(1).bytes(tensorShape, dim(1)))), is(0.5), 0},
		{"shape of 1 × 1", event(tensor(unpacked(1).bytes(tensorShape, append(dim(1), dim(1)...)))), is(0.5), 0},
		{"shape of 2", event(tensor(unpacked(1).bytes(tensorShape, dim(2)))), nil, 1},
		{"shape of 0", event(tensor(float.bytes(tensorShape, dim(0)))), nil, 1},
		{"a dimension of unknown size", event(tensor(unpacked(1).bytes(tensorShape, dim(math.MaxUint64)))), nil, 1},
		{"unknown shape", event(tensor(unpacked(1).bytes(tensorShape, message{}.varint(shapeUnknown, 1)))), nil, 1},
		{"negative int", event(tensor(message{}.varint(tensorType, uint64(typeInt32)).bytes(tensorInt, protowire.AppendVarint(nil, math.MaxUint64)))), is(-1), 0},

		{"of the scalars", event(tensor(unpacked(1)).bytes(valueMetadata, plugin("scalars"))), is(0.5), 0},
		{"of another plugin", event(tensor(unpacked(1)).bytes(valueMetadata, plugin("hparams"))), nil, 1},
		{"of another plugin, but a scalar", event(tensor(unpacked(1)).bytes(valueMetadata, plugin("mine").varint(metadataClass, classScalar))), is(0.5), 0},
		{"with other metadata", event(tensor(unpacked(1)).bytes(valueMetadata, message{}.bytes(2, []byte("Loss")).bytes(metadataPlugin, message{}.bytes(2, []byte("x"))))), is(0.5), 0},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			unknown := message{}.varint(100, 1).bytes(101, []byte("x")).fixed32(102, 1).fixed64(103, 1).group(104)
			for _, data := range []message{tc.data, append(unknown, tc.data...)} {
				data = data.fixed64(eventWall, math.Float64bits(9)).varint(eventStep, 3)
				e, err := Decode(data)
				must.NoError(t, err)
				var got []float64
				for _, s := range e.Scalars {
					must.Eq(t, 3, s.Step)
					must.Eq(t, 9.0, s.Wall)
					got = append(got, s.Value)
				}
				must.Eq(t, tc.want, got)
				must.Eq(t, tc.other, e.Other)
			}
		})
	}
}

func TestDecode_malformed(t *testing.T) {
	good := anyTensor(Scalar{"loss", 10, 1.5, 0.25}, typeFloat, false)
	for n := 1; n < len(good); n++ {
		e, err := Decode(good[:n])
		if err != nil {
			must.ErrorIs(t, err, ErrMalformed)
			must.Eq(t, Event{}, e)
		}
	}
	odd := []byte{0xff} // never a field
	for name, data := range map[string]message{
		"event":     odd,
		"version":   message{}.varint(eventStep, 1).bytes(eventVersion, nil)[:3],
		"summary":   message{}.bytes(eventSummary, odd),
		"value":     event(message(odd)),
		"tensor":    event(tagged("a").bytes(valueTensor, odd)),
		"shape":     event(tagged("a").bytes(valueTensor, message{}.bytes(tensorShape, odd))),
		"dimension": event(tagged("a").bytes(valueTensor, message{}.bytes(tensorShape, message{}.bytes(shapeDim, odd)))),
		"packed":    event(tagged("a").bytes(valueTensor, message{}.bytes(tensorFloat, []byte("123")))),
		"doubles":   event(tagged("a").bytes(valueTensor, message{}.bytes(tensorDouble, []byte("123")))),
		"halves":    event(tagged("a").bytes(valueTensor, message{}.bytes(tensorHalf, odd))),
		"metadata":  event(tagged("a").bytes(valueMetadata, odd)),
		"plugin":    event(tagged("a").bytes(valueMetadata, message{}.bytes(metadataPlugin, odd))),
	} {
		_, err := Decode(data)
		must.ErrorIs(t, err, ErrMalformed, must.Sprint(name))
	}
}

func TestFileName(t *testing.T) {
	must.Eq(t, "events.out.tfevents.1700000000.node-1.42.0", FileName(time.Unix(1_700_000_000, 5), "node-1", 42))
}

func FuzzReadRecord(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytesOf(f, begin))
	f.Add(AppendRecord(nil, nil))
	f.Add(AppendRecord(AppendRecord(nil, EncodeVersion(1)), EncodeSimple(Scalar{"loss", 1, 2, 3})))
	long := binary.LittleEndian.AppendUint64(nil, 1<<50)
	f.Add(binary.LittleEndian.AppendUint32(long, Checksum(long)))
	f.Fuzz(func(t *testing.T, b []byte) {
		data, n, err := ReadRecord(b)
		if err != nil {
			must.Zero(t, n)
			must.Nil(t, data)
			return
		}
		must.LessEq(t, len(b), n)
		must.Eq(t, b[:n], AppendRecord(nil, data)) // the encoding is unique
	})
}

func FuzzEvent(f *testing.F) {
	f.Add(EncodeVersion(1))
	f.Add(EncodeSimple(Scalar{"loss", 1, 2, 3}))
	for _, as := range []int{typeFloat, typeDouble, typeHalf, typeBFloat16, typeInt32, typeInt64} {
		f.Add(anyTensor(Scalar{"loss", 1, 2, 3}, as, false))
		f.Add(anyTensor(Scalar{"loss", 1, 2, 3}, as, true))
	}
	f.Add([]byte(event(tagged("a").group(7).bytes(valueTensor, message{}.bytes(tensorShape, nil)))))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := Decode(b)
		if err != nil {
			must.ErrorIs(t, err, ErrMalformed)
			return
		}
		for _, s := range e.Scalars {
			must.NotEq(t, "", s.Tag)
			again, err := Decode(anyTensor(s, typeDouble, true))
			must.NoError(t, err)
			must.Len(t, 1, again.Scalars)
			got := again.Scalars[0]
			must.Eq(t, s.Tag, got.Tag)
			must.Eq(t, s.Step, got.Step)
			must.Eq(t, math.Float64bits(s.Wall), math.Float64bits(got.Wall))
			must.True(t, s.Value == got.Value || math.IsNaN(s.Value) && math.IsNaN(got.Value))
		}
	})
}

// BenchmarkDecode includes expensive inputs that a task may write: generated code makes
// a message of each of 500,000 empty values, and copies an image.
func BenchmarkDecode(b *testing.B) {
	empty := make([]message, 500_000)
	for name, data := range map[string][]byte{
		"simple":  EncodeSimple(Scalar{"loss", 1, 2, 3}),
		"tensor":  EncodeTensor(Scalar{"loss", 1, 2, 3}),
		"picture": event(tagged("a").bytes(valueImage, make([]byte, 500<<10))),
		"empty":   event(empty...),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = Decode(data)
			}
		})
	}
}
