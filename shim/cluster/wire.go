// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cluster

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/remaining/history"
	"github.com/ebbtide/ebbtide/internal/optin"
)

// The types below are the required parts of Nomad's objects. Decoding the API's types takes several
// times as long.

type WireNode struct {
	ID, Name, Datacenter, NodePool, NodeClass string
	Status, SchedulingEligibility             string
	Drain                                     bool
	Drivers                                   map[string]struct {
		Detected, Healthy bool
		Attributes        map[string]string
	}
	NodeResources struct {
		Cpu struct {
			CpuShares          int64
			ReservableCpuCores []uint16
		}
		Memory  struct{ MemoryMB int64 }
		Disk    struct{ DiskMB int64 }
		Devices []struct {
			Vendor, Type, Name string
			Instances          []struct{ Healthy bool }
		}
	}
	ReservedResources struct {
		Cpu    struct{ CpuShares int64 }
		Memory struct{ MemoryMB int64 }
		Disk   struct{ DiskMB int64 }
	}
	ModifyIndex uint64
}

// DriverAttribute returns an attribute of Ebbtide's driver, which runs under its own name or
// replaces Nomad's docker driver; "" if not found.
func DriverAttribute(attributes map[string]string, name string) string {
	return cmp.Or(attributes["driver.ebbtide."+name], attributes["driver.docker.ebbtide."+name])
}

func (w WireNode) node() *Node {
	n := &Node{
		ID: w.ID, Name: w.Name, Datacenter: w.Datacenter, Pool: w.NodePool, Class: w.NodeClass, Index: w.ModifyIndex,
		Schedulable: w.Status == api.NodeStatusReady && w.SchedulingEligibility == api.NodeSchedulingEligible && !w.Drain,
		Drivers:     make(map[string]bool, len(w.Drivers)),
		Capacity: Resources{
			MHz:      w.NodeResources.Cpu.CpuShares - w.ReservedResources.Cpu.CpuShares,
			MemoryMB: w.NodeResources.Memory.MemoryMB - w.ReservedResources.Memory.MemoryMB,
			DiskMB:   w.NodeResources.Disk.DiskMB - w.ReservedResources.Disk.DiskMB,
			Cores:    int64(len(w.NodeResources.Cpu.ReservableCpuCores)),
		},
	}
	for _, d := range w.NodeResources.Devices {
		device := Device{Vendor: d.Vendor, Type: d.Type, Name: d.Name}
		for _, i := range d.Instances {
			if i.Healthy {
				device.Count++
			}
		}
		n.Devices = append(n.Devices, device)
	}
	for name, d := range w.Drivers {
		if !d.Detected || !d.Healthy {
			continue
		}
		n.Drivers[name] = true
		if cores, err := strconv.ParseFloat(DriverAttribute(d.Attributes, "pool_cores"), 64); err == nil && cores > 0 {
			n.PoolCores, n.Engine = cores, DriverAttribute(d.Attributes, "engine")
		}
	}
	return n
}

type WireJob struct {
	ID, Namespace, Type string
	Status              string
	Stop, Dispatched    bool
	ParentID            string
	Periodic            *struct{}
	ParameterizedJob    *struct{}
	Datacenters         []string
	NodePool            string
	Meta                map[string]string
	Constraints         []WireConstraint
	TaskGroups          []struct {
		Name          string
		Count         int
		Meta          map[string]string
		Constraints   []WireConstraint
		EphemeralDisk *struct {
			SizeMB          int64
			Sticky, Migrate bool
		}
		Tasks []WireTask
	}
	SubmitTime  int64 // nanoseconds
	ModifyIndex uint64
}

type WireConstraint struct{ LTarget, RTarget string }

func held(all []WireConstraint) bool {
	return slices.ContainsFunc(all, func(c WireConstraint) bool { return c.LTarget == Hold })
}

