// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/allocfs"
	"github.com/ebbtide/ebbtide/shim/document"
)

// API implements Nomad over its HTTP API.
type API struct {
	Client *api.Client
	// Agent returns a client of a node's own agent. Without it the limits of a node's garbage
	// collection are unknown.
	Agent func(node *api.Node) (*api.Client, error)
}

var _ Nomad = API{}

func query(ctx context.Context, namespace string) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: namespace}).WithContext(ctx)
}

func (a API) Allocation(ctx context.Context, id string) (*api.Allocation, error) {
	alloc, _, err := a.Client.Allocations().Info(id, query(ctx, api.AllNamespacesNamespace))
	if err != nil {
		return nil, fmt.Errorf("reading allocation %s: %w", short(id), err)
	}
	return alloc, nil
}

func (a API) Allocations(ctx context.Context, namespace, job string) ([]*api.AllocationListStub, error) {
	stubs, _, err := a.Client.Jobs().Allocations(job, true, query(ctx, namespace))
	if err != nil {
		return nil, fmt.Errorf("listing the allocations of job %s: %w", job, err)
	}
	return stubs, nil
}

func (a API) Job(ctx context.Context, namespace, id string) (*document.Job, error) {
	job := new(document.Job)
	if _, err := a.Client.Raw().Query("/v1/job/"+url.PathEscape(id), job, query(ctx, namespace)); err != nil {
		return nil, fmt.Errorf("reading job %s: %w", id, err)
	}
	return job, nil
}

func (a API) Deployment(ctx context.Context, namespace, job string) (*api.Deployment, error) {
	d, _, err := a.Client.Jobs().LatestDeployment(job, query(ctx, namespace))
	if err != nil {
		return nil, fmt.Errorf("reading the deployment of job %s: %w", job, err)
	}
	return d, nil
}

func (a API) Node(ctx context.Context, id string) (*api.Node, error) {
	node, _, err := a.Client.Nodes().Info(id, query(ctx, ""))
	if err != nil {
		return nil, fmt.Errorf("reading node %s: %w", short(id), err)
	}
	return node, nil
}

const reachTimeout = 10 * time.Second

// Reach implements Nomad: any answer of the agent will do.
func (a API) Reach(ctx context.Context, node string) error {
	_, err := a.stats(ctx, node)
	return err
}

func (a API) stats(ctx context.Context, node string) (*api.HostStats, error) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	stats, err := a.Client.Nodes().Stats(node, query(ctx, ""))
	if err != nil {
		return nil, fmt.Errorf("reaching node %s: %w", short(node), err)
	}
	return stats, nil
}

func (a API) Plan(ctx context.Context, job *document.Job) (*api.JobPlanResponse, error) {
	request := struct {
		Job  *document.Job
		Diff bool
	}{job, true}
	plan := new(api.JobPlanResponse)
	_, err := a.Client.Raw().Write("/v1/job/"+url.PathEscape(*job.ID)+"/plan", request, plan, write(ctx, job))
	switch {
	case err == nil:
		return plan, nil
	case identityRefused(err):
		return nil, fmt.Errorf("%w: %w", ErrNoPlan, err)
	}
	return nil, fmt.Errorf("planning the job: %w", err)
}

// identityRefused reports whether Nomad failed on a workload identity. Before 2.0.4 it looks for
// a token of that name after granting a plan (https://github.com/hashicorp/nomad/pull/28139).
func identityRefused(err error) bool {
	var response api.UnexpectedResponseError
	return errors.As(err, &response) && strings.Contains(response.Body(), "UUID must be 36 characters")
}

// Register implements Nomad. It keeps the job's submission, which the UI shows.
func (a API) Register(ctx context.Context, job *document.Job) (*api.JobRegisterResponse, error) {
	failed := func(err error) (*api.JobRegisterResponse, error) {
		return nil, fmt.Errorf("registering job %s: %w", *job.ID, err)
	}
	if err := checkEdits(job); err != nil {
		return failed(err)
	}
	request := struct {
		Job            *document.Job
		EnforceIndex   bool
		JobModifyIndex uint64
		Submission     *api.JobSubmission
	}{Job: job, EnforceIndex: true, JobModifyIndex: *job.JobModifyIndex}
	if job.Version != nil {
		if source, _, err := a.Client.Jobs().Submission(*job.ID, int(*job.Version), query(ctx, text(job.Namespace))); err == nil {
			request.Submission = source
		}
	}
	resp := new(api.JobRegisterResponse)
	if _, err := a.Client.Raw().Write("/v1/jobs", request, resp, write(ctx, job)); err != nil {
		return failed(err)
	}
	return resp, nil
}

func write(ctx context.Context, job *document.Job) *api.WriteOptions {
	return (&api.WriteOptions{Namespace: text(job.Namespace)}).WithContext(ctx)
}

