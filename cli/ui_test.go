// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestUI_errors(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"page"}, `unexpected argument "page"`},
		{[]string{"-listen", "4680"}, `-listen: must be host:port, got "4680"`},
		{[]string{"-listen", "0.0.0.0:4680"}, "-listen: must be a loopback address like 127.0.0.1:4680, or -tls-cert and -tls-key must be set"},
		{[]string{"-tls-cert", "a.pem"}, `-tls-cert and -tls-key must be set together, got "a.pem" and ""`},
		{[]string{"-address", "x"}, "the address of Nomad's API must be a URL"},
		{[]string{"-x"}, "allowed are "},
	} {
		status, out, errs := ebbtide("", append([]string{"ui"}, tc.args...)...)
		must.Eq(t, exitUsage, status)
		must.Eq(t, "", out)
		must.StrContains(t, errs, tc.want)
	}
	status, _, errs := ebbtide("", "ui", "-tls-cert", "none.pem", "-tls-key", "none.key")
	must.Eq(t, exitError, status)
	must.StrContains(t, errs, "reading the certificate")
}
