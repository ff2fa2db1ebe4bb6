// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package ui shows a top.View live in a terminal. Package top renders the lines.
package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/top"
)

// Source is implemented by package gather. Curve is called concurrently with Refresh.
type Source interface {
	Refresh(ctx context.Context, visible []top.Key, budget int) (*top.View, error)
	Curve(ctx context.Context, t top.Task) ([]status.Row, error)
}

type Options struct {
	Address  string // of Nomad's API, displayed until the first view
	Query    top.Query
	Interval time.Duration
	// PerSecond limits the files read per second.
	PerSecond int
	ASCII     bool
}

const curveInterval = 5 * time.Second

// Run displays a cluster until the user quits or ctx ends, which is not an error.
func Run(ctx context.Context, source Source, o Options, in io.Reader, out io.Writer) error {
	// Quitting cancels a running read.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	program := tea.NewProgram(newModel(ctx, source, o), tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler())
	_, err := program.Run()
	if err != nil && (ctx.Err() == nil || !errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, tea.ErrProgramPanic)) {
		return fmt.Errorf("running the terminal UI: %w", err)
	}
	return nil
}

type screen int

const (
	list screen = iota
	detail
	help
)

// model is the Bubble Tea model.
type model struct {
	ctx    context.Context // passed here, since commands receive none
	source Source
	opts   Options
	layout top.Layout
	height int

	view  *top.View // nil before the first read
	err   error     // of the last read
	query top.Query
	tab   top.Tab

	screen screen
	typing bool // into the filter
	table  top.Table
	cursor int // selected row of the table
	first  int // first visible row
	scroll int // first visible line of the detail view or help

	task    *top.Task // in the detail view; kept when the task ends
	gone    bool
	curve   []status.Row
	curveAt time.Time
}

func newModel(ctx context.Context, source Source, o Options) model {
	return model{ctx: ctx, source: source, opts: o, query: o.Query, layout: top.Layout{Width: 80, ASCII: o.ASCII}, height: 24}
}

type (
	refreshed struct {
		view *top.View
		err  error
	}
	due    struct{}
	curved struct {
		task top.Key
		rows []status.Row
		err  error
	}
)

func (m model) Init() tea.Cmd { return m.refresh() }

// refresh reads the cluster. Reads do not overlap.
func (m model) refresh() tea.Cmd {
	visible := m.visible()
	budget := max(1, int(float64(m.opts.PerSecond)*m.opts.Interval.Seconds()))
	return func() tea.Msg {
		v, err := m.source.Refresh(m.ctx, visible, budget)
		return refreshed{v, err}
	}
}

// visible returns the tasks on the screen, which are read first.
func (m model) visible() (keys []top.Key) {
	if m.screen == detail && m.task != nil {
		keys = append(keys, m.task.Key())
	}
	for i := m.first; i < min(m.first+m.page(), len(m.table.Lines)); i++ {
		if k := m.table.Lines[i].Task; k != (top.Key{}) {
			keys = append(keys, k)
		}
	}
	return keys
}

func (m model) readCurve() tea.Cmd {
	task := *m.task
	return func() tea.Msg {
		rows, err := m.source.Curve(m.ctx, task)
		return curved{task.Key(), rows, err}
	}
}

func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.layout.Width, m.height = max(msg.Width, 1), max(msg.Height, 1)
		m.fill()
	case refreshed:
		m.apply(msg)
		next := tea.Tick(m.opts.Interval, func(time.Time) tea.Msg { return due{} })
		if m.screen == detail && !m.gone && time.Since(m.curveAt) >= curveInterval {
			m.curveAt = time.Now()
			return m, tea.Batch(next, m.readCurve())
		}
		return m, next
	case due:
		return m, m.refresh()
	case curved:
		if m.task != nil && m.task.Key() == msg.task && msg.err == nil {
			m.curve = msg.rows
		}
	case tea.PasteMsg:
		if m.typing {
			m.query.Filter += top.Clean(msg.Content, false)
			m.fill()
		}
	case tea.KeyPressMsg:
		return m.key(msg)
	}
	return m, nil
}

func (m *model) apply(r refreshed) {
	if m.err = r.err; r.view == nil {
		return
	}
	m.view = r.view
	if m.task != nil {
		if t := m.view.Task(m.task.Key()); t != nil {
			m.task, m.gone = t, false
		} else {
			m.gone = true
		}
	}
	m.fill()
}

// fill renders the table; the cursor stays on its task.
func (m *model) fill() {
	if m.view == nil {
		return
	}
	var at top.Key
	if m.cursor < len(m.table.Lines) {
		at = m.table.Lines[m.cursor].Task
	}
	m.table = m.view.Table(m.tab, m.query, m.layout)
	if at != (top.Key{}) {
		if i := slices.IndexFunc(m.table.Lines, func(l top.Line) bool { return l.Task == at }); i >= 0 {
			m.cursor = i
		}
	}
	m.move(0)
}

