// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fake

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/device/handoff"
	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/auto"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/shim/move"
	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/shim/store"
)

// Example returns a cluster with a number of running tasks of many kinds, ended tasks, and a shim
// that has moved some. It always returns the same, except for times.
func Example(tasks int) *Cluster {
	c := New()
	random := rand.New(rand.NewPCG(1, 2))
	now := time.Now().UTC()
	perNode := 8
	nodes := max(1, (tasks+perNode-1)/perNode)
	for i := range nodes {
		n := c.Node(fmt.Sprintf("%08x-0000-4000-8000-00000000a0de", i+1), fmt.Sprintf("train-%02d", i+1))
		if i%17 == 16 {
			n.Drain = true
		}
	}
	models := []string{"resnet50", "bert-base", "vae", "gru-lm", "mlp-mnist", "unet", "wav2vec", "dlrm"}
	for i := range tasks {
		node := c.Nodes[i/perNode%nodes]
		namespace := []string{"default", "default", "vision", "speech"}[i%4]
		job := fmt.Sprintf("%s-%d", models[random.IntN(len(models))], i+1)
		alloc := c.Task(node.ID, namespace, job, func(s *status.Status) { exampleStatus(s, i, random, now) })
		c.Allocs[len(c.Allocs)-1].NodeName = node.Name
		c.History[alloc] = exampleHistory(random, now)
	}
	for i, n := range c.Nodes {
		c.exampleSnapshot(n.ID, i, now)
	}
	c.exampleEnded(random, now)
	c.exampleShim(now)
	return c
}

// exampleStatus sets the status of task i.
func exampleStatus(s *status.Status, i int, random *rand.Rand, now time.Time) {
	part := random.Float64()
	s.Total = status.Number(1000 * (1 + random.IntN(40)))
	s.Step = status.Number(math.Round(part * float64(s.Total)))
	s.Value = status.Number(0.3 + 2*math.Exp(-3*part))
	s.Use = status.Number(0.02 + 0.2*random.Float64())
	s.Limit.Fraction = status.Number(0.05 + 0.25*random.Float64())
	s.Fair.Finish = now.Add(time.Duration(60+random.IntN(7200)) * time.Second)
	s.Fair.FairFinish = s.Fair.Finish.Add(time.Duration(random.IntN(1800)) * time.Second)
	s.Node.Tasks, s.Node.Use, s.Node.SavedS = 8, status.Number(0.7+0.3*random.Float64()), status.Number(random.IntN(20000))
	s.Node.Counts = map[string]int{"NL": 5, "WL": 2, "CL": 1}
	s.Why = fmt.Sprintf("preferred: its twin has %d CPU-seconds remaining; ahead of its fair share by %d CPU-seconds", 100+random.IntN(900), random.IntN(90))
	switch {
	case i%23 == 5:
		s.Fair.Late, s.Rule = true, "fsp.late"
		s.Fair.FairFinish = now.Add(-90 * time.Second)
		s.Why = "late: its twin has ended, 42 CPU-seconds remaining; behind its fair share by 60 CPU-seconds"
	case i%11 == 3:
		u := status.Unknown()
		s.Kind, s.Category, s.Class, s.Metric, s.Rule = "service", "", []string{"G", "S", "B"}[i%3], "", "auto.service"
		s.Target.QoE, s.Target.Response = 0.25, status.Number(0.18+0.1*random.Float64())
		s.Fair, s.Step, s.Total = status.NoFair(), u, u
		s.Why = "its response time, 0.23 s, meets its target, 0.25 s: keeps its limit"
	case i%7 == 2:
		s.Category, s.Rule, s.Metric = "CL", "fsp.wait", "val_accuracy"
		s.Why = fmt.Sprintf("waits with its floor: its twin has %d CPU-seconds remaining", 1000+random.IntN(900))
	case i%5 == 1:
		s.Category = "WL"
	case i%29 == 8:
		Seat(s, handoff.Parked, 0, 408)
	}
}

func exampleHistory(random *rand.Rand, now time.Time) string {
	var rows []status.Row
	rate, ahead, limit := 40+60*random.Float64(), 0.0, 0.25
	for i := range 200 {
		if i%40 == 0 {
			limit = 0.05 + 0.4*random.Float64()
		}
		r := status.NewRow()
		r.Time, r.CPUSeconds, r.Step, r.Total = now.Add(time.Duration(i-200)*15*time.Second), float64(4*i), float64(40*i), 8000
		r.Value = 0.3 + 2*math.Exp(-float64(i)/rate) + 0.04*random.NormFloat64()
		r.Growth, r.Category, r.Limit = math.Exp(-float64(i)/rate)/20, "NL", limit
		r.Use = limit * (0.8 + 0.2*random.Float64())
		ahead += (r.Use - 0.2) * 15
		r.Ahead = ahead
		if i == 160 {
			r.Event = "converged"
		}
		rows = append(rows, r)
	}
	return string(status.FormatHistory(rows))
}

// exampleSnapshot sets the snapshot of a node's last decision.
func (c *Cluster) exampleSnapshot(node string, i int, now time.Time) {
	var snap policy.Snapshot
	if example, err := json.Marshal(auto.Policy().Example); err != nil || json.Unmarshal(example, &snap) != nil {
		panic("the example is not a snapshot")
	}
	snap.Node, snap.NowS, snap.Policy, snap.Params = node, float64(now.Unix()), "auto", nil
	known := snap.Tasks
	snap.Tasks = nil
	first := ""
	for _, a := range c.Allocs {
		if a.NodeID != node || len(snap.Tasks) == len(known) {
			continue
		}
		if first == "" {
			first = a.ID
		}
		t := known[len(snap.Tasks)]
		t.ID = a.ID + "/" + a.JobID + "/0f"
		snap.Tasks = append(snap.Tasks, t)
	}
	if first == "" {
		return
	}
	data, err := json.Marshal(snap)
	if err != nil {
		panic(err) // a valid example
	}
	c.Snapshots[first] = string(data)
}

