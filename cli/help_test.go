// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test"
	"github.com/shoenig/test/must"
)

// The help of every command lists the options that it has, and no others.
func TestHelp_options(t *testing.T) {
	listed := regexp.MustCompile(`(?m)^  --?([a-z-]+)`)
	allowed := regexp.MustCompile(`allowed are (.*)`)
	for name := range commands() {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			args := append(strings.Fields(name), "-no-such-option")
			must.Eq(t, exitUsage, Run(args, strings.NewReader(""), &out, &errs))
			var has []string
			if m := allowed.FindStringSubmatch(errs.String()); m != nil && m[1] != "" {
				for _, o := range strings.Split(m[1], ", ") {
					has = append(has, strings.TrimLeft(o, "-"))
				}
			}
			var says []string
			help := commands()[name](IO{In: strings.NewReader(""), Out: &out, Err: &errs}).Help()
			for _, m := range listed.FindAllStringSubmatch(help, -1) {
				if !slices.Contains(says, m[1]) {
					says = append(says, m[1])
				}
			}
			slices.Sort(has)
			slices.Sort(says)
			test.Eq(t, has, says)
		})
	}
}
