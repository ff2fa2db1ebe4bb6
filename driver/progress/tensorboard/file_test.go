// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tensorboard

import (
	"math/rand"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/progress/tensorboard/event"
)

// Records, and the position of damage, are independent of how data is split into chunks.
func TestFile_feed(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	for round := range 300 {
		var data []byte
		var want []string
		end := int64(-1) // of the valid records
		for range r.Intn(20) {
			size := r.Intn(60)
			if round%50 == 0 && r.Intn(4) == 0 {
				size = maxHeld + r.Intn(3) // around the largest buffered record
			}
			b := make([]byte, size)
			r.Read(b)
			before := int64(len(data))
			data = event.AppendRecord(data, b)
			switch {
			case end >= 0:
			case r.Intn(40) == 0:
				data[before+int64(r.Intn(len(data)-int(before)))] ^= 1 << r.Intn(8)
				end = before
			case size <= maxHeld:
				want = append(want, string(b))
			}
		}
		torn := r.Intn(30)
		data = append(data, event.AppendRecord(nil, make([]byte, 40))[:torn]...)

		var f file
		var got []string
		var err error
		for rest := data; len(rest) > 0 && err == nil; {
			n := 1 + r.Intn(min(len(rest), 1+r.Intn(300)))
			if len(rest) > 10_000 {
				n = 1 + r.Intn(10_000)
			}
			before := f.records
			_, err = f.feed(rest[:n], func(b []byte, number int64) {
				must.Greater(t, before, number)
				got = append(got, string(b))
			})
			rest = rest[n:]
		}
		must.Eq(t, want, got)
		if end >= 0 {
			must.ErrorIs(t, err, event.ErrChecksum)
			must.Eq(t, end, f.pos)
		} else {
			must.NoError(t, err)
			must.Eq(t, int64(len(data)-torn), f.pos)
			must.Eq(t, torn, len(f.held))
		}
	}
}
