// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"io"
	"strings"

	"github.com/hashicorp/cli"
)

// Page is what a command says of itself.
type Page struct {
	Name     string // "shim status"; "" for the program
	Synopsis string
	Help     string
}

// Pages are the program's own and those of its commands, by name. Manual pages and completion
// are made of them.
func Pages() []Page {
	std := IO{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}
	table := make(map[string]cli.CommandFactory)
	var pages []Page
	for _, name := range names(commands()) {
		c := commands()[name](std)
		table[name] = func() (cli.Command, error) { return c, nil }
		pages = append(pages, Page{name, c.Synopsis(), strings.TrimSpace(c.Help())})
	}
	help := strings.TrimSpace(cli.BasicHelpFunc("ebbtide")(table))
	return append([]Page{{"", "Set up, check and steer Ebbtide on HashiCorp Nomad", help}}, pages...)
}
