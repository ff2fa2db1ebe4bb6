// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package page

import (
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/top"
)

// row is a task in the table: a few fields of a top.Task, as 10,000 rows may be sent.
type row struct {
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
	Group     string `json:"group"`
	Task      string `json:"task"`
	Alloc     string `json:"alloc"`
	Node      string `json:"node"`
	NodeID    string `json:"node_id"`
	State     string `json:"state"`
	Stale     bool   `json:"stale,omitempty"`
	Error     string `json:"error,omitempty"`

	Service  bool          `json:"service,omitempty"`
	Metric   string        `json:"metric,omitempty"`
	Value    status.Number `json:"value"`
	Target   status.Number `json:"target"` // response time of a service, in seconds
	Diverged bool          `json:"diverged,omitempty"`
	Step     status.Number `json:"step"`
	Total    status.Number `json:"total"`
	Finish   time.Time     `json:"finish,omitzero"`
	Fair     time.Time     `json:"fair,omitzero"` // end under fair sharing
	GapS     status.Number `json:"gap_s"`
	Late     bool          `json:"late,omitempty"`
	Use      status.Number `json:"use"`
	Limit    status.Number `json:"limit"`
	Rule     string        `json:"rule,omitempty"`
	Why      string        `json:"why,omitempty"`
	// Values are the metric's last values, if they were read.
	Values []status.Number `json:"values,omitempty"`
}

func newRow(t top.Task) row {
	u := status.Unknown()
	r := row{
		Namespace: t.Namespace, Job: t.Job, Group: t.Group, Task: t.Task, Alloc: t.Alloc, Node: t.Node, NodeID: t.NodeID, State: t.State(),
		Stale: t.Stale, Error: t.Error, Values: t.Values, Value: u, Target: u, Step: u, Total: u, Use: u, Limit: u, GapS: status.Number(t.Gap()),
	}
	s := t.Status
	if s == nil {
		return r
	}
	r.Metric, r.Value, r.Diverged, r.Step, r.Total = s.Metric, s.Value, s.Diverged, s.Step, s.Total
	if s.Kind == "service" {
		r.Service, r.Metric, r.Value, r.Target = true, "response", s.Target.Response, s.Target.QoE
	}
	r.Finish, r.Fair, r.Late = s.Fair.Finish, s.Fair.FairFinish, s.Fair.Late
	r.Use, r.Limit, r.Rule, r.Why = s.Use, s.Limit.Fraction, s.Rule, s.Why
	return r
}