func (m *model) move(rows int) {
	m.cursor = max(0, min(m.cursor+rows, len(m.table.Lines)-1))
	m.first = min(m.first, m.cursor)
	m.first = max(m.first, m.cursor-m.page()+1)
	m.first = max(0, min(m.first, len(m.table.Lines)-m.page()))
}

// Lines above and below the rows of a table.
const above, below = 4, 1

func (m model) page() int { return max(1, m.height-above-below) }

func (m model) key(k tea.KeyPressMsg) (tea.Model, tea.Cmd) {
	name := k.String()
	switch {
	case name == "ctrl+c":
		return m, tea.Quit
	case name == "ctrl+z":
		return m, tea.Suspend
	case m.typing:
		m.typeFilter(k)
		return m, nil
	case name == "q":
		return m, tea.Quit
	case m.screen != list:
		m.keyDetail(name)
		return m, nil
	}
	switch name {
	case "?", "h":
		m.screen, m.scroll = help, 0
	case "enter", "right", "l":
		return m.open()
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup", "ctrl+b":
		m.move(-m.page())
	case "pgdown", "ctrl+f", "space":
		m.move(m.page())
	case "home":
		m.move(-len(m.table.Lines))
	case "end", "G":
		m.move(len(m.table.Lines))
	case "g", "tab":
		m.show(top.Tab((int(m.tab) + 1) % len(top.Tabs())))
	case "shift+tab":
		m.show(top.Tab((int(m.tab) + len(top.Tabs()) - 1) % len(top.Tabs())))
	case "1", "2", "3", "4", "5", "6":
		m.show(top.Tab(name[0] - '1'))
	case "s":
		m.query.Sort = next(top.Sorts(), m.query.Sort)
		m.fill()
	case "r":
		m.query.Reverse = !m.query.Reverse
		m.fill()
	case "n":
		if m.view != nil {
			m.query.Namespace = next(append([]string{"*"}, m.view.Namespaces()...), m.query.Namespace)
			m.fill()
		}
	case "/":
		m.typing = true
	case "esc":
		m.query.Filter = ""
		m.fill()
	}
	return m, nil
}

// next returns the next element, cyclically.
func next(all []string, one string) string {
	return all[(max(slices.Index(all, one), 0)+1)%len(all)]
}

func (m *model) show(tab top.Tab) {
	m.tab, m.cursor, m.first, m.table = tab, 0, 0, top.Table{}
	m.fill()
}

func (m model) open() (tea.Model, tea.Cmd) {
	if m.view == nil || m.cursor >= len(m.table.Lines) {
		return m, nil
	}
	t := m.view.Task(m.table.Lines[m.cursor].Task)
	if t == nil {
		return m, nil
	}
	m.screen, m.task, m.gone, m.curve, m.scroll, m.curveAt = detail, t, false, nil, 0, time.Now()
	return m, m.readCurve()
}

func (m *model) typeFilter(k tea.KeyPressMsg) {
	switch k.String() {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.query.Filter = false, ""
	case "backspace":
		if runes := []rune(m.query.Filter); len(runes) > 0 {
			m.query.Filter = string(runes[:len(runes)-1])
		}
	case "ctrl+u":
		m.query.Filter = ""
	default:
		m.query.Filter += top.Clean(k.Text, false)
	}
	m.fill()
}

func (m *model) keyDetail(name string) {
	switch name {
	case "esc", "left", "backspace", "enter", "?":
		m.screen, m.task = list, nil
	case "up", "k":
		m.scroll--
	case "down", "j":
		m.scroll++
	case "pgup", "ctrl+b":
		m.scroll -= m.height - 2
	case "pgdown", "ctrl+f", "space":
		m.scroll += m.height - 2
	case "home":
		m.scroll = 0
	}
	m.scroll = max(0, min(m.scroll, len(m.body())-(m.height-1)))
}

// Bubble Tea drops attributes that the terminal does not support or NO_COLOR forbids; none carries
// information that is not in the text.
const (
	bold, faint, reverse, red = "\x1b[1m", "\x1b[2m", "\x1b[7m", "\x1b[31m"
	plain                     = "\x1b[m"
)

