// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tensorboard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash"

	"github.com/ebbtide/ebbtide/driver/progress/tail"
	"github.com/ebbtide/ebbtide/driver/progress/tensorboard/event"
)

// maxHeld bounds the buffered part of an incomplete record.
const maxHeld = 1 << 20

// file is one event file of a run. Few are open simultaneously.
type file struct {
	path     string
	data     string      // data set, see place
	now      stat        // as of the last walk
	read     stat        // as of the last complete read
	tail     *tail.File  // nil: closed
	from     tail.Offset // where to reopen it
	keepOpen bool

	fresh bool // new in this walk

	held              []byte // incomplete record
	sum               hash.Hash32
	skip              int   // bytes of data to skip, covered by sum
	size              int   // size of the skipped record
	pos               int64 // position of the next record
	records           int64 // number of records before it
	abandoned         error // why reading ended
	reportedMalformed bool  // a record that is not an event
	lastError         string
}

func (f *file) reset() {
	f.held, f.sum, f.skip, f.pos, f.records = nil, nil, 0, 0, 0
	f.abandoned, f.reportedMalformed, f.lastError = nil, false, ""
}

func (f *file) offset() tail.Offset {
	if f.tail == nil {
		return f.from
	}
	return f.tail.Offset(f.tail.Pos() - f.pos)
}

func (f *file) close() {
	if f.tail == nil {
		return
	}
	f.from = f.offset()
	_ = f.tail.Close() // read-only
	f.tail, f.held, f.sum, f.skip = nil, nil, nil, 0
}

// feed calls take with each complete record and its number, and counts the large records it skips.
func (f *file) feed(data []byte, take func(record []byte, number int64)) (large int64, err error) {
	if len(f.held) > 0 {
		f.held = append(f.held, data...)
		data = f.held
	}
	for err == nil {
		if f.sum != nil {
			n := min(f.skip, len(data))
			_, _ = f.sum.Write(data[:n])
			data = data[n:]
			if f.skip -= n; f.skip > 0 || len(data) < event.FooterSize {
				break
			}
			if binary.LittleEndian.Uint32(data) != event.Masked(f.sum) {
				err = event.ErrChecksum
				break
			}
			data = data[event.FooterSize:]
			f.pos += int64(event.HeaderSize + f.size + event.FooterSize)
			f.records++
			f.sum = nil
			large++
			continue
		}
		size, e := event.ReadHeader(data)
		if e == nil && size > maxHeld {
			f.sum, f.skip, f.size = event.NewChecksum(), size, size
			data = data[event.HeaderSize:]
			continue
		}
		record, n, e := event.ReadRecord(data)
		if errors.Is(e, event.ErrTorn) {
			break
		}
		if e != nil {
			err = e
			break
		}
		data = data[n:]
		f.pos += int64(n)
		f.records++
		take(record, f.records)
	}
	if err != nil {
		f.held, f.sum = nil, nil
		f.abandoned = fmt.Errorf("%w at byte %d: the rest of this file is not read", err, f.pos)
		return large, f.abandoned
	}
	if len(data) == 0 && cap(f.held) > maxHeld/4 {
		f.held = nil
	}
	f.held = append(f.held[:0], data...)
	return large, nil
}
