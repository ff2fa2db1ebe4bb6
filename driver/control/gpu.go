// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/ebbtide/ebbtide/device/handoff"
)

// waitsLong is how long a task waits for memory of its card before people are told.
const waitsLong = 10 * time.Second

// lookGPU takes over what the device plugin reports of the task's seat. Without a report
// nothing is shown of it: the plugin may be away, or the task may not use its card yet.
func (t *task) lookGPU(now time.Time) {
	if t.GPU == nil {
		return
	}
	r, err := t.GPU()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			t.log.Debug("it is not known how the task fares on its card", "error", err)
		}
		if t.gpu != nil {
			t.gpu = nil
			t.show.Changed(false)
		}
		return
	}
	last := handoff.Report{State: handoff.Running}
	if t.gpu != nil {
		last = *t.gpu
	}
	t.gpu = &r
	t.show.Changed(false)
	t.sayGPU(last, r, now)
}

// sayGPU tells people what has become of the task's memory.
func (t *task) sayGPU(last, r handoff.Report, now time.Time) {
	const kind = "gpu"
	for state, mark := range map[handoff.State]string{handoff.Parked: "gpu.parked", handoff.Paused: "gpu.paused"} {
		switch {
		case r.State == state && last.State != state:
			t.show.Happened(mark)
			t.show.Enqueue(kind, "GPU: "+r.Why+"; it comes back by itself")
		case last.State == state && r.State != state && r.State != handoff.Lost:
			t.show.Happened(mark + ".over")
			t.show.Enqueue(kind, fmt.Sprintf("GPU: the task goes on after %v, in which it was %s", now.Sub(last.Since).Round(time.Second), state))
		}
	}
	if r.State == handoff.Lost && last.State != handoff.Lost {
		t.show.Happened("gpu.lost")
		t.show.Send("gpu.lost", "GPU: "+r.Why, now) // there is not much time
	}
	if r.Unparked != "" && r.Unparked != last.Unparked && !t.said.unparked {
		t.said.unparked = true
		t.show.Enqueue("gpu.not-parked", "GPU: its memory cannot make room for others, who may be denied theirs: "+r.Unparked)
	}
	long := func(r handoff.Report) bool { return r.State == handoff.Waiting && now.Sub(r.Since) >= waitsLong }
	if long(r) && !t.said.gpuWaits {
		t.show.Enqueue("gpu.waits", fmt.Sprintf("GPU: %s since %s", r.Why, r.Since.UTC().Format(time.TimeOnly)))
	}
	t.said.gpuWaits = long(r)
}
