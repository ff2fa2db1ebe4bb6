// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package page

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/top/fake"
)

// page is a cluster's page.
type page struct {
	t   *testing.T
	url string
	log *bytes.Buffer
	srv *server
}

// serve serves a cluster's page until the test ends, and checks that no goroutine remains.
func serve(t *testing.T, c *fake.Cluster, open bool) *page {
	t.Helper()
	nomad := httptest.NewServer(c)
	t.Cleanup(nomad.Close)
	p := &page{t: t, log: new(bytes.Buffer)}
	o := Options{
		Nomad: config.Nomad{Address: nomad.URL}, ShimNamespace: "default", ShimPath: "ebbtide/shim", Log: hclog.New(&hclog.LoggerOptions{Output: p.log, Level: hclog.Trace}),
		times: times{refresh: 20 * time.Millisecond, past: 20 * time.Millisecond, token: 50 * time.Millisecond, linger: 50 * time.Millisecond, beat: 50 * time.Millisecond},
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.srv = newServer(ctx, o, open)
	http := httptest.NewUnstartedServer(p.srv)
	http.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	http.Start()
	p.url = http.URL
	t.Cleanup(func() {
		cancel()
		http.Close()
		p.srv.wait() // blocks if a goroutine does not end
	})
	return p
}

// get requests a path; each header is "name: value".
func (p *page) get(path string, headers ...string) (status int, body string, h http.Header) {
	p.t.Helper()
	return p.do(http.MethodGet, path, "", headers...)
}

func (p *page) do(method, path, body string, headers ...string) (int, string, http.Header) {
	p.t.Helper()
	r := p.request(method, path, body, headers...)
	answer, err := http.DefaultClient.Do(r)
	must.NoError(p.t, err)
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	must.NoError(p.t, err)
	return answer.StatusCode, string(data), answer.Header
}

func (p *page) request(method, path, body string, headers ...string) *http.Request {
	r, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, strings.NewReader(body))
	must.NoError(p.t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if r.Header.Set(name, value); name == "Host" {
			r.Host = value
		}
	}
	return r
}

// follower reads a stream.
type follower struct {
	t      *testing.T
	status int
	body   io.ReadCloser
	lines  *bufio.Scanner
	id     string
	head   head
	items  map[string]json.RawMessage
	events int // with items
	sent   int // number of items
}

func (p *page) follow(headers ...string) *follower {
	p.t.Helper()
	answer, err := http.DefaultClient.Do(p.request(http.MethodGet, "/api/events", "", headers...))
	must.NoError(p.t, err)
	f := &follower{t: p.t, status: answer.StatusCode, body: answer.Body, lines: bufio.NewScanner(answer.Body), items: make(map[string]json.RawMessage)}
	f.lines.Buffer(nil, 16<<20)
	p.t.Cleanup(func() { _ = answer.Body.Close() })
	return f
}

// next reads an event; "" at the end of the stream.
func (f *follower) next() (event string) {
	for f.lines.Scan() {
		text := f.lines.Text()
		if name, ok := strings.CutPrefix(text, "event: "); ok {
			event = name
			continue
		}
		data, ok := strings.CutPrefix(text, "data: ")
		if !ok {
			continue
		}
		switch event {
		case "hello":
			var hello struct{ ID string }
			must.NoError(f.t, json.Unmarshal([]byte(data), &hello))
			f.id = hello.ID
		case "frame":
			var frame struct {
				Head head                 `json:"head"`
				Gone []string             `json:"gone"`
				Set  [][2]json.RawMessage `json:"set"`
			}
			must.NoError(f.t, json.Unmarshal([]byte(data), &frame))
			must.LessEq(f.t, maxSetItems, len(frame.Set))
			f.head = frame.Head
			if len(frame.Set) > 0 {
				f.events++
				f.sent += len(frame.Set)
			}
			for _, key := range frame.Gone {
				delete(f.items, key)
			}
			for _, s := range frame.Set {
				var key string
				must.NoError(f.t, json.Unmarshal(s[0], &key))
				f.items[key] = s[1]
			}
		}
		return event
	}
	return ""
}

