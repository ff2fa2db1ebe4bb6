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

// maxHistory bounds what is read of a history, in bytes: some times what the driver writes.
const maxHistory = 4 << 20

// errNonsense says that a file was read, and is not what it should be.
var errNonsense = errors.New("it is not what the driver writes")

// errSaid says that Nomad has answered with an error in the place of a file.
var errSaid = errors.New("nomad cannot read it")

// files reads files of allocations.
type files struct{ client *api.Client }

// status reads the private status of a task, where the task itself cannot write.
func (f files) status(ctx context.Context, t top.Task) (*status.Status, error) {
	data, err := f.read(ctx, "cat", t, path.Join(private.DirName, private.StatusName(t.Task)), nil, status.MaxStatus)
	if err != nil {
		return nil, fmt.Errorf("reading its status: %w", err)
	}
	if text := string(data); len(data) > 0 && data[0] != '{' && len(data) < 1000 {
		// Nomad has begun its answer when it finds out that it cannot give it, and says why
		// there.
		switch {
		case missing(text):
			return nil, fmt.Errorf("reading its status: %w", fs.ErrNotExist)
		case strings.Contains(text, api.PermissionDeniedErrorContent):
			return nil, fmt.Errorf("reading its status: %w: it needs read-fs in namespace %s", errDenied, t.Namespace)
		}
		return nil, fmt.Errorf("reading its status: %w: %s", errSaid, text)
	}
	s, err := status.Decode(data)
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading its status: %w: %w", errNonsense, err)
	case s.Alloc != t.Alloc:
		return nil, fmt.Errorf("reading its status: %w: it is of another allocation", errNonsense)
	}
	return &s, nil
}

// history reads the whole history of a task. The task could have written it.
func (f files) history(ctx context.Context, t top.Task) ([]status.Row, error) {
	data, err := f.read(ctx, "cat", t, historyPath(t), nil, maxHistory)
	if err != nil {
		return nil, fmt.Errorf("reading its history: %w", err)
	}
	return status.ParseHistory(data), nil
}

// end reads the last bytes of the history of a task.
func (f files) end(ctx context.Context, t top.Task, bytes int) ([]status.Row, error) {
	// Frames carry their data in base64.
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
			return nil, fmt.Errorf("reading its history: %w: %w", errNonsense, err)
		}
		text = append(text, frame.Data...)
	}
}

func historyPath(t top.Task) string { return path.Join("alloc", status.Dir, t.Task+".csv") }

// read reads a file of at most limit bytes.
func (f files) read(ctx context.Context, request string, t top.Task, file string, params url.Values, limit int) ([]byte, error) {
	data, err := allocfs.Read(ctx, f.client, request, t.Namespace, t.Alloc, file, params, limit)
	if errors.Is(err, private.ErrTooLarge) {
		return nil, fmt.Errorf("%w: it has more than %d bytes", errNonsense, limit)
	}
	return data, denied(err, "read-fs in namespace "+t.Namespace)
}

// missing says whether an answer that has begun says that there is no such file.
func missing(text string) bool { return allocfs.Missing(text[:min(len(text), 1000)]) }
