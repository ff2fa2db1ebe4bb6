// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/cli"
)

// manual renders a command's help as a manual page.
func manual(p cli.Page, all []cli.Page, version string, at time.Time) []byte {
	title := pageName(p)
	var out bytes.Buffer
	fmt.Fprintf(&out, ".TH %s 1 %s \"Ebbtide %s\" \"Ebbtide\"\n", roff(strings.ToUpper(title)), at.Format(time.DateOnly), roff(version))
	fmt.Fprintf(&out, ".SH NAME\n%s \\- %s\n", roff(title), roff(p.Synopsis))
	section := func(name string, lines []string) {
		for len(lines) > 0 && lines[0] == "" {
			lines = lines[1:]
		}
		for len(lines) > 0 && lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		if len(lines) == 0 {
			return
		}
		// Unformatted, so tables stay aligned; lines are short.
		fmt.Fprintf(&out, ".SH %s\n.nf\n", roff(strings.ToUpper(name)))
		for _, line := range lines {
			fmt.Fprintln(&out, roff(strings.TrimPrefix(line, "  ")))
		}
		fmt.Fprintln(&out, ".fi")
	}
	name := "Synopsis"
	var lines []string
	for i, line := range strings.Split(strings.Replace(p.Help, "Usage: ", "", 1), "\n") {
		heading, isHeading := strings.CutSuffix(line, ":")
		switch {
		case name == "Synopsis" && line == "":
			section(name, lines)
			name, lines = "Description", nil
		case i > 0 && isHeading && regexp.MustCompile(`^[A-Z][a-z]+( [a-z]+)*$`).MatchString(heading):
			section(name, lines)
			if heading == "Available commands are" {
				heading = "Commands"
			}
			name, lines = heading, nil
		default:
			lines = append(lines, strings.TrimPrefix(line, "       ebbtide "))
			if l := len(lines) - 1; name == "Synopsis" && lines[l] != line {
				lines[l] = "ebbtide " + lines[l]
			}
		}
	}
	section(name, lines)
	var others []string
	for _, o := range all {
		if o.Name != p.Name && (p.Name == "" || o.Name == "" || strings.HasPrefix(o.Name, p.Name+" ") || strings.HasPrefix(p.Name, o.Name+" ")) {
			others = append(others, fmt.Sprintf(".BR %s (1)", roff(pageName(o))))
		}
	}
	fmt.Fprintf(&out, ".SH SEE ALSO\n%s\n", strings.Join(others, ",\n"))
	fmt.Fprintf(&out, ".P\nThe documentation is in %s.\n", roff(docDir))
	return out.Bytes()
}

func pageName(p cli.Page) string {
	return strings.ReplaceAll(strings.TrimSpace("ebbtide "+p.Name), " ", "-")
}

// roff escapes text for roff.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "→", `\(->`, "≥", `\(>=`, "…", "...").Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