// until reads events until a condition holds.
func (f *follower) until(what string, holds func() bool) {
	f.t.Helper()
	for range 10_000 {
		if holds() {
			return
		}
		if f.next() == "" {
			break
		}
	}
	f.t.Fatalf("the stream has ended without %s", what)
}

func (f *follower) count(prefix string) (n int) {
	for key := range f.items {
		if strings.HasPrefix(key, prefix) {
			n++
		}
	}
	return n
}

func cluster() (c *fake.Cluster, mlp, vae string) {
	c = fake.New()
	c.Node("aa11", "one")
	mlp = c.Task("aa11", "ml", "mlp", nil)
	vae = c.Task("aa11", "vision", "vae", func(s *status.Status) { s.Fair.Late = true })
	return c, mlp, vae
}

// All files have the headers, use no external source, and have nothing inline.
func TestStatic(t *testing.T) {
	c, _, _ := cluster()
	p := serve(t, c, true)
	files, err := fs.Glob(static, "static/*")
	must.NoError(t, err)
	must.SliceNotEmpty(t, files)
	for _, file := range append(files, "static/") {
		code, body, h := p.get(strings.TrimSuffix(strings.TrimPrefix(file, "static"), "index.html"))
		must.Eq(t, http.StatusOK, code, must.Sprint(file))
		must.Eq(t, policyHeader, h.Get("Content-Security-Policy"))
		must.Eq(t, "nosniff", h.Get("X-Content-Type-Options"))
		must.Eq(t, "no-referrer", h.Get("Referrer-Policy"))
		must.Eq(t, "same-origin", h.Get("Cross-Origin-Resource-Policy"))
		must.Eq(t, "no-store", h.Get("Cache-Control"))
		for _, found := range regexp.MustCompile(`https?://[^"'\s]+`).FindAllString(body, -1) {
			must.Eq(t, "http://www.w3.org/2000/svg", found, must.Sprint(file)) // a namespace, not an address
		}
		if strings.HasSuffix(file, "/") || strings.HasSuffix(file, ".html") {
			must.False(t, regexp.MustCompile(`<style|\sstyle=|\son[a-z]+=|<script[^>]*>[^<]`).MatchString(body))
		}
		must.StrNotContains(t, body, "innerHTML")
	}
	code, _, h := p.get("/nothing")
	must.Eq(t, http.StatusNotFound, code)
	must.Eq(t, policyHeader, h.Get("Content-Security-Policy"))
	code, _, _ = p.do(http.MethodPost, "/api/task", "")
	must.Eq(t, http.StatusMethodNotAllowed, code)
}

// On a loopback address a request must name one, and only the page may query.
func TestGuard(t *testing.T) {
	c, mlp, _ := cluster()
	c.Tokens = map[string]bool{"": true}
	p := serve(t, c, true)
	f := p.follow()
	f.until("a frame", func() bool { return f.count("task:") == 2 })
	path := "/api/task?alloc=" + mlp + "&task=mlp"
	u, err := url.Parse(p.url)
	must.NoError(t, err)
	for _, tc := range []struct {
		want    int
		headers []string
	}{
		{200, nil},
		{200, []string{"Host: localhost:8080"}},
		{200, []string{"Host: [::1]:8080"}},
		{200, []string{"Sec-Fetch-Site: same-origin", "Origin: http://" + u.Host}},
		{421, []string{"Host: evil.example:4680"}},
		{421, []string{"Host: 127.0.0.1.evil.example"}},
		{421, []string{"Host: 192.0.2.7:4680"}},
		{403, []string{"Origin: http://evil.example"}},
		{403, []string{"Origin: https://" + u.Host}},
		{403, []string{"Origin: null"}},
		{403, []string{"Sec-Fetch-Site: cross-site"}},
		{403, []string{"Sec-Fetch-Site: same-site"}},
		{403, []string{"Sec-Fetch-Site: none"}},
	} {
		code, body, h := p.get(path, tc.headers...)
		must.Eq(t, tc.want, code, must.Sprint(tc.headers))
		must.Eq(t, code == 200, strings.Contains(body, "fsp.preferred"))
		must.Eq(t, "", h.Get("Access-Control-Allow-Origin"))
	}
	for _, hostile := range []string{"Host: evil.example", "Origin: http://evil.example"} {
		code, body, _ := p.get("/api/events", hostile)
		must.True(t, code >= 400)
		must.StrNotContains(t, body, "mlp")
	}
}

