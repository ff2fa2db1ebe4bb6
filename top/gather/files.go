// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gather

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/allocfs"
	"github.com/ebbtide/ebbtide/top"
)

// maxHistory bounds a history, in bytes: several times the driver's maximum.
const maxHistory = 4 << 20

// errInvalid means that the driver cannot have written a file.
var errInvalid = errors.New("not what the driver writes")

// errFailed means that Nomad sent an error instead of a file, with status 200.
var errFailed = errors.New("reading the file through Nomad failed")

type files struct{ client *api.Client }

// status reads a task's private status, which the task cannot write.
func (f files) status(ctx context.Context, t top.Task) (*status.Status, error) {
	data, err := f.read(ctx, "cat", t, path.Join(private.DirName, private.StatusName(t.Task)), nil, status.MaxStatus)
	if err != nil {
		return nil, fmt.Errorf("reading its status: %w", err)
	}
	if text := string(data); len(data) > 0 && data[0] != '{' && len(data) < 1000 {
		// Some of Nomad's errors are in the body of a response with status 200.
		switch {
		case missing(text):
			return nil, fmt.Errorf("reading its status: %w", fs.ErrNotExist)
		case strings.Contains(text, api.PermissionDeniedErrorContent):
			return nil, fmt.Errorf("reading its status: %w: the token needs read-fs in namespace %s", errDenied, t.Namespace)
		}
		return nil, fmt.Errorf("reading its status: %w: %s", errFailed, text)
	}
	s, err := status.Decode(data)
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading its status: %w: %w", errInvalid, err)
	case s.Alloc != t.Alloc:
		return nil, fmt.Errorf("reading its status: %w: it belongs to another allocation", errInvalid)
	}
	return &s, nil
}

// history reads a task's history, which the task may have forged.
func (f files) history(ctx context.Context, t top.Task) ([]status.Row, error) {
	data, err := f.read(ctx, "cat", t, historyPath(t), nil, maxHistory)
	if err != nil {
		return nil, fmt.Errorf("reading its history: %w", err)
	}
	return status.ParseHistory(data), nil
}

// tail reads the last bytes of a task's history.
func (f files) tail(ctx context.Context, t top.Task, bytes int) ([]status.Row, error) {
	// Frames are base64 in JSON.
	data, err := f.read(ctx, "stream", t, historyPath(t), url.Values{"origin": {"end"}, "offset": {strconv.Itoa(bytes)}, "follow": {"false"}}, 2*bytes+1<<16)
	if err != nil {
		return nil, fmt.Errorf("reading its history: %w", err)
	}
	var text []byte
	frames := json.NewDecoder(strings.NewReader(string(data)))
	for {
		var frame api.StreamFrame
		err := frames.Decode(&frame)
		switch {
		case errors.Is(err, io.EOF):
			return status.ParseHistory(text), nil
		case err != nil && len(text) == 0 && missing(string(data)):
			return nil, fmt.Errorf("reading its history: %w", fs.ErrNotExist)
		case err != nil:
			return nil, fmt.Errorf("reading its history: %w: %w", errInvalid, err)
		}
		text = append(text, frame.Data...)
	}
}

func historyPath(t top.Task) string { return path.Join("alloc", status.Dir, t.Task+".csv") }

func (f files) read(ctx context.Context, request string, t top.Task, file string, params url.Values, limit int) ([]byte, error) {
	data, err := allocfs.Read(ctx, f.client, request, t.Namespace, t.Alloc, file, params, limit)
	if errors.Is(err, private.ErrTooLarge) {
		return nil, fmt.Errorf("%w: more than %d bytes", errInvalid, limit)
	}
	return data, denied(err, "read-fs in namespace "+t.Namespace)
}

func missing(text string) bool { return allocfs.Missing(text[:min(len(text), 1000)]) }