func bound(all []WireConstraint) (node string, ok bool) {
	i := slices.IndexFunc(all, func(c WireConstraint) bool { return HasMark(c.LTarget, c.RTarget) })
	if i < 0 {
		return "", false
	}
	return BoundTo(all[i].RTarget), true
}

type WireTask struct {
	Name, Driver string
	Config       map[string]json.RawMessage
	Constraints  []WireConstraint
	Lifecycle    *struct{ Hook string }
	Resources    struct {
		CPU, Cores, MemoryMB int64
		Devices              []struct {
			Name  string
			Count *uint64
		}
	}
}

// ours reports whether the task may run under Ebbtide; for "docker" it depends on the node.
func (t WireTask) ours() bool {
	return t.Lifecycle == nil && (t.Driver == "ebbtide" || t.Driver == "docker")
}

// shared reports whether the task saves to a volume that is the same on every node.
func (t WireTask) shared() bool {
	var blocks []struct{ Shared bool } // Nomad encodes a block as a list of maps
	return json.Unmarshal(t.Config["checkpoint"], &blocks) == nil && len(blocks) == 1 && blocks[0].Shared
}

// queue reads the job's meta for the queue.
func (j *Job) queue(w WireJob) {
	if w.Meta[optin.Queue] != "true" {
		return
	}
	j.Queued, j.Owner = true, w.Namespace
	var wrong []string
	for _, m := range []struct {
		key  string
		read func(value string) error
	}{
		{optin.Owner, func(v string) (err error) {
			if err = optin.CheckOwner(v); err == nil {
				j.Owner = v
			}
			return err
		}},
		{optin.Duration, func(v string) (err error) { j.Duration, err = optin.ReadDuration(v); return err }},
		{optin.Priority, func(v string) (err error) { j.Priority, err = optin.ReadPriority(v); return err }},
	} {
		if value := w.Meta[m.key]; value != "" {
			if err := m.read(value); err != nil {
				wrong = append(wrong, m.key+": "+err.Error())
			}
		}
	}
	j.QueueError = strings.Join(wrong, "; ")
}

func (w WireJob) job() *Job {
	j := &Job{
		Key: JobKey{w.Namespace, w.ID}, Type: w.Type, Stopped: w.Stop, Dead: w.Status == "dead", Datacenters: w.Datacenters, Pool: w.NodePool,
		Child:    w.ParentID != "" || w.Dispatched,
		Template: !w.Dispatched && w.ParentID == "" && (w.Periodic != nil || w.ParameterizedJob != nil),
		Groups:   make(map[string]Group, len(w.TaskGroups)), Held: held(w.Constraints), Submitted: time.Unix(0, w.SubmitTime), Index: w.ModifyIndex,
	}
	// The driver rejects invalid values.
	j.Migrates, _ = optin.Policies(w.Meta[optin.Migrate])
	j.Cooldown, _ = optin.ReadCooldown(w.Meta[optin.Cooldown])
	j.queue(w)
	for _, g := range w.TaskGroups {
		group := Group{Count: g.Count, Movable: true, Shared: true, Adopts: g.Meta[optin.Adopt]}
		group.Node, group.Bound = bound(g.Constraints)
		j.Held = j.Held || held(g.Constraints)
		if g.EphemeralDisk != nil {
			group.Requested.DiskMB = g.EphemeralDisk.SizeMB
			group.MovesDisk = g.EphemeralDisk.Sticky && g.EphemeralDisk.Migrate
		}
		for _, t := range g.Tasks {
			j.Held = j.Held || held(t.Constraints)
			if t.Lifecycle != nil {
				continue
			}
			asks := Resources{MHz: t.Resources.CPU, MemoryMB: t.Resources.MemoryMB, Cores: t.Resources.Cores}
			if asks.Cores > 0 {
				asks.MHz = 0 // Nomad ignores it
			}
			group.Requested = group.Requested.Plus(asks)
			for _, d := range t.Resources.Devices {
				if group.Devices == nil {
					group.Devices = make(map[string]int64)
				}
				count := int64(1)
				if d.Count != nil {
					count = int64(*d.Count)
				}
				group.Devices[d.Name] += count
			}
			if t.Driver == "ebbtide" {
				if group.Engine = "exec"; len(t.Config["image"]) > 0 {
					group.Engine = "docker"
				}
			}
			group.Shared = group.Shared && t.shared()
			group.Movable = group.Movable && t.ours() && len(t.Config["checkpoint"]) > 0
			group.Tasks, group.Drivers = append(group.Tasks, t.Name), append(group.Drivers, t.Driver)
		}
		group.Movable = group.Movable && len(group.Tasks) > 0
		j.Groups[g.Name] = group
	}
	return j
}

