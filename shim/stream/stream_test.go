// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package stream

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// pipe is a stream written by the test.
func pipe() (Dial, *io.PipeWriter) {
	r, w := io.Pipe()
	return func(context.Context) (io.ReadCloser, error) { return r, nil }, w
}

const line = `{"Index": %d, "Events": [{"Topic": "Job", "Type": "JobRegistered", "Key": "a", "Namespace": "ml", "Index": %d, "Payload": {"Job": {"ID": "a"}}}]}` + "\n"

func TestStream(t *testing.T) {
	dial, w := pipe()
	go func() {
		fmt.Fprint(w, "{}\n", fmt.Sprintf(line, 7, 7), "{}\n\n", fmt.Sprintf(line, 9, 9))
		_ = w.Close()
	}()
	s, err := Open(t.Context(), dial, time.Minute)
	must.NoError(t, err)
	defer s.Close()
	for _, index := range []uint64{7, 9} {
		b, err := s.Next(t.Context())
		must.NoError(t, err)
		must.Eq(t, index, b.Index)
		must.Len(t, 1, b.Events)
		e := b.Events[0]
		must.Eq(t, Event{Topic: api.TopicJob, Type: "JobRegistered", Key: "a", Namespace: "ml", Index: index, Payload: e.Payload}, e)
		must.Eq(t, `{"Job": {"ID": "a"}}`, string(e.Payload))
	}
	for range 2 {
		_, err = s.Next(t.Context())
		must.ErrorIs(t, err, io.EOF)
	}
}

// Task messages need not be UTF-8.
func TestStream_bytes(t *testing.T) {
	dial, w := pipe()
	go fmt.Fprint(w, "{}\n", "{\"Index\": 1, \"Events\": [{\"Topic\": \"Job\", \"Key\": \"\xff\", \"Payload\": {\"Job\": \"\xff\", \"Job\": 1}}]}\n")
	s, err := Open(t.Context(), dial, time.Minute)
	must.NoError(t, err)
	defer s.Close()
	b, err := s.Next(t.Context())
	must.NoError(t, err)
	must.Eq(t, "\uFFFD", b.Events[0].Key)
}

func TestStream_longLine(t *testing.T) {
	dial, w := pipe()
	long := `{"Index": 1, "Events": [{"Topic": "Job", "Payload": {"Job": "` + strings.Repeat("x", 1<<20) + `"}}]}`
	go fmt.Fprint(w, "{}\n", long, "\n", long, "\n")
	s, err := Open(t.Context(), dial, time.Minute)
	must.NoError(t, err)
	defer s.Close()
	for range 2 {
		b, err := s.Next(t.Context())
		must.NoError(t, err)
		must.Greater(t, 1<<20, len(b.Events[0].Payload))
	}
}

func TestOpen_fails(t *testing.T) {
	refused := errors.New("refused")
	_, err := Open(t.Context(), func(context.Context) (io.ReadCloser, error) { return nil, refused }, time.Minute)
	must.ErrorIs(t, err, refused)
	for text, want := range map[string]string{
		"":                           "EOF",
		"{":                          "unexpected EOF",
		"sign in\n":                  `invalid character 's'`,
		"{\"Error\": \"no lead\"}\n": `unexpected line "{\"Error\": \"no lead\"}"`,
	} {
		dial, w := pipe()
		go func() { fmt.Fprint(w, text); _ = w.Close() }()
		s, err := Open(t.Context(), dial, time.Minute)
		if err == nil { // any first line
			_, err = s.Next(t.Context())
			s.Close()
		}
		must.ErrorContains(t, err, "reading Nomad's event stream")
		must.ErrorContains(t, err, want)
	}
}

// A silent stream is not a quiet cluster.
func TestStream_silence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, w := pipe()
		begun := time.Now()
		_, err := Open(t.Context(), dial, Deadline)
		must.ErrorIs(t, err, ErrSilent)
		must.EqError(t, err, "no heartbeat for 45s")
		must.Eq(t, Deadline, time.Since(begun))
		_, err = w.Write([]byte("{}\n"))
		must.Error(t, err, must.Sprint("the body was closed"))

		dial, w = pipe()
		go func() {
			for range 3 {
				fmt.Fprint(w, "{}\n")
				time.Sleep(30 * time.Second)
			}
		}()
		s, err := Open(t.Context(), dial, Deadline)
		must.NoError(t, err)
		defer s.Close()
		begun = time.Now()
		_, err = s.Next(t.Context())
		must.ErrorIs(t, err, ErrSilent)
		must.Eq(t, 60*time.Second+Deadline, time.Since(begun))
	})
}

// A slow caller is not told that Nomad is silent.
func TestStream_slowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const changes = 2*buffered + 10
		dial, w := pipe()
		go func() {
			fmt.Fprint(w, "{}\n")
			for i := range changes {
				fmt.Fprintf(w, line, i+1, i+1)
			}
			_ = w.Close()
		}()
		s, err := Open(t.Context(), dial, Deadline)
		must.NoError(t, err)
		defer s.Close()
		time.Sleep(time.Hour)
		for i := range changes {
			b, err := s.Next(t.Context())
			must.NoError(t, err)
			must.Eq(t, uint64(i+1), b.Index)
		}
		_, err = s.Next(t.Context())
		must.ErrorIs(t, err, io.EOF)
	})
}

func TestStream_contexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dial, w := pipe()
		go fmt.Fprint(w, "{}\n")
		ctx, cancel := context.WithCancel(t.Context())
		s, err := Open(ctx, dial, Deadline)
		must.NoError(t, err)
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		_, err = s.Next(short)
		must.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
		_, err = s.Next(t.Context())
		must.ErrorIs(t, err, context.Canceled)
		s.Close()
		s.Close()
	})
}

func TestNomad(t *testing.T) {
	var asked *http.Request
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r
		w.WriteHeader(status)
		fmt.Fprint(w, "{}\n", fmt.Sprintf(line, 3, 3))
	}))
	defer server.Close()
	client, err := api.NewClient(&api.Config{Address: server.URL, SecretID: "hunter2"})
	must.NoError(t, err)
	dial := Nomad(client, api.TopicJob, api.TopicNode)
	body, err := dial(t.Context())
	must.NoError(t, err)
	must.Eq(t, "/v1/event/stream", asked.URL.Path)
	must.Eq(t, []string{"Job", "Node"}, asked.URL.Query()["topic"])
	must.Eq(t, "*", asked.URL.Query().Get("namespace"))
	must.Eq(t, "hunter2", asked.Header.Get("X-Nomad-Token"))
	text, err := bufio.NewReader(body).ReadString('\n')
	must.NoError(t, err)
	must.Eq(t, "{}\n", text)
	must.NoError(t, body.Close())

	s, err := Open(t.Context(), dial, time.Minute)
	must.NoError(t, err)
	b, err := s.Next(t.Context())
	must.NoError(t, err)
	must.Eq(t, 3, b.Index)
	s.Close()

	status = http.StatusForbidden
	_, err = Open(t.Context(), dial, time.Minute)
	must.ErrorContains(t, err, "opening Nomad's event stream")
	must.ErrorContains(t, err, "403")
	must.StrNotContains(t, err.Error(), "hunter2")
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "{}", "[]", "null", fmt.Sprintf(line, 1, 1), `{"Index": -1}`, `{"Events": [{"Payload": 1}]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := parse(text)
		if err != nil {
			must.Len(t, 0, b.Events)
		}
	})
}