func (m model) View() tea.View {
	v := tea.NewView(strings.Join(m.lines(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "ebbtide top"
	return v
}

// lines returns exactly as many lines as the screen has.
func (m model) lines() []string {
	var out []string
	if m.screen == list {
		out = m.listLines()
	} else {
		body := m.body()
		out = append(out, body[min(m.scroll, len(body)):]...)
	}
	room := max(m.height-below, 0)
	out = out[:min(len(out), room)]
	for len(out) < room {
		out = append(out, "")
	}
	return append(out, m.footer())
}

func (m model) text(line string) string { return m.layout.Cut(line) }

func (m model) listLines() []string {
	title := "ebbtide top  " + m.opts.Address
	if m.view == nil {
		out := []string{bold + m.text(title) + plain, "", m.text("reading the cluster")}
		if m.err != nil {
			out = append(out, m.layout.Wrap(m.err.Error())...)
		}
		return out
	}
	title += "  " + m.view.Time.Format(time.TimeOnly) + " UTC"
	out := []string{bold + m.text(title) + plain, m.view.Summary(m.layout), m.text(m.choice())}
	if empty := m.view.Empty(); empty != "" {
		return append(append(out, ""), m.layout.Wrap(empty)...)
	}
	out = append(out, bold+m.table.Head+plain)
	if len(m.table.Lines) == 0 {
		out = append(out, m.text("  none"))
	}
	if m.tab >= top.Moves { // they are the shim's
		for _, note := range m.view.Notes {
			out = append(out, m.layout.Wrap(note)...)
		}
	}
	for i := m.first; i < min(m.first+m.page(), len(m.table.Lines)); i++ {
		out = append(out, m.row(m.table.Lines[i], i == m.cursor))
	}
	return out
}

func (m model) choice() string {
	var b strings.Builder
	for i, name := range top.Tabs() {
		if top.Tab(i) == m.tab {
			name = "[" + name + "]"
		}
		b.WriteString(name + " ")
	}
	order := m.query.Sort
	if order == "" {
		order = top.Sorts()[0]
	}
	if m.query.Reverse {
		order += ", reversed"
	}
	namespace := m.query.Namespace
	if namespace == "" {
		namespace = "*"
	}
	fmt.Fprintf(&b, "  sort: %s  namespace: %s", order, top.Clean(namespace, m.layout.ASCII))
	switch {
	case m.typing:
		b.WriteString("  filter: " + top.Clean(m.query.Filter, m.layout.ASCII) + "_")
	case m.query.Filter != "":
		b.WriteString("  filter: " + top.Clean(m.query.Filter, m.layout.ASCII))
	}
	return b.String()
}

// row renders a table line. The selected one also has a marker.
func (m model) row(l top.Line, chosen bool) string {
	text := l.Text
	switch {
	case chosen:
		text = reverse + m.layout.Fill(">"+strings.TrimPrefix(text, " ")) + plain
	case l.Faint:
		text = faint + text + plain
	case l.Alert:
		text = red + text + plain
	}
	return text
}

func (m model) footer() string {
	keys := "q quit  ? help  enter detail  s sort  / filter  n namespace  g next table"
	switch {
	case m.typing:
		keys = "type words; enter applies them, esc clears them"
	case m.screen == detail && m.gone:
		keys = "the task has stopped  esc back  q quit"
	case m.screen != list:
		keys = "esc back  up/down scroll  q quit"
	case m.err != nil:
		keys = "! " + top.Clean(m.err.Error(), m.layout.ASCII)
	case m.view != nil && m.view.Error != "":
		keys = "! " + top.Clean(m.view.Error, m.layout.ASCII)
	}
	return faint + m.text(keys) + plain
}

// body returns the lines of the detail view or help.
func (m model) body() []string {
	if m.screen == detail && m.task != nil {
		return m.view.Detail(m.task, m.curve, m.layout)
	}
	var out []string
	for line := range strings.SplitSeq(helpText, "\n") {
		out = append(out, m.text(line))
	}
	if m.view != nil && len(m.view.Notes) > 0 {
		out = append(out, "", "Unavailable:")
		for _, note := range m.view.Notes {
			out = append(out, m.layout.Wrap(note)...)
		}
	}
	return out
}

const helpText = `Keys

  up, down, j, k      previous or next row; also PgUp, PgDn, Home, End
  enter               details of a task: its curve, events and decisions
  esc                 back; in a table: clear the filter
  g, Tab, 1 to 6      next table, or tasks, nodes, GPUs, moves, queue, owners
  s, r                sort by the next column; reverse the order
  /                   filter: words that must match, such as a job, a node,
                      a metric, a rule, or late, stale, NL, parked
  n                   next namespace
  q, Ctrl-C           quit

Columns

  STATE     NL growing, WL watching, CL completing; of a service G, S, B; late: its
            fair share would have finished it by now; stale: no recent data;
            move; of a shared GPU parked, yielding, waiting, lost
  END       time to its expected end; FAIR: how much later (+) than with its
            fair share, or sooner (-)
  CPU/LIM%  CPU used and limit, in percent of the node's pool
  SAVED     time by which tasks ended earlier than with their fair shares
  LEFT      time the pool needs for the known remaining work
  SHARE     of an owner in the queue: its fair share of the cluster now; USE: what its
            running jobs have`
