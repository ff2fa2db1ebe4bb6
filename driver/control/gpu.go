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

const longWait = 10 * time.Second

// refreshGPU reads the device plugin's report of the task's seat. There is none while the plugin is
// down or before the task has used its card.
func (t *task) refreshGPU(now time.Time, since time.Duration) {
	if t.GPU == nil {
		return
	}
	r, err := t.GPU()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			t.log.Debug("cannot read the task's GPU report", "error", err)
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
	t.useCard(r, since)
	t.show.Changed(false)
	t.reportGPU(last, r, now)
}

// reportGPU publishes changes of the state of the task's GPU memory.
func (t *task) reportGPU(last, r handoff.Report, now time.Time) {
	const kind = "gpu"
	for state, mark := range map[handoff.State]string{handoff.Parked: "gpu.parked", handoff.Yielding: "gpu.yielding"} {
		switch {
		case r.State == state && last.State != state:
			t.show.Happened(mark)
			t.show.Enqueue(kind, "GPU: "+r.Why+"; the task resumes automatically")
		case last.State == state && r.State != state && r.State != handoff.Lost:
			t.show.Happened(mark + ".over")
			t.show.Enqueue(kind, fmt.Sprintf("GPU: running again after %v %s", now.Sub(last.Since).Round(time.Second), state))
		}
	}
	if r.State == handoff.Lost && last.State != handoff.Lost {
		t.show.Happened("gpu.lost")
		t.show.Send("gpu.lost", "GPU: "+r.Why, now) // not queued: the task may end soon
	}
	if r.Unparked != "" && r.Unparked != last.Unparked && !t.reported.unparked {
		t.reported.unparked = true
		t.show.Enqueue("gpu.not-parked", "GPU: cannot park its memory; other requests may fail: "+r.Unparked)
	}
	long := func(r handoff.Report) bool { return r.State == handoff.Waiting && now.Sub(r.Since) >= longWait }
	if long(r) && !t.reported.gpuWaits {
		t.show.Enqueue("gpu.waits", fmt.Sprintf("GPU: %s since %s", r.Why, r.Since.UTC().Format(time.TimeOnly)))
	}
	t.reported.gpuWaits = long(r)
}
