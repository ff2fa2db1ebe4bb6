// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package optin

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func TestPolicies(t *testing.T) {
	for value, want := range map[string][]string{
		"true": All(), "false": nil, "relocate": {Relocate}, "specon-migrate, relocate": {SpeConMigrate, Relocate},
	} {
		got, err := Policies(value)
		must.NoError(t, err)
		must.Eq(t, want, got)
	}
	for _, value := range []string{"", "yes", "relocate,", "relocate,true"} {
		_, err := Policies(value)
		must.ErrorContains(t, err, `must be "true", "false", or some of relocate, flowcon-place, specon-migrate, specon-rebalance, got "`+value+`"`)
	}
}

func TestReadCooldown(t *testing.T) {
	d, err := ReadCooldown("90m")
	must.NoError(t, err)
	must.Eq(t, 90*time.Minute, d)
	for _, value := range []string{"", "1", "-1s", "9000h", "often"} {
		_, err := ReadCooldown(value)
		must.ErrorContains(t, err, "must be a duration from 0s to 8760h0m0s", must.Sprint(value))
	}
}

func TestReadPriority(t *testing.T) {
	for value, want := range map[string]int{"0": 0, "-100": -100, "100": 100} {
		got, err := ReadPriority(value)
		must.NoError(t, err)
		must.Eq(t, want, got)
	}
	for _, value := range []string{"", "101", "-101", "1.5", "high"} {
		_, err := ReadPriority(value)
		must.ErrorContains(t, err, `must be a whole number from -100 to 100, got "`+value+`"`)
	}
}
