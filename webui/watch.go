// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package webui

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/shim/memory"
	"github.com/ebbtide/ebbtide/top"
	"github.com/ebbtide/ebbtide/top/gather"
)

// times are those of a watch.
type times struct {
	refresh time.Duration // between two refreshes of nodes and tasks
	past    time.Duration // between two looks at moves and at tasks that have ended
	token   time.Duration // after which a token is checked again
	linger  time.Duration // how long a cluster is read on without a viewer, as a page may be reloaded
	beat    time.Duration // after which a stream says that it is alive
}

func defaultTimes() times {
	return times{refresh: 2 * time.Second, past: 15 * time.Second, token: time.Minute, linger: 10 * time.Second, beat: 15 * time.Second}
}

const (
	// filesPerRefresh is how many files of allocations a refresh reads at most.
	filesPerRefresh = 200
	// mostWatches is how many tokens may be used at a time, mostViewers how many pages may be open
	// with one, and mostChecks how many tokens are checked side by side.
	mostWatches = 64
	mostViewers = 64
	mostChecks  = 16
	// checkWithin bounds the check of a token.
	checkWithin = 5 * time.Second
)

// denial is why a viewer is shown nothing.
type denial struct {
	status int // of HTTP
	text   string
}

func (d denial) Error() string { return d.text }

// watches are the watches by their tokens' hashes.
type watches struct {
	ctx    context.Context
	opts   Options
	checks chan struct{}
	group  sync.WaitGroup

	mu  sync.Mutex
	all map[[sha256.Size]byte]*watch
}

func newWatches(ctx context.Context, o Options) *watches {
	if o.times == (times{}) {
		o.times = defaultTimes()
	}
	return &watches{ctx: ctx, opts: o, checks: make(chan struct{}, mostChecks), all: make(map[[sha256.Size]byte]*watch)}
}

func (ws *watches) wait() { ws.group.Wait() }

// find returns the watch of a token at which somebody looks; nil if there is none.
func (ws *watches) find(token string) *watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.all[sha256.Sum256([]byte(token))]
}

// join adds a viewer to the watch of a token, which begins with its first one. The token is
// checked first. Without open it must be one of Nomad's ACL.
func (ws *watches) join(ctx context.Context, token string, open bool) (*watch, *viewer, error) {
	if err := ws.check(ctx, token, open); err != nil {
		return nil, nil, err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	key := sha256.Sum256([]byte(token))
	w := ws.all[key]
	if w == nil {
		if len(ws.all) >= mostWatches {
			return nil, nil, denial{http.StatusServiceUnavailable, fmt.Sprintf("%d tokens are in use at this time, which is the most", mostWatches)}
		}
		client, err := ws.opts.client(token)
		if err != nil {
			return nil, nil, denial{http.StatusInternalServerError, err.Error()}
		}
		w = &watch{
			opts: ws.opts, client: client, viewers: make(map[*viewer]bool),
			gatherer: gather.New(gather.Options{Client: client, Shim: memory.Store{Client: client, Namespace: ws.opts.ShimNamespace, Path: ws.opts.ShimPath}}),
			items:    make(map[string]item), asking: make(chan struct{}, 2),
		}
		ws.all[key] = w
		ws.group.Go(func() {
			defer client.Close()
			w.run(ws.ctx, func(ctx context.Context) error { return ws.check(ctx, token, open) }, func() bool { return ws.remove(key) })
		})
	}
	v, err := w.join()
	return w, v, err
}

// remove removes a watch, unless somebody looks.
func (ws *watches) remove(key [sha256.Size]byte) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w := ws.all[key]
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.viewers) > 0 && w.denied == nil && ws.ctx.Err() == nil {
		return false
	}
	delete(ws.all, key)
	return true
}

