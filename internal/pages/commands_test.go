// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package pages

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/cli"
)

// unrun says what commands need that this test does not have: by their first words. All others
// are run, or their flags, targets and packages are checked.
var unrun = map[string]string{
	"apt-get":   "root, and a package of Ebbtide",
	"dnf":       "the same on Fedora",
	"systemctl": "systemd",
	"nomad":     "an agent; e2e's TestSecure does the same",
	"install":   "root",
	"chmod":     "root",
	"mv":        "what was made before",
	"cp":        "what was made before",
	"skopeo":    "a registry",
	"docker":    "a Docker daemon",
	"tar":       "what was made before",
	"man":       "an installed package",
	"python":    "a trainer",
	"python3":   "a trainer",
	"kill":      "a process",
	"curl":      "a shim",
	"grep":      "the output of a command before it",

	"bin/trainer":     "what make build makes",
	"scp":             "another machine",
	"jq":              "a gate's state",
	"nvidia-smi":      "a card",
	"nvidia-ctk":      "a card's container toolkit",
	"cuda-checkpoint": "a card",
}

// program matches a line of a code block that begins with a program's name: no value, no formula,
// no output with capitals or columns, and no block of a configuration.
var program = regexp.MustCompile(`^([A-Z_]+=\S+ )*([a-z][a-z0-9./-]+)( [^= ].*)?$`)

type command struct{ page, line string }

// commands returns the lines of code blocks that begin with a program's name, and the code within
// sentences that begins with a known one.
func commands(t *testing.T) (all []command) {
	t.Helper()
	begins := regexp.MustCompile(`^([A-Z_]+=\S+ )*(ebbtide|make|go|` + strings.Join(keys(unrun), "|") + `)( |$)`)
	add := func(page, line string, begins *regexp.Regexp) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
		line, _, _ = strings.Cut(line, "  #")
		if begins.MatchString(line) && !strings.HasSuffix(line, "{") {
			all = append(all, command{page, line})
		}
	}
	for _, page := range pages(t) {
		if page == "CHANGELOG.md" {
			continue
		}
		text := read(t, page)
		blocks := slices.DeleteFunc(fenced.FindAllString(text, -1), func(block string) bool {
			return !regexp.MustCompile("^ *```(sh|console)?\n").MatchString(block)
		})
		for _, block := range append(blocks, indented.FindAllString(fenced.ReplaceAllString(text, ""), -1)...) {
			for line := range strings.Lines(block) {
				add(page, line, program)
			}
		}
		for _, span := range codeSpan.FindAllString(withoutBlocks(text), -1) {
			add(page, strings.Trim(span, "`"), begins)
		}
	}
	must.Greater(t, 50, len(all))
	return all
}

func keys(m map[string]string) (out []string) {
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Every command that a page shows exists, with all of its flags, targets, packages and tests; and
// those that need nothing are run.
func TestCommands(t *testing.T) {
	targets := read(t, "Makefile")
	ran := 0
	for _, c := range commands(t) {
		for part := range strings.SplitSeq(c.line, " | ") {
			words := strings.Fields(part)
			for len(words) > 0 && regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0]) {
				words = words[1:]
			}
			if len(words) < 2 {
				continue
			}
			switch words[0] {
			case "make":
				for _, target := range words[1:] {
					if regexp.MustCompile(`^[a-z0-9-]+$`).MatchString(target) && !strings.Contains(targets, "\n"+target+":") {
						t.Errorf("%s: %s: there is no target %s", c.page, c.line, target)
					}
					if strings.Contains(target, "=") {
						break
					}
				}
			case "go":
				goCommand(t, c, words)
			case "ebbtide":
				ebbtideCommand(t, c, words[1:])
			default:
				if unrun[words[0]] == "" && program.MatchString(part) {
					t.Errorf("%s: %s: check %s here, or say in unrun what it needs", c.page, c.line, words[0])
				}
			}
		}
		if runs(t, c) {
			ran++
		}
	}
	must.Greater(t, 3, ran)
}

