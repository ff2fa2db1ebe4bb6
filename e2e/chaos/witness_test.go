// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestTestify(t *testing.T) {
	for name, tc := range map[string]struct {
		lines string
		want  testimony
		wrong string
	}{
		"a move": {
			"START a 0|STEP a 1|STEP a 2|SAVED a 2|START b 2|STEP b 3|END b 3", testimony{Copies: 2, Steps: 3, Ended: true}, "",
		},
		"it has done more since": {
			"START a 0|STEP a 1|SAVED a 1|STEP a 2|START b 1|STEP b 2", testimony{Copies: 2, Steps: 3, Twice: 1}, "",
		},
		"it began from step 0, and moved back": {
			"START a 0|STEP a 1|SAVED a 1|START b 0|STEP b 1|SAVED b 1|STEP b 2|START c 1|STEP c 2", testimony{Copies: 3, Steps: 4, Twice: 2}, "",
		},
		"it began from step 0":   {"START a 0|STEP a 1|SAVED a 1|START b 0|STEP b 1", testimony{Copies: 2, Steps: 2, Twice: 1}, "line 4: step 1 was saved, but the job continues without it"},
		"two run":                {"START a 0|START b 0|STEP a 1", testimony{Copies: 2}, "line 3: two copies run: a does STEP 1 although b has begun"},
		"it completes twice":     {"START a 0|END a 0|START b 0", testimony{Copies: 2, Ended: true}, "line 3: it has completed, and runs again"},
		"the same one once more": {"START a 0|STEP a 1|START a 0|STEP a 1", testimony{Copies: 2, Steps: 2, Twice: 1}, ""},
	} {
		got, err := evaluate(strings.NewReader(strings.ReplaceAll(tc.lines, "|", "\n") + "\n"))
		must.NoError(t, err)
		if tc.wrong != "" {
			tc.want.Wrong = []string{tc.wrong}
		}
		must.Eq(t, tc.want, got, must.Sprint(name))
	}
	for _, bad := range []string{"START a", "STEP a b c", "START a x", "SLEEP a 1"} {
		_, err := evaluate(strings.NewReader("START a 0\n" + bad))
		must.Error(t, err, must.Sprint(bad))
	}
}
