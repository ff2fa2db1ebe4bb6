// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/ebbtide/ebbtide/device/seat"
)

// waitsLong is how long a task waits for memory of its card before people are told.
const waitsLong = 10 * time.Second

// pollGPU takes over what the device plugin reports of the task's seat. Without a report
// nothing is shown of it: the plugin may be away, or the task may not use its card yet.
func (s *state) pollGPU(now time.Time) {
	if s.GPU == nil {
		return
	}
	r, err := s.GPU()
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.log.Debug("it is not known how the task fares on its card", "error", err)
		}
		if s.gpu != nil {
			s.gpu, s.dirty = nil, true
		}
		return
	}
	last := seat.Report{State: seat.Running}
	if s.gpu != nil {
		last = *s.gpu
	}
	s.gpu, s.dirty = &r, true
	s.sayGPU(last, r, now)
}

// sayGPU tells people what has become of the task's memory.
func (s *state) sayGPU(last, r seat.Report, now time.Time) {
	const kind = "gpu"
	for state, mark := range map[seat.State]string{seat.Parked: "gpu.parked", seat.Paused: "gpu.paused"} {
		switch {
		case r.State == state && last.State != state:
			s.happened(mark)
			s.speak.say("GPU: "+r.Why+"; it comes back by itself", kind)
		case last.State == state && r.State != state && r.State != seat.Lost:
			s.happened(mark + ".over")
			s.speak.say(fmt.Sprintf("GPU: the task goes on after %v, in which it was %s", now.Sub(last.Since).Round(time.Second), state), kind)
		}
	}
	if r.State == seat.Lost && last.State != seat.Lost {
		s.happened("gpu.lost")
		s.speak.tell("GPU: "+r.Why, "gpu.lost", now, s.emit) // there is not much time
	}
	if r.Unparked != "" && r.Unparked != last.Unparked && !s.saidUnparked {
		s.saidUnparked = true
		s.speak.say("GPU: its memory cannot make room for others, who may be denied theirs: "+r.Unparked, "gpu.not-parked")
	}
	long := func(r seat.Report) bool { return r.State == seat.Waiting && now.Sub(r.Since) >= waitsLong }
	if long(r) && !s.saidWaits {
		s.speak.say(fmt.Sprintf("GPU: %s since %s", r.Why, r.Since.UTC().Format(time.TimeOnly)), "gpu.waits")
	}
	s.saidWaits = long(r)
}
