// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package page

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/top"
	"github.com/ebbtide/ebbtide/top/snapshot"
)

// queryTimeout bounds a viewer's query.
const queryTimeout = 20 * time.Second

// query runs a viewer's query and responds with the result. A token has two concurrent queries.
func (s *server) query(w http.ResponseWriter, r *http.Request, do func(context.Context, *watch) (any, error)) {
	watch := s.watching(w, r)
	if watch == nil {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	select {
	case watch.queries <- struct{}{}:
		defer func() { <-watch.queries }()
	case <-ctx.Done():
		refuse(w, http.StatusServiceUnavailable, "too many requests with this token: try again")
		return
	}
	answer, err := do(ctx, watch)
	if err != nil {
		deny(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(encode(answer))
}

// known returns the last view of the cluster, or an error if there is none yet.
func (w *watch) known() (*top.View, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.view == nil {
		return nil, denial{http.StatusServiceUnavailable, "nothing was read yet"}
	}
	return w.view, nil
}

// curves is a task's history in columns.
type curves struct {
	Time   []int64         `json:"time"`  // milliseconds since the Unix epoch
	Value  []status.Number `json:"value"` // or steps
	Steps  bool            `json:"steps"`
	Growth []status.Number `json:"growth"`
	Use    []status.Number `json:"use"`
	Limit  []status.Number `json:"limit"`
	Ahead  []status.Number `json:"ahead"` // CPU-seconds ahead of its fair share
	Marks  []mark          `json:"marks"`
}

// mark is an event in a task's history.
type mark struct {
	Time int64  `json:"time"`
	Text string `json:"text"`
}

// task responds with everything known about a task.
func (s *server) task(w http.ResponseWriter, r *http.Request) {
	key := top.Key{Alloc: r.FormValue("alloc"), Task: r.FormValue("task")}
	s.query(w, r, func(ctx context.Context, watch *watch) (any, error) {
		view, err := watch.known()
		if err != nil {
			return nil, err
		}
		t := view.Task(key)
		if t == nil {
			return nil, denial{http.StatusNotFound, "the task is no longer running, or may not be read with this token"}
		}
		answer := struct {
			top.Task
			State  string `json:"state"`
			Curves curves `json:"curves"`
			// NoCurves is the reason for missing curves; "" if there are some.
			NoCurves string `json:"no_curves,omitempty"`
		}{Task: *t, State: t.State()}
		rows, err := watch.gatherer.Curve(ctx, *t)
		if err != nil {
			answer.NoCurves = err.Error()
		}
		answer.Curves = columns(rows)
		return answer, nil
	})
}

func columns(rows []status.Row) curves {
	c := curves{Time: []int64{}, Marks: []mark{}}
	var course []float64
	course, c.Steps = status.Course(rows)
	for i, r := range rows {
		c.Time = append(c.Time, r.Time.UnixMilli())
		c.Value, c.Growth = append(c.Value, status.Number(course[i])), append(c.Growth, status.Number(r.Growth))
		c.Use, c.Limit = append(c.Use, status.Number(r.Use)), append(c.Limit, status.Number(r.Limit))
		c.Ahead = append(c.Ahead, status.Number(r.Ahead))
		if r.Event != "" {
			c.Marks = append(c.Marks, mark{r.Time.UnixMilli(), r.Event})
		}
	}
	return c
}

// comparison is what each policy would decide for a node.
type comparison struct {
	Node     string    `json:"node"`
	Time     time.Time `json:"time"` // of the snapshot
	Running  string    `json:"running"`
	Policies []answer  `json:"policies"`
	Tasks    []asked   `json:"tasks"`
}

// answer is a policy's result.
type answer struct {
	Name     string `json:"name"`
	Synopsis string `json:"synopsis"`
	Error    string `json:"error,omitempty"` // why it cannot decide
}

// asked is a task with each policy's decision in the policies' order; null for none.
type asked struct {
	Job       string        `json:"job"` // "": not readable with this token
	Task      string        `json:"task"`
	Namespace string        `json:"namespace"`
	Alloc     string        `json:"alloc"`
	Limit     status.Number `json:"limit"` // in force
	Decisions []*decision   `json:"decisions"`
}

type decision struct {
	ID    string        `json:"id"`
	Limit status.Number `json:"limit"`
	Stop  bool          `json:"stop"`
	Late  bool          `json:"late"`
	Rule  string        `json:"rule"`
	Why   string        `json:"why"`
}

// policies responds with what each policy would decide for a node. Like `ebbtide decide`, it runs
// them on the snapshot of the node's last decision.
func (s *server) policies(w http.ResponseWriter, r *http.Request) {
	id := r.FormValue("node")
	s.query(w, r, func(ctx context.Context, watch *watch) (any, error) {
		view, err := watch.known()
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(view.Nodes, func(n top.Node) bool { return n.ID == id }) {
			return nil, denial{http.StatusNotFound, "no such node runs Ebbtide's driver"}
		}
		data, err := snapshot.OfNode(ctx, watch.client, id)
		if err != nil {
			return nil, err
		}
		return compare(data, view)
	})
}

// compare runs all policies on a snapshot.
func compare(data []byte, view *top.View) (comparison, error) {
	var snap policy.Snapshot
	if err := json.Unmarshal(data, &snap); err != nil {
		return comparison{}, fmt.Errorf("the snapshot is not what the driver writes: %w", err)
	}
	c := comparison{Node: snap.Node, Time: snapshot.TakenAt(data).UTC(), Running: snap.Policy, Policies: []answer{}, Tasks: []asked{}}
	var ids []string // of c.Tasks
	for _, t := range snap.Tasks {
		if t.Ended {
			continue
		}
		a := asked{Limit: status.Number(t.Bound())}
		a.Alloc, a.Task = nameOf(t.ID)
		if known := view.Task(top.Key{Alloc: a.Alloc, Task: a.Task}); known != nil {
			a.Namespace, a.Job = known.Namespace, known.Job
		} else {
			a.Alloc, a.Task = "", ""
		}
		c.Tasks, ids = append(c.Tasks, a), append(ids, t.ID)
	}
	for _, p := range policies.All() {
		a := answer{Name: p.Name, Synopsis: p.Synopsis}
		decided, err := decide(p, data)
		if err != nil {
			a.Error = err.Error()
		}
		for i, id := range ids {
			c.Tasks[i].Decisions = append(c.Tasks[i].Decisions, decided[id])
		}
		c.Policies = append(c.Policies, a)
	}
	slices.SortStableFunc(c.Tasks, func(a, b asked) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Task, b.Task))
	})
	return c, nil
}

// decide runs a policy.
func decide(p policy.Policy, data []byte) (map[string]*decision, error) {
	out, err := p.Decide(data)
	if err != nil {
		return nil, err
	}
	var outcome struct {
		Tasks []*decision `json:"tasks"`
	}
	if err := json.Unmarshal(encode(out), &outcome); err != nil {
		return nil, err
	}
	all := make(map[string]*decision)
	for _, d := range outcome.Tasks {
		all[d.ID] = d
	}
	return all, nil
}

// nameOf splits Nomad's ID of a task into allocation and task.
func nameOf(id string) (alloc, task string) {
	alloc, rest, _ := strings.Cut(id, "/")
	task, _, _ = strings.Cut(rest, "/")
	return alloc, task
}
