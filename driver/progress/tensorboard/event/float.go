// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package event

import "math"

// half reads an IEEE 754 number of 16 bits.
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

// toHalf is the inverse; what lies between is rounded to even.
func toHalf(v float64) uint16 {
	var sign uint16
	if math.Signbit(v) {
		sign = 0x8000
	}
	v = math.Abs(v)
	switch {
	case math.IsNaN(v):
		return sign | 0x7e00
	case v >= 65520: // half way beyond the greatest
		return sign | 0x7c00
	case v < 0x1p-14: // subnormal; rounding up may make it the least normal one
		return sign | uint16(math.RoundToEven(math.Ldexp(v, 24)))
	}
	fraction, exponent := math.Frexp(v) // in [0.5, 1)
	// Rounding up to 2048 carries into the exponent, which is right.
	return sign | (uint16(exponent+13)<<10 + uint16(math.RoundToEven(math.Ldexp(fraction, 11))))
}

// bfloat16 reads the upper half of a number of 32 bits.
func bfloat16(b uint16) float64 {
	return float64(math.Float32frombits(uint32(b) << 16))
}

// toBfloat16 is the inverse; what lies between is rounded to even.
func toBfloat16(v float64) uint16 {
	bits := math.Float32bits(float32(v))
	if math.IsNaN(v) {
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}