// Other addresses require each viewer's token, which is used to read.
func TestToken(t *testing.T) {
	c, mlp, _ := cluster()
	c.Tokens = map[string]bool{"good": true, "other": true}
	p := serve(t, c, false)
	task := "/api/task?alloc=" + mlp + "&task=mlp"
	for _, path := range []string{"/api/events", task, "/api/policies?node=aa11"} {
		code, body, _ := p.get(path)
		must.Eq(t, http.StatusUnauthorized, code)
		must.StrContains(t, body, "a Nomad token is required")
	}
	must.Eq(t, 0, c.Counts()["nodes"])
	code, body, _ := p.get("/api/events", "X-Nomad-Token: wrong")
	must.Eq(t, http.StatusForbidden, code)
	must.StrContains(t, body, "Nomad does not know this token")
	code, _, _ = p.get(task, "X-Nomad-Token: wrong")
	must.Eq(t, http.StatusConflict, code)
	code, _, _ = p.get("/", "Host: page.example")
	must.Eq(t, http.StatusOK, code) // another name resolves to it

	f := p.follow("X-Nomad-Token: good")
	f.until("a frame", func() bool { return f.count("task:") == 2 })
	code, body, _ = p.get(task, "X-Nomad-Token: good")
	must.Eq(t, http.StatusOK, code)
	must.StrContains(t, body, "fsp.preferred")
	code, _, _ = p.get(task, "X-Nomad-Token: other") // no page is open with this token
	must.Eq(t, http.StatusConflict, code)

	// A revoked token ends the stream.
	c.Lock()
	delete(c.Tokens, "good")
	c.Unlock()
	for last := ""; ; {
		event := f.next()
		if event == "" {
			must.Eq(t, "denied", last)
			break
		}
		last = event
	}
	must.StrNotContains(t, p.log.String(), "good")
}

// Without ACLs no token authorises viewers.
func TestToken_noACL(t *testing.T) {
	c, _, _ := cluster()
	code, body, _ := serve(t, c, false).get("/api/events", "X-Nomad-Token: any")
	must.Eq(t, http.StatusForbidden, code)
	must.StrContains(t, body, "Nomad's ACLs are off")
	f := serve(t, c, true).follow("X-Nomad-Token: any")
	must.Eq(t, http.StatusOK, f.status)
	f.until("a frame", func() bool { return f.count("task:") == 2 })
}

// Only changes are sent.
func TestEvents(t *testing.T) {
	c, mlp, vae := cluster()
	p := serve(t, c, true)
	f := p.follow()
	f.until("everything", func() bool {
		return f.count("task:") == 2 && f.count("node:") == 1 && f.items["shim"] != nil && f.items["ended"] != nil
	})
	must.Eq(t, 1, f.head.Totals.Late)
	var r row
	must.NoError(t, json.Unmarshal(f.items["task:"+vae+"/vae"], &r))
	must.Eq(t, "late", r.State)
	must.StrContains(t, string(f.items["shim"]), `"leader":null`)

	// Without changes, frames have no items.
	sent := f.sent
	for range 5 {
		must.NotEq(t, "", f.next())
	}
	must.Eq(t, sent, f.sent)

	// Only a changed task is sent, with the curve that a viewer sees.
	body := fmt.Sprintf(`{"id":%q,"tasks":[[%q,"mlp"]]}`, f.id, mlp)
	code, _, _ := p.do(http.MethodPut, "/api/visible", body)
	must.Eq(t, http.StatusNoContent, code)
	f.until("a curve", func() bool { return strings.Contains(string(f.items["task:"+mlp+"/mlp"]), `"values":[`) })
	must.Eq(t, sent+1, f.sent)

	c.Lock()
	c.Allocs = c.Allocs[:1]
	c.Unlock()
	// Nodes and tasks are listed every five seconds.
	f.until("one task", func() bool { return f.count("task:") == 1 })

	for _, tc := range []struct {
		body string
		want int
	}{
		{"{", 400}, {`{"id":"x"}`, 404}, {strings.Repeat(" ", maxVisible+1) + body, 400},
		{`{"tasks":[` + strings.TrimSuffix(strings.Repeat(`["a","b"],`, maxVisibleTasks+1), ",") + `]}`, 400},
	} {
		code, _, _ := p.do(http.MethodPut, "/api/visible", tc.body)
		must.Eq(t, tc.want, code)
	}
}

