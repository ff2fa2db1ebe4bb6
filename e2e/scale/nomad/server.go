// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package nomad is a load generator that serves the parts of Nomad's API the shim uses, including
// variables, for a cluster of any size. It runs no tasks; objects are generated from a seed on
// request, as large as real ones of Nomad 1.11.2: nodes with 64 cores, allocations with task
// events, and node events with allocation updates.
//
// Unsupported requests, such as moves, get 501 and are counted; decisions are measured with dry
// runs.
package nomad

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/private"
)

// firstIndex is everything's initial index.
const firstIndex = 1000

// heartbeat is Nomad's interval.
const heartbeat = 30 * time.Second

// Server is an http.Handler that implements the API.
type Server struct {
	options   Options
	trainings []int // allocation numbers
	variables *variables
	mux       *http.ServeMux
	index     atomic.Uint64

	mu      sync.Mutex
	counts  map[string]int
	unknown []string
	changed map[int]uint64 // index by allocation number
	streams map[*listener]bool
}

func New(o Options) *Server {
	if o.Heartbeat == 0 {
		o.Heartbeat = heartbeat
	}
	s := &Server{
		options: o, variables: newVariables(time.Now), mux: http.NewServeMux(), counts: make(map[string]int),
		changed: make(map[int]uint64), streams: make(map[*listener]bool),
	}
	s.index.Store(firstIndex)
	for i := range o.allocs() {
		if o.alloc(i).training {
			s.trainings = append(s.trainings, i)
		}
	}
	for pattern, h := range map[string]struct {
		kind  string
		serve http.HandlerFunc
	}{
		"GET /v1/acl/token/self":       {"token", s.token},
		"GET /v1/nodes":                {"nodes", s.nodes},
		"GET /v1/node/{id}":            {"node", s.node},
		"GET /v1/jobs":                 {"jobs", s.jobs},
		"GET /v1/job/{id}":             {"job", s.job},
		"GET /v1/job/{id}/allocations": {"job's allocations", s.jobAllocations},
		"GET /v1/allocations":          {"allocations", s.allocations},
		"GET /v1/allocation/{id}":      {"allocation", s.allocation},
		"GET /v1/client/fs/ls/{id}":    {"directory", s.directory},
		"GET /v1/client/fs/cat/{id}":   {"file", s.file},
		"GET /v1/event/stream":         {"stream", s.stream},
		"GET /v1/vars":                 {"variables", s.variables.list},
		"GET /v1/var/{path...}":        {"", s.variables.serve},
		"PUT /v1/var/{path...}":        {"", s.variables.serve},
		"DELETE /v1/var/{path...}":     {"", s.variables.serve},
		"POST " + PourPath:             {"-", s.pourRequest},
		"GET " + RequestsPath:          {"-", s.requests},
	} {
		s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			kind := h.kind
			if kind == "" {
				kind = variableKind(r)
			}
			if kind != "-" {
				s.count(r.Method + " " + kind)
			}
			h.serve(w, r)
		})
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.unknown = append(s.unknown, r.Method+" "+r.URL.Path)
		s.mu.Unlock()
		http.Error(w, fmt.Sprintf("the load generator does not know %s %s", r.Method, r.URL.Path), http.StatusNotImplemented)
	})
	return s
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Kinds of requests for a variable.
const (
	kindVariable = "variable"
	kindAcquire  = "lock-acquire"
	kindRenew    = "lock-renew"
	kindRelease  = "lock-release"
)

func variableKind(r *http.Request) string {
	for _, kind := range []string{kindAcquire, kindRenew, kindRelease} {
		if r.URL.Query().Has(kind) {
			return kind
		}
	}
	return kindVariable
}

func (s *Server) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[what]++
}

type Requests struct {
	Known   map[string]int `json:"known"`   // by method and kind, such as "GET nodes"
	Unknown []string       `json:"unknown"` // rejected, by method and path
}

// Writes counts changes and attempts, except the lock's.
func (r Requests) Writes() int {
	writes := 0
	for what, n := range r.Known {
		method, kind, _ := strings.Cut(what, " ")
		if method != http.MethodGet && kind != kindAcquire && kind != kindRenew && kind != kindRelease {
			writes += n
		}
	}
	for _, what := range r.Unknown {
		if !strings.HasPrefix(what, http.MethodGet+" ") {
			writes++
		}
	}
	return writes
}

func (s *Server) Requests() Requests {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Requests{Known: maps.Clone(s.counts), Unknown: append([]string{}, s.unknown...)}
}

func (s *Server) requests(w http.ResponseWriter, _ *http.Request) {
	_ = json.NewEncoder(w).Encode(s.Requests())
}

func meta(w http.ResponseWriter, index uint64) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Nomad-Index", strconv.FormatUint(index, 10))
	h.Set("X-Nomad-KnownLeader", "true")
	h.Set("X-Nomad-LastContact", "0")
}

// token is Nomad's response with ACLs disabled.
func (s *Server) token(w http.ResponseWriter, _ *http.Request) {
	s.answer(w, api.ACLToken{AccessorID: "acls-disabled", Type: "client"})
}

func (s *Server) answer(w http.ResponseWriter, v any) {
	meta(w, s.index.Load())
	_ = json.NewEncoder(w).Encode(v)
}

