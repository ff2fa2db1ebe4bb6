// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package stream reads Nomad's event stream.
//
// It parses the lines itself because the API's reader hides heartbeats (an empty object at first
// and then every 30 s): without them a dead connection looks like a quiet cluster. Missed events
// are not reported: Nomad buffers its last 100 changes and starts with the oldest. Callers
// therefore open the stream first, list the cluster, and then read events.
package stream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	json2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/hashicorp/nomad/api"
)

// Deadline is the longest time without data; Nomad sends a heartbeat every 30 s.
const Deadline = 45 * time.Second

// maxLine bounds a line, the events of one change, in bytes. A change of ten thousand
// allocations takes tens of MB.
const maxLine = 256 << 20

// keptLine bounds the buffer kept for the next long line, in bytes.
const keptLine = 4 << 20

// buffered is the number of batches queued here; more queue at Nomad.
const buffered = 256

// ErrSilent ends a stream that exceeds the deadline.
var ErrSilent = errors.New("no heartbeat")

type Event struct {
	Topic     api.Topic
	Type      string // such as AllocationUpdated
	Key       string // the object's ID
	Namespace string
	Index     uint64
	// Payload holds the object in a member named after its topic.
	Payload json.RawMessage
}

// Batch holds the events of one change of Nomad's state.
type Batch struct {
	Index  uint64
	Events []Event
}

// Dial opens the stream. Reading the body must fail once its context ends.
type Dial func(context.Context) (io.ReadCloser, error)

// Nomad returns a Dial for all namespaces of a cluster.
func Nomad(client *api.Client, topics ...api.Topic) Dial {
	query := url.Values{}
	for _, t := range topics {
		query.Add("topic", t.String())
	}
	path := "/v1/event/stream?" + query.Encode()
	return func(ctx context.Context) (io.ReadCloser, error) {
		body, err := client.Raw().Response(path, (&api.QueryOptions{Namespace: api.AllNamespacesNamespace}).WithContext(ctx))
		if err != nil {
			return nil, fmt.Errorf("opening Nomad's event stream: %w", err)
		}
		return body, nil
	}
}

// Stream is an open stream. Close must be called.
type Stream struct {
	cancel  context.CancelCauseFunc
	batches chan Batch
	started chan struct{} // closed on the first line
	ended   chan struct{} // closed once err is set
	err     error
}

// Open returns once Nomad has sent the first line: later changes will be received. The stream ends
// with ctx, or after deadline without data.
func Open(ctx context.Context, dial Dial, deadline time.Duration) (*Stream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &Stream{
		cancel:  cancel,
		batches: make(chan Batch, buffered),
		started: make(chan struct{}),
		ended:   make(chan struct{}),
	}
	go func() {
		s.err = s.run(ctx, dial, deadline)
		cancel(s.err)
		close(s.ended)
	}()
	select {
	case <-s.started:
		return s, nil
	case <-s.ended:
	}
	select { // both may be closed
	case <-s.started:
		return s, nil
	default:
		return nil, s.err
	}
}

// Next returns the next batch, after the last one the error that ended the stream, never nil.
func (s *Stream) Next(ctx context.Context) (Batch, error) {
	select {
	case b := <-s.batches:
		return b, nil
	default:
	}
	select {
	case b := <-s.batches:
		return b, nil
	case <-ctx.Done():
		return Batch{}, ctx.Err()
	case <-s.ended:
	}
	select { // drain batches received before the end
	case b := <-s.batches:
		return b, nil
	default:
		return Batch{}, s.err
	}
}

func (s *Stream) Close() {
	s.cancel(context.Canceled)
	<-s.ended
}

func (s *Stream) run(ctx context.Context, dial Dial, deadline time.Duration) error {
	silence := time.AfterFunc(deadline, func() { s.cancel(fmt.Errorf("%w for %v", ErrSilent, deadline)) })
	defer silence.Stop()
	body, err := dial(ctx)
	if err != nil {
		return because(ctx, err)
	}
	defer body.Close()
	defer context.AfterFunc(ctx, func() { _ = body.Close() })()

	lines := lines{r: bufio.NewReaderSize(body, 64<<10)}
	for first := true; ; first = false {
		line, err := lines.next()
		if err != nil {
			return because(ctx, fmt.Errorf("reading Nomad's event stream: %w", err))
		}
		// A slow caller does not count as Nomad's silence.
		silence.Stop()
		if first {
			close(s.started)
		}
		b, err := parse(line)
		if err != nil {
			return err
		}
		if len(b.Events) > 0 {
			select {
			case s.batches <- b:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		silence.Reset(deadline)
	}
}

// because prefers the context's cause to the error it led to.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// lines reads lines of up to maxLine bytes.
type lines struct {
	r    *bufio.Reader
	long []byte // a line longer than r's buffer
}

// next returns a line, valid until the next call. An incomplete last line is an error.
func (l *lines) next() ([]byte, error) {
	if cap(l.long) > keptLine {
		l.long = nil
	}
	l.long = l.long[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		if len(l.long)+len(part) > maxLine {
			return nil, fmt.Errorf("a line is longer than %d MiB", maxLine>>20)
		}
		switch {
		case err == nil && len(l.long) == 0:
			return bytes.TrimSpace(part), nil
		case err == nil:
			l.long = append(l.long, part...)
			return bytes.TrimSpace(l.long), nil
		case errors.Is(err, bufio.ErrBufferFull):
			l.long = append(l.long, part...)
		case errors.Is(err, io.EOF) && len(l.long)+len(part) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// Tolerant accepts the same input as encoding/json, at three times its speed: task messages need
// not be UTF-8.
var Tolerant = json2.JoinOptions(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))

// parse decodes a line. A heartbeat has no events.
func parse(line []byte) (Batch, error) {
	if len(line) == 0 || string(line) == "{}" {
		return Batch{}, nil
	}
	var b struct {
		Batch
		Error json.RawMessage
	}
	if err := json2.Unmarshal(line, &b, Tolerant); err != nil {
		return Batch{}, fmt.Errorf("reading Nomad's event stream: %w: %.200q", err, line)
	}
	if b.Index == 0 && len(b.Events) == 0 {
		return Batch{}, fmt.Errorf("reading Nomad's event stream: unexpected line %.200q", line)
	}
	return b.Batch, nil
}
