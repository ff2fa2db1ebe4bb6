// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package allocfs reads files of allocations through the configured agent. The API's own
// AllocFS opens a connection to the node for each file, and Nomad allows 100.
package allocfs

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/private"
)

// URL returns the path of a request (cat, stat, ls, stream) for a file of an allocation.
func URL(request, alloc, file string, params url.Values) string {
	all := url.Values{"path": {file}}
	for name, values := range params {
		all[name] = values
	}
	return "/v1/client/fs/" + request + "/" + alloc + "?" + all.Encode()
}

// Read reads a file of at most limit bytes. The error is fs.ErrNotExist, wraps private.ErrTooLarge,
// or is Nomad's.
func Read(ctx context.Context, client *api.Client, request, namespace, alloc, file string, params url.Values, limit int) ([]byte, error) {
	body, err := client.Raw().Response(URL(request, alloc, file, params), (&api.QueryOptions{Namespace: namespace}).WithContext(ctx))
	switch {
	case err != nil && Missing(err.Error()):
		return nil, fs.ErrNotExist
	case err != nil:
		return nil, err
	}
	defer body.Close()
	data, err := io.ReadAll(io.LimitReader(body, int64(limit)+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > limit:
		return nil, fmt.Errorf("%w: more than %d bytes", private.ErrTooLarge, limit)
	}
	return data, nil
}

// Missing reports whether an error's text means that the file does not exist, since Nomad has no
// distinct status for it.
func Missing(text string) bool { return strings.Contains(text, "no such file or directory") }
