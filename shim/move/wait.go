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

// transient reports whether a retry may succeed: a server or agent restarts, or a connection
// was cut.
func transient(err error) bool {
	var response api.UnexpectedResponseError
	if errors.As(err, &response) {
		// Nomad also answers 404 for an agent that is not connected.
		return response.StatusCode() >= http.StatusInternalServerError || response.StatusCode() == http.StatusNotFound
	}
	var network *url.Error
	var torn *json.SyntaxError
	return errors.Is(err, errTransition) || errors.As(err, &network) || errors.As(err, &torn) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

func notFound(err error) bool {
	var response api.UnexpectedResponseError
	return errors.As(err, &response) && response.StatusCode() == http.StatusNotFound
}

// until polls until ok returns true or a permanent error.
func until(ctx context.Context, poll time.Duration, what string, ok func() (bool, error)) error {
	var last error
	for {
		done, err := ok()
		switch {
		case ctx.Err() != nil && last != nil:
			return fmt.Errorf("waiting until %s: %w; last error: %w", what, ctx.Err(), last)
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

// retry repeats do while it fails transiently.
func retry(ctx context.Context, poll time.Duration, do func(context.Context) error) error {
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

// waitEvaluated waits until Nomad has evaluated the job as registered at index, and returns why
// the group was not placed, nil if it was.
func waitEvaluated(ctx context.Context, nomad Nomad, poll time.Duration, namespace, job, group string, index uint64) (unplaced *api.AllocationMetric, err error) {
	err = until(ctx, poll, "Nomad has evaluated the job", func() (bool, error) {
		evals, err := nomad.Evaluations(ctx, namespace, job)
		if err != nil {
			return false, err
		}
		var last *api.Evaluation
		for _, e := range evals {
			if e.JobModifyIndex < index || e.Status == api.EvalStatusBlocked {
				continue // of an earlier version; or blocked, as another evaluation reports
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
