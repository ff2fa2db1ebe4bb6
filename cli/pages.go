// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"io"
	"strings"

	"github.com/hashicorp/cli"
)

// Page is a command's documentation.
type Page struct {
	Name     string // such as "shim status"; "" for the program
	Synopsis string
	Help     string
}

// Pages returns the program's page and those of its commands, sorted, for manual pages and
// completion.
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