// check asks Nomad whether it knows a token. The error is a denial, or says that Nomad did not
// answer.
func (ws *watches) check(ctx context.Context, token string, open bool) error {
	if token == "" && open {
		return nil // the process's own: what it may read is seen
	}
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	select {
	case ws.checks <- struct{}{}:
		defer func() { <-ws.checks }()
	case <-ctx.Done():
		return denial{http.StatusServiceUnavailable, "too many tokens are being checked: try again"}
	}
	client, err := ws.opts.client(token)
	if err != nil {
		return denial{http.StatusInternalServerError, err.Error()}
	}
	defer client.Close()
	self, _, err := client.ACLTokens().Self((&api.QueryOptions{}).WithContext(ctx))
	var response api.UnexpectedResponseError
	switch {
	case err == nil && self.ExpirationTime != nil && self.ExpirationTime.Before(time.Now()):
		return denial{http.StatusForbidden, "the token has expired"}
	case err == nil:
		return nil
	case !errors.As(err, &response):
		return fmt.Errorf("checking the token: Nomad cannot be reached: %w", err)
	case strings.Contains(err.Error(), "ACL support disabled"):
		if open {
			return nil
		}
		return denial{http.StatusForbidden, "Nomad's ACLs are off, so that no token says who may look: serve the page on a loopback address"}
	case response.StatusCode() < http.StatusInternalServerError:
		return denial{http.StatusForbidden, "Nomad does not know this token"}
	}
	return fmt.Errorf("checking the token: %w", err)
}

// item is one thing that is shown: a task, a node, a move.
type item struct {
	changed uint64 // frame in which it has changed
	data    []byte // JSON
}

// watch reads a cluster as one token sees it, as long as somebody looks.
type watch struct {
	opts     Options
	client   *api.Client
	gatherer *gather.Gatherer
	asking   chan struct{} // bounds what viewers ask beside

	mu      sync.Mutex
	viewers map[*viewer]bool
	frame   uint64
	head    []byte // JSON of what is said of the whole cluster; nil: nothing was read yet
	items   map[string]item
	view    *top.View
	denied  error // the token does not count any more
}

// viewer is a page that is open.
type viewer struct {
	news    chan struct{} // holds one when there is something new
	visible []top.Key     // tasks that are on the screen
	id      string
}

func (w *watch) join() (*viewer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.viewers) >= mostViewers {
		return nil, denial{http.StatusServiceUnavailable, fmt.Sprintf("%d pages are open with this token, which is the most", mostViewers)}
	}
	v := &viewer{news: make(chan struct{}, 1), id: rand.Text()}
	w.viewers[v] = true
	v.wake()
	return v, nil
}

func (w *watch) leave(v *viewer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.viewers, v)
}

// wake tells a viewer that there is something new.
func (v *viewer) wake() {
	select {
	case v.news <- struct{}{}:
	default:
	}
}

// run reads the cluster until it has had no viewer for a while, the token does not count any more,
// or ctx ends. Remove says whether the watch may end.
func (w *watch) run(ctx context.Context, check func(context.Context) error, remove func() bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var past sync.WaitGroup
	defer past.Wait()
	past.Go(func() { w.readPast(ctx) })
	defer cancel() // before it is waited for
	t := w.opts.times
	seen, checked := time.Now(), time.Now()
	for {
		keys, watched := w.looks()
		if watched {
			seen = time.Now()
		}
		if time.Since(checked) >= t.token {
			checked = time.Now()
			var d denial
			if err := check(ctx); errors.As(err, &d) && d.status == http.StatusForbidden {
				w.deny(d)
			}
		}
		if (time.Since(seen) >= t.linger || w.refused() != nil || ctx.Err() != nil) && remove() {
			return
		}
		if watched {
			view, err := w.gatherer.Refresh(ctx, keys, filesPerRefresh)
			if ctx.Err() == nil {
				w.show(view, err)
			}
		}
		select {
		case <-time.After(t.refresh):
		case <-ctx.Done():
		}
	}
}

// looks returns the tasks that are on viewers' screens, and whether there are viewers.
func (w *watch) looks() (keys []top.Key, watched bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for v := range w.viewers {
		keys = append(keys, v.visible...)
	}
	return keys, len(w.viewers) > 0
}

func (w *watch) deny(d denial) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.denied = d
	w.wake()
}

func (w *watch) refused() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.denied
}

// wake wakes all viewers. The lock is held.
func (w *watch) wake() {
	for v := range w.viewers {
		v.wake()
	}
}

// look sets what is on a viewer's screen; false if there is no such viewer.
func (w *watch) look(id string, keys []top.Key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for v := range w.viewers {
		if v.id == id {
			v.visible = keys
			return true
		}
	}
	return false
}

// head is what is said of the whole cluster.
type head struct {
	Time    time.Time  `json:"time"`
	Address string     `json:"address"`
	Totals  top.Totals `json:"totals"`
	Unread  int        `json:"unread"`
	Notes   []string   `json:"notes"`
	Error   string     `json:"error,omitempty"`
	Empty   string     `json:"empty,omitempty"`
}

