// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package tensorboard

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/progress/tail"
)

// maxOffset bounds the number of files, and of other runs, in an offset.
const maxOffset = 64

// offset is the position of a Dir, with its run's most recently changed files.
type offset struct {
	Run    string              `json:"run"`
	Files  map[string]position `json:"files,omitempty"`
	Others []string            `json:"others,omitempty"` // known runs
	Seen   int64               `json:"seen,omitempty"`   // newest change of a file, in ns
	Done   int64               `json:"done,omitempty"`   // files unchanged since have been read
	Parser progress.State      `json:"parser"`
}

type position struct {
	tail.Offset
	Records int64 `json:"records,omitempty"`
}

func (d *Dir) Offset() json.RawMessage {
	if d.closed {
		return d.last
	}
	o := d.restored
	if d.cur != nil {
		o = &offset{Run: d.cur.name, Files: map[string]position{}, Seen: d.seen, Done: d.seen, Parser: d.cur.parser.State()}
		files := slices.SortedFunc(maps.Values(d.cur.files), func(a, b *file) int {
			return cmp.Or(cmp.Compare(b.now.time, a.now.time), cmp.Compare(b.path, a.path))
		})
		for i, f := range files {
			if i < maxOffset {
				o.Files[f.path] = position{f.offset(), f.records}
			} else if f.read != f.now {
				o.Done = min(o.Done, f.now.time-1)
			}
		}
		others := slices.SortedFunc(maps.Values(d.runs), func(a, b *run) int {
			return cmp.Or(cmp.Compare(b.newest, a.newest), cmp.Compare(b.name, a.name))
		})
		for _, r := range others {
			if r != d.cur && !r.candidate && len(o.Others) < maxOffset {
				o.Others = append(o.Others, r.name)
			}
		}
	}
	if o == nil {
		return json.RawMessage("{}")
	}
	b, err := json.Marshal(o)
	if err != nil {
		return json.RawMessage("{}")
	}
	return b
}

// SetOffset continues at an Offset of the same run and metric. It must precede the first Poll.
// Replaced or truncated files are read from their start; invalid data is ignored.
func (d *Dir) SetOffset(raw json.RawMessage) {
	var o offset
	if d.cur != nil || d.closed || json.Unmarshal(raw, &o) != nil || o.Run == "" || o.Seen <= 0 {
		return
	}
	d.restored = &o
}

func (o *offset) apply(r *run, f *file, now stat) {
	if r.name != o.Run {
		f.fresh = now.time > o.Seen && !slices.Contains(o.Others, r.name)
		return
	}
	p, ok := o.Files[f.path]
	switch {
	case ok && p.Pos > 0 && p.Inode != 0 && p.Records >= 0:
		f.from, f.pos, f.records = p.Offset, p.Pos, p.Records
	case !ok && now.time <= o.Done:
		f.read = now
	}
}