func goCommand(t *testing.T, c command, words []string) {
	t.Helper()
	for i, w := range words {
		if strings.HasPrefix(w, "./") {
			if _, err := os.Stat(filepath.Join(root, strings.TrimSuffix(w, "..."))); err != nil {
				t.Errorf("%s: %s: there is no %s", c.page, c.line, w)
			}
		}
		if words[i][0] == '-' && w == "-run" && i+1 < len(words) {
			name, _, _ := strings.Cut(strings.Trim(words[i+1], `'"^$`), "$")
			if name == "" {
				continue
			}
			at := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "./") })
			if at < 0 {
				continue
			}
			files, err := filepath.Glob(filepath.Join(root, strings.TrimSuffix(words[at], "..."), "*_test.go"))
			must.NoError(t, err)
			found := slices.ContainsFunc(files, func(file string) bool {
				data, err := os.ReadFile(file)
				must.NoError(t, err)
				return regexp.MustCompile(`(?m)^func Test\w*` + strings.TrimPrefix(name, "Test")).Match(data)
			})
			if !found {
				t.Errorf("%s: %s: there is no such test", c.page, c.line)
			}
		}
	}
}

// ebbtideCommand checks a command's name and flags, those that it says itself are allowed.
func ebbtideCommand(t *testing.T, c command, args []string) {
	t.Helper()
	if len(args) == 0 || strings.HasPrefix(args[0], "-") || args[0] == strings.ToUpper(args[0]) {
		return
	}
	sub := args[:1]
	if len(args) > 1 && slices.ContainsFunc(cli.Pages(), func(p cli.Page) bool { return p.Name == args[0]+" "+args[1] }) {
		sub = args[:2]
	}
	var out, errs bytes.Buffer
	cli.Run(append(slices.Clone(sub), "-no-such-flag"), strings.NewReader(""), &out, &errs)
	_, allowed, ok := strings.Cut(errs.String(), "allowed are ")
	if !ok {
		if !strings.Contains(errs.String(), "takes no arguments") && !regexp.MustCompile(`^[0-9]`).MatchString(args[0]) {
			t.Errorf("%s: %s: %s", c.page, c.line, strings.TrimSpace(errs.String()))
		}
		return
	}
	flags := strings.Split(strings.TrimSpace(allowed), ", ")
	for _, a := range args[len(sub):] {
		name, _, _ := strings.Cut(strings.TrimLeft(a, "-"), "=")
		if strings.HasPrefix(a, "-") && regexp.MustCompile(`^[a-z]`).MatchString(name) && name != "h" && name != "help" && !slices.Contains(flags, "-"+name) {
			t.Errorf("%s: %s: there is no flag %s; allowed are %s", c.page, c.line, a, allowed)
		}
	}
}

// runs runs a command that needs neither an agent nor data, a simulation with one seed and few jobs. It
// reports whether it did.
func runs(t *testing.T, c command) bool {
	t.Helper()
	words := strings.Fields(c.line)
	switch {
	case strings.HasPrefix(c.line, "ebbtide decide --example"):
		var snapshot, out, errs bytes.Buffer
		line, _, _ := strings.Cut(c.line, " > ")
		first, second, piped := strings.Cut(line, " | ebbtide ")
		must.Eq(t, 0, cli.Run(strings.Fields(first)[1:], nil, &snapshot, &errs), must.Sprint(c, errs.String()))
		if piped {
			must.Eq(t, 0, cli.Run(strings.Fields(second), &snapshot, &out, &errs), must.Sprint(c, errs.String()))
			must.StrContains(t, out.String(), `"why"`)
		}
	case strings.HasPrefix(c.line, "ebbtide sim") && len(words) > 2 && !strings.Contains(c.line, "DIR") && !strings.Contains(c.line, "scale.hcl"):
		args := words[1:]
		for i, w := range args {
			switch {
			case i > 0 && args[i-1] == "-scenario":
				args[i] = filepath.Join(root, w)
			case i > 0 && (args[i-1] == "-csv" || args[i-1] == "-plot"):
				args[i] = filepath.Join(t.TempDir(), w)
			case i > 0 && args[i-1] == "-seeds":
				args[i] = "1"
			}
		}
		args = append(args, "-jobs", "3")
		var out, errs bytes.Buffer
		must.Eq(t, 0, cli.Run(args, nil, &out, &errs), must.Sprint(c, errs.String()))
	case regexp.MustCompile(`^ebbtide validate jobspecs/\S+$`).MatchString(c.line):
		var out, errs bytes.Buffer
		must.Eq(t, 0, cli.Run([]string{"validate", filepath.Join(root, words[2])}, nil, &out, &errs), must.Sprint(c, out.String(), errs.String()))
	default:
		return false
	}
	return true
}
