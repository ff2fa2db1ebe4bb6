// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package page

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/ebbtide/ebbtide/top"
)

const (
	// maxSetItems is the maximum number of items per event, so that the page stays responsive.
	maxSetItems = 500
	// writeTimeout bounds the time a viewer takes to receive an event.
	writeTimeout = 10 * time.Second
	// maxVisibleTasks bounds the tasks on a screen, maxVisible the request that lists them, in
	// bytes.
	maxVisibleTasks = 200
	maxVisible      = 64 << 10
)

// events streams the state of the cluster, then changes of it, as server-sent events. The page
// reads them with fetch(), since an EventSource sends no token.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	watch, v, err := s.watches.join(r.Context(), r.Header.Get(TokenHeader), s.open)
	if err != nil {
		deny(w, err)
		return
	}
	defer watch.leave(v)
	out := stream{http.NewResponseController(w), w}
	w.Header().Set("Content-Type", "text/event-stream")
	if err := out.send("hello", []byte(fmt.Sprintf(`{"id":%q}`, v.id))); err != nil {
		return
	}
	var frame uint64
	told := make(map[string]bool)
	beat := time.NewTicker(s.watches.opts.times.beat)
	defer beat.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-beat.C:
			if out.send("beat", []byte("{}")) != nil {
				return
			}
		case <-v.news:
			var n news
			if n, frame, err = watch.since(frame, told); err != nil {
				text, _ := json.Marshal(err.Error())
				_ = out.send("denied", text)
				return
			}
			if n.head == nil {
				continue // no data yet
			}
			if out.sendNews(n) != nil {
				return
			}
		}
	}
}

// deny responds with the reason why a viewer has no access.
func deny(w http.ResponseWriter, err error) {
	var d denial
	if errors.As(err, &d) {
		refuse(w, d.status, d.text)
		return
	}
	refuse(w, http.StatusBadGateway, err.Error())
}

// stream writes server-sent events.
type stream struct {
	control *http.ResponseController
	out     io.Writer
}

func (s stream) send(event string, data []byte) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.out, "event: %s\ndata: %s\n\n", event, data); err != nil {
		return err
	}
	return s.control.Flush()
}

// sendNews sends changes in parts; the last part has no "more".
func (s stream) sendNews(n news) error {
	for {
		part := n.set[:min(len(n.set), maxSetItems)]
		n.set = n.set[len(part):]
		var b bytes.Buffer
		b.WriteString(`{"head":`)
		b.Write(n.head)
		fmt.Fprintf(&b, `,"more":%t,"gone":%s,"set":[`, len(n.set) > 0, encode(append([]string{}, n.gone...)))
		n.gone = nil
		for i, c := range part {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteByte('[')
			b.Write(encode(c.key))
			b.WriteByte(',')
			b.Write(c.data)
			b.WriteByte(']')
		}
		b.WriteString("]}")
		if err := s.send("frame", b.Bytes()); err != nil || len(n.set) == 0 {
			return err
		}
	}
}

// visible sets the tasks on a viewer's screen: they are read first, with their curves.
func (s *server) visible(w http.ResponseWriter, r *http.Request) {
	watch := s.watching(w, r)
	if watch == nil {
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(writeTimeout))
	var request struct {
		ID    string      `json:"id"`
		Tasks [][2]string `json:"tasks"` // allocation and task
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxVisible)).Decode(&request); err != nil {
		refuse(w, http.StatusBadRequest, "must be the JSON of an object with id and tasks")
		return
	}
	if len(request.Tasks) > maxVisibleTasks {
		refuse(w, http.StatusBadRequest, fmt.Sprintf("tasks: must be at most %d, got %d", maxVisibleTasks, len(request.Tasks)))
		return
	}
	var keys []top.Key
	for _, t := range request.Tasks {
		keys = append(keys, top.Key{Alloc: t[0], Task: t[1]})
	}
	if !watch.setVisible(request.ID, keys) {
		refuse(w, http.StatusNotFound, "there is no such page")
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// watching returns the watch of a request's token. A token is checked when a page opens; if no page
// is open with it, watching responds and returns nil.
func (s *server) watching(w http.ResponseWriter, r *http.Request) *watch {
	found := s.watches.find(r.Header.Get(TokenHeader))
	if found == nil || found.refused() != nil {
		refuse(w, http.StatusConflict, "no page is open with this token")
		return nil
	}
	return found
}
