// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package stream follows Nomad's event stream.
//
// It reads the stream itself, line by line, for what the API's own reader hides: Nomad
// sends an empty object at once and then every 30 seconds, and a connection on which
// nothing comes any more looks like a quiet cluster. Neither says when events are
// missed: Nomad keeps those of its last 100 changes, and begins with the oldest one that
// it still has. So the stream tells what is new, and never what there is: who follows it
// opens it first, lists everything then, and reads on.
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

// Deadline is how long a stream may be silent. Nomad sends a heartbeat every 30 s.
const Deadline = 45 * time.Second

// maxLine bounds one line, in bytes: the events of one change. A change of ten thousand
// allocations takes some tens of megabytes.
const maxLine = 256 << 20

// keptLine bounds the buffer that is kept for the next long line, in bytes.
const keptLine = 4 << 20

// buffered is how many changes wait until they are asked for. More wait at Nomad.
const buffered = 256

// ErrSilent is the end of a stream on which nothing came for too long.
var ErrSilent = errors.New("no heartbeat came")

// Event is one changed object.
type Event struct {
	Topic     api.Topic
	Type      string // such as AllocationUpdated
	Key       string // the object's ID
	Namespace string
	Index     uint64
	// Payload holds the object in a member that is named after its topic.
	Payload json.RawMessage
}

// Batch is what one change of Nomad's state brought.
type Batch struct {
	Index  uint64
	Events []Event
}

// Dial opens the stream. The body must end with its context.
type Dial func(context.Context) (io.ReadCloser, error)

// Nomad returns how to open the stream of a cluster, of all namespaces.
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
	started chan struct{} // closed with the first line
	ended   chan struct{} // closed when err is set
	err     error
}

// Open opens the stream and returns when Nomad has said that it is there: what changes
// from now on will come. It ends with ctx, or when nothing comes for the deadline.
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
	select { // it may have begun and ended
	case <-s.started:
		return s, nil
	default:
		return nil, s.err
	}
}

// Next returns the next change. After the last one it returns why the stream ended;
// that is never nil.
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
	select { // what came before the end
	case b := <-s.batches:
		return b, nil
	default:
		return Batch{}, s.err
	}
}

// Close ends the stream and waits until it has ended.
func (s *Stream) Close() {
	s.cancel(context.Canceled)
	<-s.ended
}

// run reads the stream until it ends.
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
		// While nobody takes what came, silence is not Nomad's.
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

// because prefers the reason for which a context has ended to what followed from it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// lines reads lines of any length up to maxLine.
type lines struct {
	r    *bufio.Reader
	long []byte // a line that is longer than r's buffer
}

// next reads one line, without its end; it is valid until the next one is read. A part of
// one at the end is an error.
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

// Tolerant reads JSON as encoding/json does, which takes three times as long for the same:
// what a task says in its messages need not be UTF-8, and is no reason to lose the stream.
var Tolerant = json2.JoinOptions(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))

// parse reads a line. A heartbeat has no events.
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
		return Batch{}, fmt.Errorf("reading Nomad's event stream: it says %.200q", line)
	}
	return b.Batch, nil
}