type WireAlloc struct {
	ID, Namespace, JobID, TaskGroup, NodeID string
	ClientStatus, DesiredStatus             string
	AllocatedResources                      struct {
		Tasks map[string]struct {
			Cpu struct {
				CpuShares     int64
				ReservedCores []uint16
			}
			Memory  struct{ MemoryMB int64 }
			Devices []struct {
				Vendor, Type, Name string
				DeviceIDs          []string
			}
		}
		Shared struct{ DiskMB int64 }
	}
	TaskStates map[string]struct {
		StartedAt, FinishedAt *time.Time
		Events                []struct {
			Time    int64 // nanoseconds
			Details map[string]string
		}
	}
	CreateTime  int64 // nanoseconds
	ModifyIndex uint64
}

func (w WireAlloc) terminal() bool {
	switch w.ClientStatus {
	case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
		return true
	}
	return false
}

// runs returns the completed runs recorded by the driver in task events.
func (w WireAlloc) runs() []Run {
	var all []Run
	for task, t := range w.TaskStates {
		took := time.Duration(0)
		if t.StartedAt != nil && t.FinishedAt != nil {
			took = max(t.FinishedAt.Sub(*t.StartedAt), 0)
		}
		for _, e := range t.Events {
			if text := e.Details[history.Annotation]; text != "" && len(text) <= maxRunText {
				all = append(all, Run{JobKey{w.Namespace, w.JobID}, w.TaskGroup, task, w.NodeID, text, time.Unix(0, e.Time), took})
			}
		}
	}
	return all
}

func (w WireAlloc) alloc() *Alloc {
	a := &Alloc{
		ID: w.ID, Job: JobKey{w.Namespace, w.JobID}, Group: w.TaskGroup, Node: w.NodeID, Index: w.ModifyIndex,
		Running:   w.ClientStatus == api.AllocClientStatusRunning,
		Stopping:  w.DesiredStatus != api.AllocDesiredStatusRun,
		Created:   time.Unix(0, w.CreateTime),
		Allocated: Resources{DiskMB: w.AllocatedResources.Shared.DiskMB},
	}
	for _, t := range w.AllocatedResources.Tasks {
		a.Allocated.MHz += t.Cpu.CpuShares
		a.Allocated.Cores += int64(len(t.Cpu.ReservedCores))
		a.Allocated.MemoryMB += t.Memory.MemoryMB
		for _, d := range t.Devices {
			a.Devices = append(a.Devices, Device{d.Vendor, d.Type, d.Name, int64(len(d.DeviceIDs))})
		}
	}
	for name, t := range w.TaskStates {
		if t.StartedAt != nil && !t.StartedAt.IsZero() && (a.Started.IsZero() || t.StartedAt.Before(a.Started)) {
			a.Started = *t.StartedAt
		}
		for _, e := range t.Events {
			// The driver's event for a converged task (driver/control).
			if at := time.Unix(0, e.Time); e.Details["ebbtide"] == "move" && at.After(a.MoveRequested) {
				a.MoveRequested, a.Task = at, name
			}
		}
	}
	return a
}