// Many tasks are sent in parts.
func TestEvents_parts(t *testing.T) {
	c := fake.Example(maxSetItems + 200)
	p := serve(t, c, true)
	p.srv.watches.opts.times.refresh, p.srv.watches.opts.times.past = 200*time.Millisecond, 200*time.Millisecond
	f := p.follow()
	f.until("all tasks", func() bool { return f.count("task:") == maxSetItems+200 })
	must.Greater(t, 1, f.events)
	f.until("the past", func() bool { return f.count("done:") == 6 && f.count("ended:") == 40 })
	late := p.follow() // a second viewer gets everything
	late.until("all tasks", func() bool { return late.count("task:") == maxSetItems+200 })
}

// One reader serves all viewers of a token; it stops without viewers, and starts again.
func TestWatch(t *testing.T) {
	c, _, _ := cluster()
	c.Tokens = map[string]bool{"": true, "b": true}
	p := serve(t, c, true)
	first, second, other := p.follow(), p.follow(), p.follow("X-Nomad-Token: b")
	for _, f := range []*follower{first, second, other} {
		f.until("a frame", func() bool { return f.count("task:") == 2 })
	}
	count := func() int {
		p.srv.watches.mu.Lock()
		defer p.srv.watches.mu.Unlock()
		return len(p.srv.watches.all)
	}
	must.Eq(t, 2, count())
	must.Eq(t, 2, c.Counts()["nodes"])
	for _, f := range []*follower{first, second, other} {
		must.NoError(t, f.body.Close())
	}
	p.srv.wait()
	must.Eq(t, 0, count())
	code, _, _ := p.get("/api/task?alloc=x&task=y")
	must.Eq(t, http.StatusConflict, code)
	again := p.follow()
	again.until("a frame", func() bool { return again.count("task:") == 2 })
}

// Viewers beyond the maximum are refused.
func TestWatch_limits(t *testing.T) {
	c, _, _ := cluster()
	p := serve(t, c, true)
	p.srv.watches.opts.times = defaultTimes() // so many viewers with short intervals would be slow
	for range maxViewers {
		must.Eq(t, http.StatusOK, p.follow().status)
	}
	code, body, _ := p.get("/api/events")
	must.Eq(t, http.StatusServiceUnavailable, code)
	must.StrContains(t, body, "64 pages are open")
	for i := range maxWatches - 1 {
		must.Eq(t, http.StatusOK, p.follow(fmt.Sprintf("X-Nomad-Token: %d", i)).status)
	}
	code, body, _ = p.get("/api/events", "X-Nomad-Token: more")
	must.Eq(t, http.StatusServiceUnavailable, code)
	must.StrContains(t, body, "64 tokens are in use")
}

// While Nomad is unreachable, the page shows the error.
func TestEvents_down(t *testing.T) {
	c, _, _ := cluster()
	c.Down = true
	p := serve(t, c, true)
	f := p.follow()
	f.until("an error", func() bool { return strings.Contains(f.head.Error, "No cluster leader") })
	c.Lock()
	c.Down = false
	c.Unlock()
	f.until("tasks", func() bool { return f.head.Error == "" && f.count("task:") == 2 })

	// On other addresses the token cannot be checked, which is not a denial.
	c.Lock()
	c.Down = true
	c.Unlock()
	code, _, _ := serve(t, c, false).get("/api/events", "X-Nomad-Token: x")
	must.Eq(t, http.StatusBadGateway, code)
}

