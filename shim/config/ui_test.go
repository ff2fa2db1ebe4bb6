// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestUI(t *testing.T) {
	for _, tc := range []struct {
		ui   UI
		want string
	}{
		{UI{Address: "127.0.0.1:4680"}, ""},
		{UI{Address: "localhost:0"}, ""},
		{UI{Address: "[::1]:4680"}, ""},
		{UI{Address: "0.0.0.0:4680", CertFile: "a", KeyFile: "b"}, ""},
		{UI{Address: "4680"}, `address: must be host:port, got "4680"`},
		{UI{Address: ":4680"}, "address: must be a loopback address like 127.0.0.1:4680, or cert and key must be set"},
		{UI{Address: "10.0.0.1:4680"}, "must be a loopback address"},
		{UI{Address: "127.0.0.1.evil.example:4680"}, "must be a loopback address"},
		{UI{Address: "127.0.0.1:4680", CertFile: "a"}, `cert and key must be set together, got "a" and ""`},
	} {
		err := tc.ui.Validate("address", "cert", "key")
		if tc.want == "" {
			must.NoError(t, err)
		} else {
			must.ErrorContains(t, err, tc.want)
		}
	}
	c, err := Parse([]byte("ui {\n address = \"10.0.0.1:4680\"\n cert_file = \"a\"\n key_file = \"b\"\n}"), "")
	must.NoError(t, err)
	must.Eq(t, UI{"10.0.0.1:4680", "a", "b"}, c.UI)
	_, err = Parse([]byte("ui {\n address = \"10.0.0.1:4680\"\n}"), "")
	must.ErrorContains(t, err, "ui.address: must be a loopback address like 127.0.0.1:4680, or ui.cert_file and ui.key_file must be set")
}
