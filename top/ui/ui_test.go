// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package ui

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/top"
)

type cluster struct {
	view    *top.View
	err     error
	visible []top.Key
	budget  int
}

func (c *cluster) Refresh(_ context.Context, visible []top.Key, budget int) (*top.View, error) {
	c.visible, c.budget = visible, budget
	return c.view, c.err
}

func (c *cluster) Curve(context.Context, top.Task) ([]status.Row, error) { return nil, c.err }

func tasks(n int) *top.View {
	v := &top.View{Time: time.Now(), Nodes: []top.Node{{Name: "one", State: "ready"}}}
	for i := range n {
		namespace := "ml"
		if n <= 100 && i%2 == 1 {
			namespace = "vision"
		}
		v.Tasks = append(v.Tasks, top.Task{Namespace: namespace, Job: fmt.Sprintf("job-%04d", i), Task: "t", Alloc: fmt.Sprint(i), Node: "one",
			Status: &status.Status{Metric: "loss", Use: status.Number(float64(i) / float64(n))}})
	}
	v.Finish()
	return v
}

func begin(t *testing.T, c *cluster) model {
	t.Helper()
	m := newModel(context.Background(), c, Options{Interval: 2 * time.Second, PerSecond: 100, Query: top.Query{Sort: "job"}})
	return reread(send(m, tea.WindowSizeMsg{Width: 80, Height: 24}))
}

func reread(m model) model { return send(m, m.refresh()()) }

func send(m model, msgs ...tea.Msg) model {
	for _, msg := range msgs {
		next, _ := m.Update(msg)
		m = next.(model)
	}
	return m
}

func press(m model, names ...string) model {
	special := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "up": tea.KeyUp, "down": tea.KeyDown, "end": tea.KeyEnd, "home": tea.KeyHome,
		"pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp, "backspace": tea.KeyBackspace, "tab": tea.KeyTab}
	for _, name := range names {
		k := tea.KeyPressMsg{Code: special[name]}
		if k.Code == 0 {
			k.Code, k.Text = []rune(name)[0], name
		}
		m = send(m, k)
	}
	return m
}

func shown(m model) string { return ansi.Strip(strings.Join(m.lines(), "\n")) }

// With a thousand tasks the visible ones are read first.
func TestThousand(t *testing.T) {
	c := &cluster{view: tasks(1000)}
	m := begin(t, c)
	must.Eq(t, 24, len(m.lines()))
	must.Eq(t, 200, c.budget)
	must.StrContains(t, shown(m), "> job-0000")
	m = press(m, "end")
	must.StrContains(t, shown(m), "> job-0999")
	must.StrNotContains(t, shown(m), "job-0980")
	m = reread(m)
	must.Len(t, 19, c.visible)
	must.Eq(t, top.Key{Alloc: "999", Task: "t"}, c.visible[18])
	m = press(m, "home", "pgdown", "down")
	must.StrContains(t, shown(m), "> job-0020")

	// The cursor follows its task.
	m = press(m, "s", "s", "s", "s", "s", "s")
	must.StrContains(t, shown(m), "sort: cpu")
	must.StrContains(t, shown(m), "> job-0020")
	c.view = tasks(30)
	m = reread(m)
	must.StrContains(t, shown(m), "> job-0020")
	c.view = tasks(3)
	m = reread(m)
	must.StrContains(t, shown(m), "> job-0000") // lowest use
	c.view = tasks(0)
	must.StrContains(t, shown(reread(m)), "No task runs under Ebbtide.")
}

func TestFilter(t *testing.T) {
	m := press(begin(t, &cluster{view: tasks(100)}), "/", "0", "7", "q")
	must.StrContains(t, shown(m), "filter: 07q_") // letters, not commands
	must.StrContains(t, shown(m), "none")
	m = press(m, "backspace")
	must.StrContains(t, shown(m), "job-0007")
	must.StrContains(t, shown(m), "job-0070")
	must.StrNotContains(t, shown(m), "job-0008")
	m = send(m, tea.PasteMsg{Content: "\x1b[2J"})
	must.StrContains(t, shown(m), "filter: 07?[2J_")
	m = press(m, "esc")
	must.StrContains(t, shown(m), "job-0008")
	m = press(m, "n")
	must.StrContains(t, shown(m), "namespace: ml")
	must.StrNotContains(t, shown(m), "job-0001")
	m = press(m, "n", "n")
	must.StrContains(t, shown(m), "job-0001")
}

func TestDetail(t *testing.T) {
	c := &cluster{view: tasks(2)}
	m := press(begin(t, c), "down", "enter")
	must.StrContains(t, shown(m), "vision/job-0001")
	c.view = tasks(1)
	m = reread(m)
	must.StrContains(t, shown(m), "vision/job-0001")
	must.StrContains(t, shown(m), "the task has stopped")
	m = press(m, "esc")
	must.StrContains(t, shown(m), "> job-0000")
	for _, tab := range []string{"2", "3", "4"} {
		press(m, tab, "enter", "down", "up", "esc") // no tasks to open
	}
	must.StrContains(t, shown(press(m, "?")), "Columns")
}

func TestErrors(t *testing.T) {
	c := &cluster{err: errors.New("connection \x1b refused")}
	m := begin(t, c)
	must.StrContains(t, shown(m), "connection ? refused")
	press(m, "enter", "n", "g", "s", "/", "x", "esc", "?", "esc")
	c.view, c.err = tasks(1), nil
	m = reread(m)
	must.StrContains(t, shown(m), "job-0000")
	c.view.Error = "the lists are old"
	must.StrContains(t, shown(reread(m)), "! the lists are old")
	c.view, c.err = nil, errors.New("gone")
	must.StrContains(t, shown(reread(m)), "! gone")
	must.StrContains(t, shown(reread(m)), "job-0000")
}

func TestSizes(t *testing.T) {
	m := begin(t, &cluster{view: tasks(50)})
	for width := 0; width < 90; width += 3 {
		for _, height := range []int{0, 1, 3, 5, 6, 24} {
			for _, keys := range [][]string{nil, {"end"}, {"enter"}, {"?"}, {"2"}, {"/", "x"}} {
				sized := press(send(m, tea.WindowSizeMsg{Width: width, Height: height}), keys...)
				lines := sized.lines()
				must.Eq(t, max(height, 1), len(lines))
				for _, line := range lines {
					if wide := ansi.StringWidth(line); wide > max(width, 1) {
						t.Fatalf("%d × %d, %v: %q has %d columns", width, height, keys, line, wide)
					}
				}
			}
		}
	}
}