// compress compresses with gzip, without name and time.
func compress(data []byte) ([]byte, error) {
	var out bytes.Buffer
	zip, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := zip.Write(data); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// manuals returns manual pages and shell completions, generated from the commands' help.
func (r *release) manuals() ([]file, error) {
	var out []file
	pages := cli.Pages()
	for _, p := range pages {
		text := manual(p, pages, r.version, r.time)
		zipped, err := compress(text)
		if err != nil {
			return nil, fmt.Errorf("compressing a manual page: %w", err)
		}
		name := pageName(p) + ".1"
		out = append(out,
			file{installed: "/usr/share/man/man1/" + name + ".gz", data: zipped, mode: 0o644},
			file{archived: "man/" + name, data: text, mode: 0o644})
	}
	commands := describe(pages)
	bash, zsh, fish := []byte(bashCompletion(commands)), []byte(zshCompletion(commands)), []byte(fishCompletion(commands))
	return append(out,
		file{installed: "/usr/share/bash-completion/completions/ebbtide", archived: "completion/ebbtide.bash", data: bash, mode: 0o644},
		file{archived: "completion/_ebbtide", data: zsh, mode: 0o644},
		file{installed: "/usr/share/zsh/vendor-completions/_ebbtide", only: "deb", data: zsh, mode: 0o644},
		file{installed: "/usr/share/zsh/site-functions/_ebbtide", only: "rpm", data: zsh, mode: 0o644},
		file{installed: "/usr/share/fish/vendor_completions.d/ebbtide.fish", archived: "completion/ebbtide.fish", data: fish, mode: 0o644},
	), nil
}

type command struct {
	name, about string
	flags       []option
}

type option struct {
	name  string // with its dashes
	about string
	value string // placeholder in the help, "" for none
	words []string
}

// kind returns the kind of completion of the flag's value: "file", "dir", "words" or "".
func (f option) kind() string {
	switch {
	case len(f.words) > 0:
		return "words"
	case f.value == "DIR":
		return "dir"
	case f.value == "FILE" || f.value == "PATH" && f.name == "-config":
		return "file"
	}
	return ""
}

var (
	flagLine = regexp.MustCompile(`^  (--?[a-z][a-z-]*)(?: ([A-Z][A-Z=]*|[a-z]+(?:\|[a-z]+)+))?  +(\S.*)$`)
	moreLine = regexp.MustCompile(`^ {10,}(\S.*)$`)
)

// describe parses the commands' options from their help.
func describe(pages []cli.Page) []command {
	var out []command
	for _, p := range pages {
		c := command{name: p.Name, about: p.Synopsis}
		for line := range strings.Lines(p.Help) {
			line = strings.TrimSuffix(line, "\n")
			if m := flagLine.FindStringSubmatch(line); m != nil {
				f := option{name: m[1], value: m[2], about: m[3]}
				if strings.Contains(f.value, "|") {
					f.words = strings.Split(f.value, "|")
				}
				c.flags = append(c.flags, f)
			} else if m := moreLine.FindStringSubmatch(line); m != nil && len(c.flags) > 0 {
				c.flags[len(c.flags)-1].about += " " + m[1]
			}
		}
		for i := range c.flags { // keep the first sentence
			about, _, _ := strings.Cut(c.flags[i].about, ". ")
			about, _, _ = strings.Cut(about, "; ")
			c.flags[i].about = strings.TrimSuffix(about, ".")
		}
		out = append(out, c)
	}
	return out
}

func below(commands []command, name string) []command {
	var out []command
	for _, c := range commands {
		if parent, _, nested := strings.Cut(c.name, " "); c.name != "" && (nested && parent == name || !nested && name == "") {
			out = append(out, c)
		}
	}
	return out
}

func last(name string) string { return name[strings.LastIndex(name, " ")+1:] }

const completionHead = `# Completion of the command ebbtide, made of its help.
`

func bashCompletion(commands []command) string {
	var out strings.Builder
	out.WriteString(completionHead)
	out.WriteString(`_ebbtide() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= words=
	if ((COMP_CWORD > 1)); then
		command=${COMP_WORDS[1]}
	fi
	if ((COMP_CWORD > 2)); then
		case "$command ${COMP_WORDS[2]}" in
`)
	var nested []string
	for _, c := range commands {
		if strings.Contains(c.name, " ") {
			nested = append(nested, fmt.Sprintf("%q", c.name))
		}
	}
	fmt.Fprintf(&out, "\t\t%s) command+=\" ${COMP_WORDS[2]}\" ;;\n\t\tesac\n\tfi\n\tCOMPREPLY=()\n\tcase \"$command $prev\" in\n", strings.Join(nested, " | "))
	for _, c := range commands {
		for _, f := range c.flags {
			var reply string
			switch f.kind() {
			case "words":
				reply = fmt.Sprintf(`mapfile -t COMPREPLY < <(compgen -W %q -- "$cur")`, strings.Join(f.words, " "))
			case "file":
				reply = `compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- "$cur")`
			case "dir":
				reply = `compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- "$cur")`
			default:
				if f.value == "" {
					continue
				}
				reply = ":"
			}
			fmt.Fprintf(&out, "\t%q)\n\t\t%s\n\t\treturn\n\t\t;;\n", c.name+" "+f.name, reply)
		}
	}
	out.WriteString("\tesac\n\tcase \"$command\" in\n")
	for _, c := range commands {
		var words []string
		for _, sub := range below(commands, c.name) {
			words = append(words, last(sub.name))
		}
		for _, f := range c.flags {
			words = append(words, f.name)
		}
		fmt.Fprintf(&out, "\t%q) words=%q ;;\n", c.name, strings.Join(words, " "))
	}
	out.WriteString(`	esac
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
}
complete -F _ebbtide ebbtide
`)
	return out.String()
}

func zshCompletion(commands []command) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	plain := strings.NewReplacer(":", `\:`, "[", `\[`, "]", `\]`)
	var out strings.Builder
	out.WriteString("#compdef ebbtide\n" + completionHead)
	out.WriteString("_ebbtide() {\n\tlocal command=\n\tlocal -a below\n\tif ((CURRENT > 2)); then\n\t\tcommand=$words[2]\n\t\tshift words\n\t\t((CURRENT--))\n\tfi\n")
	out.WriteString("\tif ((CURRENT > 2)); then\n\t\tcase \"$command $words[2]\" in\n")
	var nested []string
	for _, c := range commands {
		if strings.Contains(c.name, " ") {
			nested = append(nested, fmt.Sprintf("%q", c.name))
		}
	}
	fmt.Fprintf(&out, "\t\t(%s) command+=\" $words[2]\"; shift words; ((CURRENT--)) ;;\n\t\tesac\n\tfi\n\tcase \"$command\" in\n", strings.Join(nested, "|"))
	for _, c := range commands {
		fmt.Fprintf(&out, "\t(%q)\n", c.name)
		if subs := below(commands, c.name); len(subs) > 0 {
			out.WriteString("\t\tif ((CURRENT == 2)) && [[ $words[2] != -* ]]; then\n\t\t\tbelow=(\n")
			for _, s := range subs {
				fmt.Fprintf(&out, "\t\t\t\t%s\n", quote(last(s.name)+":"+plain.Replace(s.about)))
			}
			out.WriteString("\t\t\t)\n\t\t\t_describe command below\n\t\t\treturn\n\t\tfi\n")
		}
		out.WriteString("\t\t_arguments")
		for _, f := range c.flags {
			spec := "*" + f.name + "[" + plain.Replace(f.about) + "]"
			switch f.kind() {
			case "words":
				spec += ":" + plain.Replace(f.value) + ":(" + strings.Join(f.words, " ") + ")"
			case "file":
				spec += ":" + f.value + ":_files"
			case "dir":
				spec += ":" + f.value + ":_files -/"
			default:
				if f.value != "" {
					spec += ":" + f.value + ":"
				}
			}
			fmt.Fprintf(&out, " \\\n\t\t\t%s", quote(spec))
		}
		out.WriteString("\n\t\t;;\n")
	}
	out.WriteString("\tesac\n}\nif [[ $zsh_eval_context[-1] == loadautofunc ]]; then\n\t_ebbtide \"$@\"\nelse\n\tcompdef _ebbtide ebbtide\nfi\n")
	return out.String()
}

