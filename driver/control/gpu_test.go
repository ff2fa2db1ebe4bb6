// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package control

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/handoff"
)

// A task's GPU state is in its status, and events report freezes, their duration, and long waits.
func TestGPU(t *testing.T) {
	bubble(func(t *testing.T) {
		n := newNode(t, nil)
		f := n.task("train")
		var report handoff.Report
		failed := error(fs.ErrNotExist)
		f.GPU = func() (handoff.Report, error) { return report, failed }
		n.start(f)
		s := n.c.find(f.ID)
		pass := n.pass
		next := func() string {
			t.Helper()
			for range 120 {
				pass(time.Second)
				select {
				case ev := <-n.events:
					if strings.HasPrefix(ev.Annotations["ebbtide"], "gpu") {
						return ev.Message
					}
				default:
				}
			}
			t.Fatal("there is no event")
			return ""
		}
		pass(time.Minute)
		must.Nil(t, n.c.status(s, time.Now()).GPU)

		failed, report = nil, handoff.Report{State: handoff.Running, Since: time.Now(), Cards: []handoff.Card{{HeldMiB: 7}}}
		pass(time.Second)
		must.Eq(t, 7, n.c.status(s, time.Now()).GPU.Cards[0].HeldMiB)

		report = handoff.Report{State: handoff.Waiting, Since: time.Now(), Why: "waiting for GPU memory"}
		must.StrContains(t, next(), "GPU: waiting for GPU memory since ")

		report = handoff.Report{State: handoff.Parked, Since: time.Now(), Why: "its GPU memory is in the host's memory"}
		must.Eq(t, "GPU: its GPU memory is in the host's memory; the task resumes automatically", next())
		must.True(t, s.gpu != nil && s.gpu.State == handoff.Parked)

		since := time.Now()
		report = handoff.Report{State: handoff.Running, Since: time.Now()}
		must.StrContains(t, next(), "GPU: running again after ")
		must.True(t, time.Now().After(since))

		report.Unparked = "not enough host memory"
		must.Eq(t, "GPU: cannot park its memory; other requests may fail: not enough host memory", next())

		report = handoff.Report{State: handoff.Lost, Since: time.Now(), Why: "its GPU memory could not be restored"}
		pass(time.Second)
		must.Eq(t, "GPU: its GPU memory could not be restored", (<-n.events).Message, must.Sprint("at once"))

		failed = errors.New("torn")
		pass(time.Second)
		must.Nil(t, n.c.status(s, time.Now()).GPU)
	})(t)
}
