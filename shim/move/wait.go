// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/hashicorp/nomad/api"
)

// transient says whether what has failed may succeed a moment later: the server or an
// agent is being restarted, or a connection was cut.
func transient(err error) bool {
	var response api.UnexpectedResponseError
	if errors.As(err, &response) {
		// Nomad also says of an agent that is not there that it is not found.
		return response.StatusCode() >= http.StatusInternalServerError || response.StatusCode() == http.StatusNotFound
	}
	var network *url.Error
	var torn *json.SyntaxError
	return errors.Is(err, errEnding) || errors.As(err, &network) || errors.As(err, &torn) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

// gone says whether something is no more.
func gone(err error) bool {
	var response api.UnexpectedResponseError
	return errors.As(err, &response) && response.StatusCode() == http.StatusNotFound
}

// until looks again and again, until it is ok, or there is an error that stays.
func until(ctx context.Context, poll time.Duration, what string, ok func() (bool, error)) error {
	var last error
	for {
		done, err := ok()
		switch {
		case ctx.Err() != nil && last != nil:
			return fmt.Errorf("waiting until %s: %w; before: %w", what, ctx.Err(), last)
		case ctx.Err() != nil:
			return fmt.Errorf("waiting until %s: %w", what, ctx.Err())
		case err == nil && done, err != nil && !transient(err):
			return err
		}
		last = err
		select {
		case <-time.After(poll):
		case <-ctx.Done():
		}
	}
}

// persist does something, again and again while it fails for a reason that passes.
func persist(ctx context.Context, poll time.Duration, do func(context.Context) error) error {
	for {
		err := do(ctx)
		if err == nil || !transient(err) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return err
		}
	}
}

// decided waits until Nomad has dealt with a job as it was registered with an index, and
// says why it has not placed a group; nil if it has.
func decided(ctx context.Context, nomad Nomad, poll time.Duration, namespace, job, group string, index uint64) (unplaced *api.AllocationMetric, err error) {
	err = until(ctx, poll, "Nomad has decided", func() (bool, error) {
		evals, err := nomad.Evaluations(ctx, namespace, job)
		if err != nil {
			return false, err
		}
		var last *api.Evaluation
		for _, e := range evals {
			if e.JobModifyIndex < index || e.Status == api.EvalStatusBlocked {
				continue // of an earlier version; or what waits for room, of which another one told
			}
			if e.Status == api.EvalStatusPending {
				return false, nil
			}
			if last == nil || e.CreateIndex > last.CreateIndex {
				last = e
			}
		}
		if last == nil {
			return false, nil
		}
		unplaced = last.FailedTGAllocs[group]
		return true, nil
	})
	return unplaced, err
}

// every does something again and again until ctx ends.
func every(ctx context.Context, interval time.Duration, do func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			do()
		case <-ctx.Done():
			return
		}
	}
}
