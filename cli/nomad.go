// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"flag"

	"github.com/ebbtide/ebbtide/shim/config"
)

// nomadHelp documents the flags of nomadFlags.
const nomadHelp = `

Options of the connection to Nomad, with the environment variables that are their
defaults:

  -address URL            NOMAD_ADDR, else http://127.0.0.1:4646.
  -region NAME            NOMAD_REGION.
  -token TOKEN            NOMAD_TOKEN, which is not visible to other users.
  -ca-cert FILE           NOMAD_CACERT.
  -client-cert FILE       NOMAD_CLIENT_CERT.
  -client-key FILE        NOMAD_CLIENT_KEY.
  -tls-server-name NAME   NOMAD_TLS_SERVER_NAME.
`

// nomadFlags adds the connection flags of Nomad's own CLI.
func nomadFlags(flags *flag.FlagSet) *config.Nomad {
	n := new(config.Nomad)
	for name, into := range map[string]*string{
		"address": &n.Address, "region": &n.Region, "token": &n.Token, "ca-cert": &n.CAFile,
		"client-cert": &n.CertFile, "client-key": &n.KeyFile, "tls-server-name": &n.TLSServerName,
	} {
		flags.StringVar(into, name, "", "")
	}
	return n
}
