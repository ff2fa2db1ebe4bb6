// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nn

import "math/rand/v2"

// Random is a generator that can be moved to any position at once. Everything random in a run is read at a
// position that follows from the seed and the step alone; therefore a checkpoint needs no generator state beyond
// these two, and a resumed run draws exactly what an uninterrupted one would have drawn.
type Random struct {
	*rand.Rand
	pcg *rand.PCG
}

// NewRandom returns a generator at the given position.
func NewRandom(position ...uint64) *Random {
	pcg := rand.NewPCG(0, 0)
	r := &Random{Rand: rand.New(pcg), pcg: pcg}
	r.Seek(position...)
	return r
}

// Seek moves the generator to a position. Positions that differ in any number give unrelated sequences.
func (r *Random) Seek(position ...uint64) {
	a, b := uint64(0x243f6a8885a308d3), uint64(0x13198a2e03707344) // digits of pi
	for _, p := range position {
		a = mix(a ^ p)
		b = mix(b + a)
	}
	r.pcg.Seed(a, b)
}

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Normal fills dst with normal numbers of mean 0 and the given standard deviation.
func (r *Random) Normal(dst []float64, deviation float64) {
	for i := range dst {
		dst[i] = deviation * r.NormFloat64()
	}
}
