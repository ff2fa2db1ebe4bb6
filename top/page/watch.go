// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package page

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

	"github.com/ebbtide/ebbtide/shim/store"
	"github.com/ebbtide/ebbtide/top"
	"github.com/ebbtide/ebbtide/top/gather"
)

// times are the intervals of a watch.
type times struct {
	refresh time.Duration // between two refreshes of nodes and tasks
	past    time.Duration // between two reads of moves and ended tasks
	token   time.Duration // between two checks of a token
	linger  time.Duration // time that a cluster is still read without viewers, as a page may be reloaded
	beat    time.Duration // between two heartbeats of a stream
}

func defaultTimes() times {
	return times{refresh: 2 * time.Second, past: 15 * time.Second, token: time.Minute, linger: 10 * time.Second, beat: 15 * time.Second}
}

const (
	// filesPerRefresh bounds the files of allocations that a refresh reads.
	filesPerRefresh = 200
	// maxWatches bounds the tokens in use, maxViewers the pages open with a token, and maxChecks
	// the concurrent checks of tokens.
	maxWatches = 64
	maxViewers = 64
	maxChecks  = 16
	// checkTimeout bounds the check of a token.
	checkTimeout = 5 * time.Second
)

// denial is the reason why a viewer has no access.
type denial struct {
	status int // HTTP status code
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
	return &watches{ctx: ctx, opts: o, checks: make(chan struct{}, maxChecks), all: make(map[[sha256.Size]byte]*watch)}
}

func (ws *watches) wait() { ws.group.Wait() }

// find returns the watch of a token; nil if it has no viewers.
func (ws *watches) find(token string) *watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.all[sha256.Sum256([]byte(token))]
}

// join adds a viewer to the watch of a token, and starts the watch for the first one. It checks the
// token first; unless open, the token must be an ACL token.
func (ws *watches) join(ctx context.Context, token string, open bool) (*watch, *viewer, error) {
	if err := ws.check(ctx, token, open); err != nil {
		return nil, nil, err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	key := sha256.Sum256([]byte(token))
	w := ws.all[key]
	if w == nil {
		if len(ws.all) >= maxWatches {
			return nil, nil, denial{http.StatusServiceUnavailable, fmt.Sprintf("%d tokens are in use at this time, which is the maximum", maxWatches)}
		}
		client, err := ws.opts.client(token)
		if err != nil {
			return nil, nil, denial{http.StatusInternalServerError, err.Error()}
		}
		w = &watch{
			opts: ws.opts, client: client, viewers: make(map[*viewer]bool),
			gatherer: gather.New(gather.Options{Client: client, Shim: store.Store{Client: client, Namespace: ws.opts.ShimNamespace, Path: ws.opts.ShimPath}}),
			items:    make(map[string]item), queries: make(chan struct{}, 2),
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

// remove removes a watch, unless it has viewers.
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

// check checks a token with Nomad. The error is a denial, or Nomad is unreachable.
func (ws *watches) check(ctx context.Context, token string, open bool) error {
	if token == "" && open {
		return nil // the process's token, whose rights show in what it reads
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
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
		return denial{http.StatusForbidden, "Nomad's ACLs are off, so no token can grant access: serve the page on a loopback address"}
	case response.StatusCode() < http.StatusInternalServerError:
		return denial{http.StatusForbidden, "Nomad does not know this token"}
	}
	return fmt.Errorf("checking the token: %w", err)
}

// item is a task, a node or a move on the page.
type item struct {
	changed uint64 // frame of the last change
	data    []byte // JSON
}

// watch reads a cluster with a token while it has viewers.
type watch struct {
	opts     Options
	client   *api.Client
	gatherer *gather.Gatherer
	queries  chan struct{} // bounds concurrent queries

	mu      sync.Mutex
	viewers map[*viewer]bool
	frame   uint64
	head    []byte // JSON of the cluster's state; nil before the first read
	items   map[string]item
	view    *top.View
	denied  error // the token is no longer valid
}

// viewer is an open page.
type viewer struct {
	news    chan struct{} // has one element if there are changes to send
	visible []top.Key     // tasks on the screen
	id      string
}

func (w *watch) join() (*viewer, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.viewers) >= maxViewers {
		return nil, denial{http.StatusServiceUnavailable, fmt.Sprintf("%d pages are open with this token, which is the maximum", maxViewers)}
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

// wake signals changes to a viewer.
func (v *viewer) wake() {
	select {
	case v.news <- struct{}{}:
	default:
	}
}

// run reads the cluster until it has had no viewers for times.linger, the token is no longer valid,
// or ctx ends. remove reports whether the watch may end.
func (w *watch) run(ctx context.Context, check func(context.Context) error, remove func() bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var past sync.WaitGroup
	defer past.Wait()
	past.Go(func() { w.readPast(ctx) })
	defer cancel() // before past.Wait
	t := w.opts.times
	seen, checked := time.Now(), time.Now()
	for {
		keys, watched := w.visible()
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

// visible returns the tasks on viewers' screens, and whether there are viewers.
func (w *watch) visible() (keys []top.Key, watched bool) {
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

// wake wakes all viewers. The caller holds mu.
func (w *watch) wake() {
	for v := range w.viewers {
		v.wake()
	}
}

// setVisible sets the tasks on a viewer's screen; false if there is no such viewer.
func (w *watch) setVisible(id string, keys []top.Key) bool {
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

// head is the state of the whole cluster.
type head struct {
	Time    time.Time  `json:"time"`
	Address string     `json:"address"`
	Totals  top.Totals `json:"totals"`
	Unread  int        `json:"unread"`
	Notes   []string   `json:"notes"`
	Error   string     `json:"error,omitempty"`
	Empty   string     `json:"empty,omitempty"`
}

// show publishes a view, or the error.
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

// replace replaces the items with these prefixes. The caller holds mu.
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

// shimItem is the state of the shims, or why it is unknown.
type shimItem struct {
	store.Overview
	Error string `json:"error,omitempty"`
}

// endedItem reports whether the list of ended tasks is complete.
type endedItem struct {
	All   bool   `json:"all"` // no older ones exist
	Error string `json:"error,omitempty"`
}

// readPast reads the shims' moves and the results of ended tasks, until ctx ends.
func (w *watch) readPast(ctx context.Context) {
	done := make(map[string]store.Entry)
	for {
		if _, watched := w.visible(); watched {
			done = w.readPastOnce(ctx, done)
		}
		select {
		case <-time.After(w.opts.times.past):
		case <-ctx.Done():
			return
		}
	}
}

func (w *watch) readPastOnce(ctx context.Context, before map[string]store.Entry) map[string]store.Entry {
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
	state := endedItem{All: all}
	prefixes := []string{"done:", "ended:"}
	if err != nil {
		state.Error, prefixes = err.Error(), prefixes[:1]
	}
	found["ended"] = encode(state)
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

// encode marshals a value of this package's types, which cannot fail.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

// news are the changes to send next.
type news struct {
	head []byte
	set  []change
	gone []string
}

type change struct {
	key  string
	data []byte
}

// since returns the changes after a frame. told are the keys that the stream has sent.
func (w *watch) since(frame uint64, told map[string]bool) (n news, now uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.denied != nil {
		return n, frame, w.denied
	}
	if n.head = w.head; n.head == nil {
		return n, frame, nil // items read earlier are sent with the first refresh
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
	// Nodes, then tasks; the same order for all viewers.
	slices.SortFunc(n.set, func(a, b change) int { return cmp.Compare(a.key, b.key) })
	slices.Sort(n.gone)
	return n, w.frame, nil
}