func fishCompletion(commands []command) string {
	quote := func(s string) string {
		return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
	}
	var out strings.Builder
	out.WriteString(completionHead)
	out.WriteString(`function __ebbtide_at --description 'whether these words, and no other command, stand first'
	set -l words (commandline -opc)[2..-1]
	test (count $argv) -le (count $words); or test (count $argv) -eq 0; or return 1
	for i in (seq (count $argv))
		test "$words[$i]" = "$argv[$i]"; or return 1
	end
	set -l next (math (count $argv) + 1)
	if test (count $words) -ge $next
		string match -q -- '-*' $words[$next]; or not contains -- "$argv $words[$next]" $__ebbtide_nested; or return 1
		test (count $argv) -gt 0; or return 1
	end
end
complete -c ebbtide -f
`)
	var nested []string
	for _, c := range commands {
		if strings.Contains(c.name, " ") {
			nested = append(nested, quote(c.name))
		}
	}
	fmt.Fprintf(&out, "set -g __ebbtide_nested %s\n", strings.Join(nested, " "))
	for _, c := range commands {
		at := quote(strings.TrimSpace("__ebbtide_at " + c.name))
		for _, s := range below(commands, c.name) {
			fmt.Fprintf(&out, "complete -c ebbtide -n %s -a %s -d %s\n", at, last(s.name), quote(s.about))
		}
		for _, f := range c.flags {
			var more string
			switch f.kind() {
			case "words":
				more = " -x -a " + quote(strings.Join(f.words, " "))
			case "file":
				more = " -r -F"
			case "dir":
				more = " -x -a '(__fish_complete_directories)'"
			default:
				if f.value != "" {
					more = " -x"
				}
			}
			option := "-o " + strings.TrimPrefix(f.name, "-")
			if long, ok := strings.CutPrefix(f.name, "--"); ok {
				option = "-l " + long
			}
			fmt.Fprintf(&out, "complete -c ebbtide -n %s %s%s -d %s\n", at, option, more, quote(f.about))
		}
	}
	return out.String()
}
