// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nn

import "math/rand/v2"

// Random can be moved to any position. All random numbers of a run are at positions given by
// seed and step, so checkpoints need no generator state, and resumed runs draw the same
// numbers.
type Random struct {
	*rand.Rand
	pcg *rand.PCG
}

func NewRandom(position ...uint64) *Random {
	pcg := rand.NewPCG(0, 0)
	r := &Random{Rand: rand.New(pcg), pcg: pcg}
	r.Seek(position...)
	return r
}

// Seek moves to a position. Different positions give independent sequences.
func (r *Random) Seek(position ...uint64) {
	a, b := uint64(0x243f6a8885a308d3), uint64(0x13198a2e03707344) // digits of pi
	for _, p := range position {
		a = mix(a ^ p)
		b = mix(b + a)
	}
	r.pcg.Seed(a, b)
}

// mix is SplitMix64's finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number
// generators, 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Normal fills dst with normal numbers of mean 0.
func (r *Random) Normal(dst []float64, deviation float64) {
	for i := range dst {
		dst[i] = deviation * r.NormFloat64()
	}
}