func TestTask(t *testing.T) {
	c, mlp, vae := cluster()
	delete(c.History, vae)
	p := serve(t, c, true)
	f := p.follow()
	f.until("a frame", func() bool { return f.count("task:") == 2 })
	var got struct {
		State    string
		Events   []any
		Status   *status.Status
		Curves   curves
		NoCurves string `json:"no_curves"`
	}
	code, body, _ := p.get("/api/task?alloc=" + mlp + "&task=mlp")
	must.Eq(t, http.StatusOK, code)
	must.NoError(t, json.Unmarshal([]byte(body), &got))
	must.Eq(t, "NL", got.State)
	must.Eq(t, "loss", got.Status.Metric)
	must.Len(t, 2, got.Events)
	must.Len(t, 300, got.Curves.Time)
	must.Len(t, 300, got.Curves.Limit)
	must.False(t, got.Curves.Steps)
	alone := columns([]status.Row{{Value: math.NaN(), Step: 7}})
	must.True(t, alone.Steps)
	must.Eq(t, []status.Number{7}, alone.Value)
	_, body, _ = p.get("/api/task?alloc=" + vae + "&task=vae")
	must.NoError(t, json.Unmarshal([]byte(body), &got))
	must.StrContains(t, got.NoCurves, "reading its history: file does not exist")
	code, _, _ = p.get("/api/task?alloc=none&task=vae")
	must.Eq(t, http.StatusNotFound, code)
}

func TestPolicies(t *testing.T) {
	c := fake.Example(8)
	p := serve(t, c, true)
	f := p.follow()
	f.until("a frame", func() bool { return f.count("task:") == 8 })
	node := c.Nodes[0].ID
	code, body, _ := p.get("/api/policies?node=" + node)
	must.Eq(t, http.StatusOK, code, must.Sprint(body))
	var got comparison
	must.NoError(t, json.Unmarshal([]byte(body), &got))
	must.Eq(t, "auto", got.Running)
	must.Len(t, 6, got.Policies)
	must.Len(t, 6, got.Tasks)
	for _, task := range got.Tasks {
		must.NotEq(t, "", task.Job)
		must.Len(t, 6, task.Decisions)
		must.NotNil(t, task.Decisions[0])
		must.NotEq(t, "", task.Decisions[0].Why)
	}
	code, _, _ = p.get("/api/policies?node=none")
	must.Eq(t, http.StatusNotFound, code)
	c.Lock()
	clear(c.Snapshots)
	c.Unlock()
	code, body, _ = p.get("/api/policies?node=" + node)
	must.Eq(t, http.StatusBadGateway, code)
	must.StrContains(t, body, "has a snapshot: there was no decision yet")
}

// A task in a namespace that the token may not read has no name.
func TestPolicies_unknown(t *testing.T) {
	c := fake.Example(8)
	p := serve(t, c, true)
	f := p.follow()
	f.until("a frame", func() bool { return f.count("task:") == 8 })
	c.Lock()
	for alloc, text := range c.Snapshots {
		c.Snapshots[alloc] = strings.ReplaceAll(text, c.Allocs[1].ID, "ffffffff-0000-4000-8000-000000000000")
	}
	c.Unlock()
	_, body, _ := p.get("/api/policies?node=" + c.Nodes[0].ID)
	must.StrNotContains(t, strings.Split(body, `"tasks":`)[1], `"alloc":"ffffffff`)
	must.StrContains(t, body, `"job":"","task":"","namespace":"","alloc":""`)
}

// Serve ends with its context, even while a page is open.
func TestServe(t *testing.T) {
	c, _, _ := cluster()
	nomad := httptest.NewServer(c)
	defer nomad.Close()
	o := Options{UI: config.UI{Address: "127.0.0.1:0"}, Nomad: config.Nomad{Address: nomad.URL}, ShimNamespace: "default", ShimPath: "ebbtide/shim", Log: hclog.NewNullLogger()}
	ctx, cancel := context.WithCancel(t.Context())
	urls, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- Serve(ctx, o, func(url string) { urls <- url }) }()
	p := &page{t: t, url: strings.TrimSuffix(<-urls, "/")}
	f := p.follow()
	f.until("a frame", func() bool { return f.count("task:") == 2 })
	cancel()
	must.NoError(t, <-done)
	for f.next() != "" { // sent earlier
	}

	o.Address = "127.0.0.1:99999"
	must.ErrorContains(t, Serve(t.Context(), o, nil), "serving the page: ")
	o.CertFile, o.KeyFile = "none.pem", "none.key"
	must.ErrorContains(t, Serve(t.Context(), o, nil), "reading the certificate")
}