// list writes a list or page, compressed as Nomad does.
func (s *Server) list(w http.ResponseWriter, r *http.Request, n int, object func(i int) any) {
	meta(w, s.index.Load())
	from, to := 0, n
	q := r.URL.Query()
	if text := q.Get("next_token"); text != "" {
		token, err := strconv.Atoi(text)
		if err != nil || token < 0 {
			http.Error(w, "failed to read result page: "+text, http.StatusBadRequest)
			return
		}
		from = min(token, n)
	}
	if size, err := strconv.Atoi(q.Get("per_page")); err == nil && size > 0 && from+size < n {
		to = from + size
		w.Header().Set("X-Nomad-NextToken", strconv.Itoa(to))
	}
	var body io.Writer = w
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		zip, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
		defer zip.Close()
		body = zip
	}
	out := bufio.NewWriterSize(body, 64<<10)
	defer out.Flush()
	for i := from; i < to; i++ {
		between := byte(',')
		if i == from {
			between = '['
		}
		data, err := json.Marshal(object(i))
		if err != nil {
			panic(http.ErrAbortHandler) // a truncated list must not look complete
		}
		_ = out.WriteByte(between)
		if _, err := out.Write(data); err != nil {
			return
		}
	}
	if from >= to {
		_ = out.WriteByte('[')
	}
	_ = out.WriteByte(']')
}

func (s *Server) nodes(w http.ResponseWriter, r *http.Request) {
	s.list(w, r, s.options.Nodes, func(i int) any { return s.options.nodeStub(i, firstIndex) })
}

func (s *Server) node(w http.ResponseWriter, r *http.Request) {
	i, ok := number(r.PathValue("id"), s.options.Nodes)
	if !ok {
		http.Error(w, "node not found", http.StatusNotFound)
		return
	}
	// The server also serves the nodes' files.
	s.answer(w, s.options.node(i, firstIndex, r.Host))
}

func (s *Server) services() int { return max(1, s.options.allocs()/perService) }

func (s *Server) jobs(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Has("filter") { // for bound jobs
		s.answer(w, []any{})
		return
	}
	services := s.services()
	s.list(w, r, services+len(s.trainings)+s.options.Waiting, func(i int) any {
		if i < services {
			return jobStub(serviceNS, fmt.Sprintf("service-%05d", i), firstIndex)
		}
		if i -= services; i < len(s.trainings) {
			return jobStub(trainingNS, trainingName(s.trainings[i]), firstIndex)
		}
		return jobStub(trainingNS, waitingName(i-len(s.trainings)), firstIndex)
	})
}

// training returns a training job's allocation number.
func (s *Server) training(id string) (int, bool) {
	text, ok := strings.CutPrefix(id, "train-")
	i, err := strconv.Atoi(text)
	if !ok || err != nil || i < 0 || i >= s.options.allocs() {
		return 0, false
	}
	return i, s.options.alloc(i).training
}

func (s *Server) job(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if _, ok := s.training(id); ok {
		j := job(trainingNS, id, firstIndex)
		if s.options.Waiting > 0 {
			j.Meta = queued(id, time.Since(begun), j.Meta)
		}
		s.answer(w, j)
		return
	}
	if text, ok := strings.CutPrefix(id, "wait-"); ok {
		if i, err := strconv.Atoi(text); err == nil && i >= 0 && i < s.options.Waiting {
			s.answer(w, waiting(id, firstIndex))
			return
		}
	}
	if text, ok := strings.CutPrefix(id, "service-"); ok {
		if i, err := strconv.Atoi(text); err == nil && i >= 0 && i < s.services() {
			s.answer(w, job(serviceNS, id, firstIndex))
			return
		}
	}
	http.Error(w, "job not found", http.StatusNotFound)
}

func (s *Server) jobAllocations(w http.ResponseWriter, r *http.Request) {
	i, ok := s.training(r.PathValue("id"))
	if !ok {
		http.Error(w, "the load generator does not know the allocations of services", http.StatusNotImplemented)
		return
	}
	s.answer(w, []api.AllocationListStub{s.options.allocStub(i, s.modified(i))})
}

func (s *Server) modified(i int) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(firstIndex, s.changed[i])
}

func (s *Server) allocations(w http.ResponseWriter, r *http.Request) {
	s.list(w, r, s.options.allocs(), func(i int) any { return s.options.allocStub(i, s.modified(i)) })
}

func (s *Server) found(w http.ResponseWriter, r *http.Request) (alloc, bool) {
	i, ok := number(r.PathValue("id"), s.options.allocs())
	if !ok {
		http.Error(w, "alloc not found", http.StatusNotFound)
		return alloc{}, false
	}
	return s.options.alloc(i), true
}

func (s *Server) allocation(w http.ResponseWriter, r *http.Request) {
	a, ok := s.found(w, r)
	if !ok {
		return
	}
	full := s.options.allocation(a.number, s.modified(a.number), 0)
	full.Job = job(a.namespace(), a.job, firstIndex)
	s.answer(w, full)
}

// Only training tasks have a status.
var statusFile = private.StatusName(task)

func (s *Server) directory(w http.ResponseWriter, r *http.Request) {
	a, ok := s.found(w, r)
	if !ok {
		return
	}
	if !a.training || path.Clean(r.URL.Query().Get("path")) != private.DirName {
		http.Error(w, "no such file or directory", http.StatusInternalServerError) // as Nomad
		return
	}
	s.answer(w, []*api.AllocFileInfo{{Name: statusFile, Size: 2903, FileMode: "-rw-------", ModTime: begun, ContentType: "application/json"}})
}

func (s *Server) file(w http.ResponseWriter, r *http.Request) {
	a, ok := s.found(w, r)
	if !ok {
		return
	}
	if !a.training || path.Clean(r.URL.Query().Get("path")) != path.Join(private.DirName, statusFile) {
		http.Error(w, "no such file or directory", http.StatusNotFound)
		return
	}
	data, err := json.MarshalIndent(s.options.status(a, time.Now()), "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	meta(w, s.index.Load())
	_, _ = w.Write(data)
}
