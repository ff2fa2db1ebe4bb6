// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"
)

// A suspended job goes on from what it had saved, although it has no disk that Nomad would migrate.
func TestSuspend(t *testing.T) {
	s := faultFree()
	suspended(&s)
	synctest.Test(t, func(t *testing.T) {
		m := newModel(s)
		res, err := m.run()
		must.NoError(t, err)
		must.Eq(t, PhaseDone, res.Phase)
		must.SliceEmpty(t, m.wrong)
		must.Eq(t, []string{"CHECKPOINT a", "register a", "SUSPEND a", "register a", "FREEZE a", "register ", "RELEASE a"}, m.log)
		must.Len(t, 2, m.all)
		must.Eq(t, m.all[0].step, m.all[1].begun)
	})
}

func TestSuspend_refused(t *testing.T) {
	for want, change := range map[string]func(*schedule){
		`its job's type is "service", must be batch`: func(s *schedule) { s.Service = true },
		"has a disconnect block":                     func(s *schedule) { s.Disconnect = true },
		"not running":                                func(s *schedule) { s.Events = []event{{At: time.Millisecond, Kind: "stop"}} },
	} {
		s := faultFree()
		suspended(&s)
		change(&s)
		synctest.Test(t, func(t *testing.T) {
			m := newModel(s)
			_, err := m.run()
			must.ErrorContains(t, err, "cannot be suspended: ")
			must.ErrorContains(t, err, want)
			must.SliceEmpty(t, m.log)
		})
	}
}