// exampleEnded adds tasks that have ended over some days.
func (c *Cluster) exampleEnded(random *rand.Rand, now time.Time) {
	for i := range 40 {
		at := now.Add(-time.Duration(i*2+1) * time.Hour)
		fair := time.Duration(600+random.IntN(6000)) * time.Second
		e := status.Ended{Took: fair - time.Duration(random.IntN(int(fair/2/time.Second)))*time.Second, Fair: fair}
		if i%9 == 4 {
			e.Took, e.Why = fair+4*time.Minute, "it was first estimated at 300 CPU-seconds, and used 420"
		}
		job := fmt.Sprintf("nightly-%d", i%6)
		c.Allocs = append(c.Allocs, &api.AllocationListStub{
			ID: fmt.Sprintf("eeee%04x-0000-4000-8000-000000000000", i), Namespace: "default", JobID: job, TaskGroup: "train", NodeID: c.Nodes[0].ID, NodeName: c.Nodes[0].Name,
			ClientStatus: api.AllocClientStatusComplete, TaskStates: map[string]*api.TaskState{job: {State: "dead", FinishedAt: at, Events: []*api.TaskEvent{
				{Type: api.TaskDriverMessage, Time: at.UnixNano(), DisplayMessage: "ebbtide: " + e.String()},
			}}},
		})
	}
}

// exampleShim adds moves of a shim.
func (c *Cluster) exampleShim(now time.Time) {
	if len(c.Nodes) < 2 {
		return
	}
	for i := range 6 {
		at := now.Add(-time.Duration(6-i) * 20 * time.Minute)
		items := api.VariableItems{
			"time": at.Format(time.RFC3339Nano), "namespace": "vision", "job": fmt.Sprintf("unet-%d", 40+i), "alloc": fmt.Sprintf("cafe000%d", i), "from": c.Nodes[0].Name,
			"to": c.Nodes[1].Name, "policy": "relocate", "rule": "relocate.sooner", "why": "it ends 41 minutes sooner there", "phase": "done", "down_s": "1.4", "dry_run": "false",
		}
		if i == 2 {
			items["error"], items["phase"], items["down_s"] = "it has not saved within 30s", "save", ""
		}
		c.Variables[fmt.Sprintf("moves/%020d-cafe000%d", at.UnixNano(), i)] = items
	}
	report, err := json.Marshal(store.Report{
		Version: "0.1.0", At: now, Nodes: len(c.Nodes), InFlight: 1, InFlightMax: 2, Started: 1, StartedMax: 6, Held: []string{"speech/wav2vec-99"},
		Queue: []store.Queued{
			{Namespace: "speech", Job: "wav2vec-98", Number: 1, Owner: "speech", Start: now.Add(12 * time.Minute), End: now.Add(52 * time.Minute), Late: true, Why: "no place is free"},
			{Namespace: "vision", Job: "unet-97", Number: 2, Owner: "vision", Suspended: true, Start: now.Add(52 * time.Minute), FairEnd: now.Add(3 * time.Hour), Priority: -1, Why: "suspended at step 2400: no place is free"},
			{Namespace: "vision", Job: "vae-96", Number: 3, Owner: "vision", Order: store.DoHold, Why: "on hold since 2026-01-05T09:00:00Z by ada: its data is not complete"},
			{Namespace: c.Allocs[0].Namespace, Job: c.Allocs[0].JobID, Owner: "default", Node: c.Nodes[0].Name, End: now.Add(12 * time.Minute), FairEnd: now.Add(40 * time.Minute), Why: "runs"},
		},
		Owners: []queue.OwnerShare{
			{Owner: queue.Owner{Name: "default", Weight: 1}, Use: 0.625, Share: 0.25, Running: 1},
			{Owner: queue.Owner{Name: "vision", Weight: 2}, Share: 0.5, Waiting: 2},
			{Owner: queue.Owner{Name: "speech", Weight: 1}, Share: 0.25, Waiting: 1},
		},
		Reasons: []store.Reason{
			{Namespace: "default", Job: "bert-base-7", Text: "not moved now: it would be done before the move had paid"},
			{Namespace: "vision", Job: "unet-40", Text: "not moved now: its last move was 4 minutes ago, the cooldown is 10m0s"},
		},
	})
	if err != nil {
		panic(err) // own data
	}
	c.Variables["report"] = api.VariableItems{"json": string(report)}
	c.Variables["leader"] = api.VariableItems{"holder": "ctl-1, process 812", "since": now.Add(-50 * time.Hour).Format(time.RFC3339Nano)}
	c.Claims = []move.Record{{
		ID: "4f02", Namespace: "default", Job: c.Allocs[0].JobID, Alloc: c.Allocs[0].ID, Source: c.Nodes[0].ID, Target: c.Nodes[1].ID, Phase: move.PhaseWait,
		Owner: "ebbtide shim on ctl-1", Why: "it ends 12 minutes sooner there", Until: now.Add(25 * time.Second),
	}}
}