func (a API) Versions(ctx context.Context, namespace, job string) ([]*document.Job, error) {
	var answer struct{ Versions []*document.Job }
	if _, err := a.Client.Raw().Query("/v1/job/"+url.PathEscape(job)+"/versions", &answer, query(ctx, namespace)); err != nil {
		return nil, fmt.Errorf("listing the versions of job %s: %w", job, err)
	}
	return answer.Versions, nil
}

func (a API) Tag(ctx context.Context, namespace, job string, version uint64, name string) error {
	opts := (&api.WriteOptions{Namespace: namespace}).WithContext(ctx)
	if _, err := a.Client.Jobs().TagVersion(job, version, name, "user's version, kept by Ebbtide because moves create versions", opts); err != nil {
		return fmt.Errorf("tagging version %d of job %s: %w", version, job, err)
	}
	return nil
}

func (a API) Untag(ctx context.Context, namespace, job, name string) error {
	opts := (&api.WriteOptions{Namespace: namespace}).WithContext(ctx)
	if _, err := a.Client.Jobs().UntagVersion(job, name, opts); err != nil {
		return fmt.Errorf("removing tag %s of job %s: %w", name, job, err)
	}
	return nil
}

func (a API) Evaluations(ctx context.Context, namespace, job string) ([]*api.Evaluation, error) {
	evals, _, err := a.Client.Jobs().Evaluations(job, query(ctx, namespace))
	if err != nil {
		return nil, fmt.Errorf("listing the evaluations of job %s: %w", job, err)
	}
	return evals, nil
}

func (a API) Signal(ctx context.Context, alloc *api.Allocation, task, signal string) error {
	if err := a.Client.Allocations().Signal(alloc, query(ctx, alloc.Namespace), task, signal); err != nil {
		return fmt.Errorf("sending %s: %w", signal, err)
	}
	return nil
}

// maxStatus bounds a status file, in bytes.
const maxStatus = 1 << 20

// Status implements Nomad. It reads the private status: the task can write the other one.
func (a API) Status(ctx context.Context, alloc *api.Allocation, task string) (status.Status, error) {
	var st status.Status
	data, err := a.cat(ctx, alloc, private.StatusName(task), maxStatus)
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal(data, &st); err != nil {
		// Nomad reports a missing file in the body of a response that has begun with 200.
		return st, fmt.Errorf("reading the status of task %s: %w: %.200q", task, err, data)
	}
	return st, nil
}

// maxRestored bounds the list of restored files, in bytes.
const maxRestored = 16 << 20

func (a API) Restored(ctx context.Context, alloc *api.Allocation, task string) (private.Restored, error) {
	data, err := a.PrivateFile(ctx, alloc, private.RestoredName(task), maxRestored)
	if err != nil {
		return nil, err
	}
	var found private.Restored
	if err := json.Unmarshal(data, &found); err != nil {
		return nil, fmt.Errorf("reading the files restored for task %s: %w: %.200q", task, err, data)
	}
	return found, nil
}

// PrivateFile reads a file of at most limit bytes from an allocation's private directory. The
// error wraps fs.ErrNotExist if there is none.
func (a API) PrivateFile(ctx context.Context, alloc *api.Allocation, name string, limit int) ([]byte, error) {
	if err := a.queryFile(ctx, "stat", alloc, path.Join(private.DirName, name), new(api.AllocFileInfo)); err != nil {
		return nil, err
	}
	return a.cat(ctx, alloc, name, limit)
}

// cat is PrivateFile without the check that the file exists.
func (a API) cat(ctx context.Context, alloc *api.Allocation, name string, limit int) ([]byte, error) {
	file := path.Join(private.DirName, name)
	data, err := allocfs.Read(ctx, a.Client, "cat", alloc.Namespace, alloc.ID, file, nil, limit)
	if err != nil {
		return nil, fileError(alloc, file, err)
	}
	return data, nil
}

// StatusFiles lists an allocation's tasks that have a status; none if none runs under Ebbtide.
func (a API) StatusFiles(ctx context.Context, alloc *api.Allocation) (tasks []string, err error) {
	var files []api.AllocFileInfo
	if err := a.queryFile(ctx, "ls", alloc, private.DirName, &files); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, f := range files {
		if task, ok := private.StatusTask(f.Name); ok {
			tasks = append(tasks, task)
		}
	}
	return tasks, nil
}

func (a API) queryFile(ctx context.Context, what string, alloc *api.Allocation, file string, answer any) error {
	if _, err := a.Client.Raw().Query(allocfs.URL(what, alloc.ID, file, nil), answer, query(ctx, alloc.Namespace)); err != nil {
		return fileError(alloc, file, err)
	}
	return nil
}

func fileError(alloc *api.Allocation, file string, err error) error {
	var response api.UnexpectedResponseError
	switch {
	case allocfs.Missing(err.Error()):
		err = fs.ErrNotExist
	case errors.As(err, &response) && response.StatusCode() == http.StatusForbidden:
		err = fmt.Errorf("%w: the token needs read-fs in namespace %s", err, alloc.Namespace)
	}
	return fmt.Errorf("reading %s of allocation %s: %w", file, short(alloc.ID), err)
}
