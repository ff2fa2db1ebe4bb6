// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package train

import (
	"math/bits"

	"github.com/ebbtide/ebbtide/e2e/trainer/nn"
)

// order permutes an epoch's data: position i has index (a·i + b) mod size, with a prime to
// size. It needs no memory, so resuming is immediate.
type order struct{ a, b, size uint64 }

func newOrder(seed uint64, epoch, size int) order {
	const streamOrder = 1 << 32 // separate from the model's streams
	r := nn.NewRandom(seed, streamOrder, uint64(epoch))
	o := order{size: uint64(size), b: r.Uint64N(uint64(size))}
	for {
		o.a = 1 + r.Uint64N(o.size)
		if gcd(o.a, o.size) == 1 {
			return o
		}
	}
}

func (o order) at(position int) uint64 {
	hi, lo := bits.Mul64(o.a, uint64(position))
	_, rest := bits.Div64(hi, lo, o.size) // size ≤ 2³¹ and position < size: hi is 0
	return (rest + o.b) % o.size
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