// show publishes what was read, or the error.
func (w *watch) show(view *top.View, err error) {
	h := head{Time: time.Now().UTC(), Address: w.client.Address(), Notes: []string{}}
	found := make(map[string][]byte)
	if view != nil {
		h = head{
			Time: view.Time, Address: view.Address, Totals: view.Totals(), Unread: view.Unread, Notes: slices.Concat(view.Problems(), view.Notes),
			Error: view.Error, Empty: view.Empty(),
		}
		for _, t := range view.Tasks {
			found["task:"+t.Alloc+"/"+t.Task] = encode(newRow(t))
		}
		for _, n := range view.Nodes {
			found["node:"+n.ID] = encode(n)
		}
		for _, g := range view.GPUs {
			found["gpu:"+g.NodeID+"/"+g.UUID] = encode(g)
		}
		for _, m := range view.Moves {
			found["move:"+m.Namespace+"/"+m.Job+"/"+m.Alloc] = encode(m)
		}
	}
	if err != nil {
		h.Error = err.Error()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frame++
	w.head = encode(h)
	if view != nil {
		w.view = view
		w.replace(found, "task:", "node:", "gpu:", "move:")
	}
	w.wake()
}

// replace replaces the items with these prefixes. The lock is held.
func (w *watch) replace(found map[string][]byte, prefixes ...string) {
	for key := range w.items {
		if _, ok := found[key]; !ok && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
			delete(w.items, key)
		}
	}
	for key, data := range found {
		if before, ok := w.items[key]; !ok || !bytes.Equal(before.data, data) {
			w.items[key] = item{w.frame, data}
		}
	}
}

// shimItem is what is known of the shims; Error says why that is not known.
type shimItem struct {
	memory.Overview
	Error string `json:"error,omitempty"`
}

// endedItem says how complete the tasks that have ended are.
type endedItem struct {
	All   bool   `json:"all"` // there are no older ones
	Error string `json:"error,omitempty"`
}

// readPast reads what the shims have done, and how tasks have ended, until ctx ends.
func (w *watch) readPast(ctx context.Context) {
	done := make(map[string]memory.Entry)
	for {
		if _, watched := w.looks(); watched {
			done = w.readPastOnce(ctx, done)
		}
		select {
		case <-time.After(w.opts.times.past):
		case <-ctx.Done():
			return
		}
	}
}

func (w *watch) readPastOnce(ctx context.Context, before map[string]memory.Entry) map[string]memory.Entry {
	found := make(map[string][]byte)
	overview, done, err := w.gatherer.Shim(ctx, before)
	shim := shimItem{Overview: overview}
	if err != nil {
		shim.Error, done = err.Error(), before
	}
	found["shim"] = encode(shim)
	for path, e := range done {
		found["done:"+path] = encode(e)
	}
	ended, all, err := w.gatherer.Ended(ctx)
	said := endedItem{All: all}
	prefixes := []string{"done:", "ended:"}
	if err != nil {
		said.Error, prefixes = err.Error(), prefixes[:1]
	}
	found["ended"] = encode(said)
	for _, e := range ended {
		found["ended:"+e.Alloc+"/"+e.Task+"/"+e.Time.Format(time.RFC3339Nano)] = encode(e)
	}
	if ctx.Err() != nil {
		return done
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frame++
	w.replace(found, prefixes...)
	w.wake()
	return done
}

// encode writes JSON. What is written has no errors.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // types of ours
	}
	return data
}

// news is what a stream tells next.
type news struct {
	head []byte
	set  []change
	gone []string
}

type change struct {
	key  string
	data []byte
}

// since returns what has changed since a frame, beside the keys that a stream has told.
func (w *watch) since(frame uint64, told map[string]bool) (n news, now uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.denied != nil {
		return n, frame, w.denied
	}
	if n.head = w.head; n.head == nil {
		return n, frame, nil // what was read beside waits for the first refresh
	}
	for key, i := range w.items {
		if !told[key] || i.changed > frame {
			n.set = append(n.set, change{key, i.data})
			told[key] = true
		}
	}
	for key := range told {
		if _, ok := w.items[key]; !ok {
			n.gone = append(n.gone, key)
			delete(told, key)
		}
	}
	// Nodes, then tasks; in the same order for all viewers.
	slices.SortFunc(n.set, func(a, b change) int { return cmp.Compare(a.key, b.key) })
	slices.Sort(n.gone)
	return n, w.frame, nil
}
