// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hashicorp/nomad/api"
)

// controlPath is not part of Nomad's API.
const controlPath = "/generator/"

// Request events (POST), and read the number of requests (GET).
const (
	PourPath     = controlPath + "pour"
	RequestsPath = controlPath + "requests"
)

// listener is an open stream.
type listener struct {
	lines chan []byte
	gone  <-chan struct{}
}

// stream sends a line per change after its opening.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	for _, topic := range r.URL.Query()["topic"] {
		switch api.Topic(topic) {
		case api.TopicNode, api.TopicJob, api.TopicAllocation:
		default:
			http.Error(w, fmt.Sprintf("the load generator does not know topic %q", topic), http.StatusNotImplemented)
			return
		}
	}
	l := &listener{lines: make(chan []byte), gone: r.Context().Done()}
	s.mu.Lock()
	s.streams[l] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.streams, l)
	}()
	w.Header().Set("Content-Type", "application/json")
	out := http.NewResponseController(w)
	beat := time.NewTicker(s.options.Heartbeat)
	defer beat.Stop()
	for line := []byte("{}\n"); ; {
		if _, err := w.Write(line); err != nil {
			return
		}
		if err := out.Flush(); err != nil {
			return
		}
		select {
		case line = <-l.lines:
			beat.Reset(s.options.Heartbeat)
		case <-beat.C:
			line = []byte("{}\n")
		case <-l.gone:
			return
		}
	}
}

// Pour describes events to send: updates of allocations, with an event of each node, as Nomad
// sends them.
type Pour struct {
	Events int
	Batch  int     // allocations per change; Nomad batches those within 50 ms
	Rate   float64 // per second; 0 for as fast as possible
}

func (p Pour) Validate() error {
	if p.Events < 1 || p.Batch < 1 || !(p.Rate >= 0) {
		return fmt.Errorf("events and batch must be ≥ 1 and the rate ≥ 0, got %+v", p)
	}
	return nil
}

type event struct {
	Topic      api.Topic
	Type       string
	Key        string
	Namespace  string
	FilterKeys []string
	Index      uint64
	Payload    map[string]any
}

// line returns a change of the next allocations: an event for each, and for each of their nodes.
func (s *Server) line(next *int, p Pour, left int) (line []byte, events int, err error) {
	index := s.index.Add(1)
	all := s.options.allocs()
	var list []event
	seen := make(map[int]bool)
	for range p.Batch {
		if len(list) >= left {
			break
		}
		i := *next % all
		// Neighbours share a node; concurrent updates are spread.
		*next += s.options.PerNode
		if *next >= all {
			*next = (*next + 1) % s.options.PerNode
		}
		a := s.options.allocation(i, index, i%4)
		list = append(list, event{
			Topic: api.TopicAllocation, Type: "AllocationUpdated", Key: a.ID, Namespace: a.Namespace, FilterKeys: []string{a.JobID},
			Index: index, Payload: map[string]any{"Allocation": a},
		})
		s.mu.Lock()
		s.changed[i] = index
		s.mu.Unlock()
		if node := i / s.options.PerNode; !seen[node] && len(list) < left {
			seen[node] = true
			n := s.options.node(node, firstIndex, address(node)+":4646") // the node itself is unchanged
			list = append(list, event{Topic: api.TopicNode, Type: "AllocationUpdated", Key: n.ID, Index: index, Payload: map[string]any{"Node": n}})
		}
	}
	line, err = json.Marshal(struct {
		Index  uint64
		Events []event
	}{index, list})
	return append(line, '\n'), len(list), err
}

// errNobody means that there is no open stream.
var errNobody = errors.New("no subscriber to the event stream")

// Pour sends events to all streams. Without a rate they are generated in advance, so only sending
// is measured.
func (s *Server) Pour(ctx context.Context, p Pour) error {
	if err := p.Validate(); err != nil {
		return err
	}
	next := 0
	var ready [][]byte
	begun := time.Now()
	for sent := 0; sent < p.Events; {
		line, n, err := s.line(&next, p, p.Events-sent)
		if err != nil {
			return fmt.Errorf("making an event: %w", err)
		}
		sent += n
		if p.Rate == 0 {
			ready = append(ready, line)
			continue
		}
		if err := s.send(ctx, line); err != nil {
			return err
		}
		due := begun.Add(time.Duration(float64(sent) / p.Rate * float64(time.Second)))
		select {
		case <-time.After(time.Until(due)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, line := range ready {
		if err := s.send(ctx, line); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) send(ctx context.Context, line []byte) error {
	s.mu.Lock()
	var all []*listener
	for l := range s.streams {
		all = append(all, l)
	}
	s.mu.Unlock()
	if len(all) == 0 {
		return errNobody
	}
	for _, l := range all {
		select {
		case l.lines <- line:
		case <-l.gone:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// pourRequest responds once all events have been sent.
func (s *Server) pourRequest(w http.ResponseWriter, r *http.Request) {
	var p Pour
	err := json.NewDecoder(r.Body).Decode(&p)
	if err == nil {
		err = s.Pour(r.Context(), p)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}
