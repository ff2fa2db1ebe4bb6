// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nomad

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/ebbtide/ebbtide/driver/status"
)

// Options describe a cluster.
type Options struct {
	Nodes     int
	PerNode   int     // allocations per node
	Trainings float64 // fraction of allocations that are training jobs'
	// Waiting is the number of jobs that wait in the queue. The training jobs are in the queue as well
	// then, and have all memory that is not the services', so that no place is free.
	Waiting int
	Seed    uint64
	// Heartbeat is the stream's interval; 0 means Nomad's.
	Heartbeat time.Duration
}

func (o Options) Validate() error {
	var errs []error
	if o.Nodes < 1 {
		errs = append(errs, fmt.Errorf("nodes: must be ≥ 1, got %d", o.Nodes))
	}
	if o.PerNode < 1 {
		errs = append(errs, fmt.Errorf("allocations per node: must be ≥ 1, got %d", o.PerNode))
	}
	if !(o.Trainings >= 0 && o.Trainings <= 1) {
		errs = append(errs, fmt.Errorf("fraction of training jobs: must be from 0 to 1, got %v", o.Trainings))
	}
	if o.Waiting < 0 {
		errs = append(errs, fmt.Errorf("waiting jobs: must be ≥ 0, got %d", o.Waiting))
	}
	return errors.Join(errs...)
}

func (o Options) allocs() int { return o.Nodes * o.PerNode }

// Common properties of objects.
const (
	version    = "1.11.2"
	cores      = 64
	mhz        = 2600 // per core
	poolCores  = 60
	perService = 10 // approximate allocations per service
	trainingNS = "ml"
	serviceNS  = "default"
	task       = "main"
	group      = "group"
)

// begun is long ago, so no object counts as new.
var begun = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Purposes of random numbers; each object has its own, so none need be stored.
const (
	drawNode = iota
	drawAlloc
	drawEval
)

func (o Options) draw(what, i int) *rand.Rand {
	return rand.New(rand.NewPCG(o.Seed, uint64(what)<<48|uint64(i)))
}

// uuid encodes a number as an ID.
func uuid(r *rand.Rand, i int) string {
	a, b := r.Uint64(), r.Uint64()
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", uint32(i), a>>48, a>>32&0xffff, a>>16&0xffff, b&0xffffffffffff)
}

// number decodes an ID; false if it is not below n.
func number(id string, n int) (int, bool) {
	if len(id) != 36 {
		return 0, false
	}
	i, err := strconv.ParseUint(id[:8], 16, 32)
	return int(i), err == nil && int(i) < n
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

func (o Options) nodeID(i int) string { return uuid(o.draw(drawNode, i), i) }

// alloc holds an allocation's random properties.
type alloc struct {
	number   int
	id       string
	training bool
	job      string
	category string // of a training task: NL, WL, CL
	growth   float64
	mhz, mb  int64
}

func (o Options) alloc(i int) alloc {
	r := o.draw(drawAlloc, i)
	a := alloc{number: i, id: uuid(r, i), training: r.Float64() < o.Trainings}
	if !a.training {
		services := max(1, o.allocs()/perService)
		a.job = fmt.Sprintf("service-%05d", r.IntN(services))
		a.mhz, a.mb = int64(500+r.IntN(2000)), int64(1024+r.IntN(8192))
		return a
	}
	a.job = trainingName(i)
	a.category = []string{"NL", "WL", "CL"}[r.IntN(3)]
	a.growth = r.Float64()
	a.mhz, a.mb = int64(4000+r.IntN(8000)), int64(8192+r.IntN(16384))
	return a
}

func trainingName(i int) string { return fmt.Sprintf("train-%06d", i) }
func waitingName(i int) string  { return fmt.Sprintf("wait-%06d", i) }

// queued adds a job that needs 1 to 100 hours, beside those it has had, to the queue.
func queued(id string, had time.Duration, meta map[string]string) map[string]string {
	hash := fnv.New32()
	_, _ = hash.Write([]byte(id))
	maps.Copy(meta, map[string]string{"ebbtide_queue": "true", "ebbtide_duration": fmt.Sprintf("%dh", int(had.Hours())+1+int(hash.Sum32()%100))})
	return meta
}

func (a alloc) namespace() string {
	if a.training {
		return trainingNS
	}
	return serviceNS
}

func (a alloc) kind() string {
	if a.training {
		return api.JobTypeBatch
	}
	return api.JobTypeService
}

// resources include a node's entries per core, most of its size, which the API's type lacks.
type resources struct {
	api.NodeResources
	Processors struct {
		Topology struct {
			Nodes     []int
			Distances [][]int
			Cores     []core

			OverrideTotalCompute, OverrideWitholdCompute int
		}
	}
}

type core struct {
	SocketID, NodeID, ID            int
	Grade, Disable                  bool
	BaseSpeed, MaxSpeed, GuessSpeed int
}

func (o Options) nodeResources(i int) resources {
	var r resources
	r.Cpu = api.NodeCpuResources{CpuShares: cores * mhz, TotalCpuCores: cores}
	r.Memory.MemoryMB, r.Disk.DiskMB = 512<<10, 2<<20
	if o.Waiting > 0 {
		r.Memory.MemoryMB = 0
		for k := range o.PerNode {
			r.Memory.MemoryMB += o.alloc(i*o.PerNode + k).mb
		}
	}
	r.MinDynamicPort, r.MaxDynamicPort = 20000, 32000
	r.Networks = []*api.NetworkResource{{Mode: "bridge"}, {Mode: "host", Device: "eth0", CIDR: address(i) + "/32", IP: address(i), MBits: new(25000)}}
	r.Processors.Topology.Nodes = []int{0, 1}
	r.Processors.Topology.Distances = [][]int{{10, 32}, {32, 10}}
	for k := range cores {
		r.Cpu.ReservableCpuCores = append(r.Cpu.ReservableCpuCores, uint16(k))
		r.Processors.Topology.Cores = append(r.Processors.Topology.Cores, core{SocketID: k / 32, NodeID: k / 32, ID: k, Grade: true, BaseSpeed: mhz, MaxSpeed: 3700})
	}
	return r
}

func address(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16&0xff, i>>8&0xff, i&0xff) }

func drivers() map[string]*api.DriverInfo {
	info := func(healthy bool, says string, attributes map[string]string) *api.DriverInfo {
		return &api.DriverInfo{Detected: healthy, Healthy: healthy, HealthDescription: says, UpdateTime: begun, Attributes: attributes}
	}
	return map[string]*api.DriverInfo{
		"ebbtide": info(true, "Healthy", map[string]string{
			"driver.ebbtide": "true", "driver.ebbtide.version": "0.1.0", "driver.ebbtide.engine": "docker", "driver.ebbtide.policy": "auto",
			"driver.ebbtide.mode": "weight", "driver.ebbtide.pool_cores": strconv.Itoa(poolCores),
		}),
		"docker": info(true, "Healthy", map[string]string{
			"driver.docker": "true", "driver.docker.version": "28.5.2", "driver.docker.bridge_ip": "172.17.0.1", "driver.docker.runtimes": "io.containerd.runc.v2,nvidia,runc",
			"driver.docker.os_type": "linux", "driver.docker.volumes.enabled": "true", "driver.docker.privileged.enabled": "false",
		}),
		"exec":     info(true, "Healthy", map[string]string{"driver.exec": "true"}),
		"raw_exec": info(false, "disabled", map[string]string{}),
		"java": info(true, "Healthy", map[string]string{
			"driver.java": "true", "driver.java.version": "17.0.15", "driver.java.runtime": "OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)",
			"driver.java.vm": "OpenJDK 64-Bit Server VM (build 17.0.15+6-Debian-1deb12u1, mixed mode, sharing)",
		}),
		"qemu": info(false, "qemu-system-x86_64 not found", map[string]string{}),
	}
}

type nodeStub struct {
	api.NodeListStub
	NodeResources resources
}

func (o Options) nodeStub(i int, index uint64) nodeStub {
	return nodeStub{
		NodeListStub: api.NodeListStub{
			Address: address(i), ID: o.nodeID(i), Datacenter: datacenter(i), Name: nodeName(i), NodeClass: "gpu", NodePool: api.NodePoolDefault,
			Version: version, SchedulingEligibility: api.NodeSchedulingEligible, Status: api.NodeStatusReady, Drivers: drivers(),
			ReservedResources: &api.NodeReservedResources{}, CreateIndex: firstIndex, ModifyIndex: index,
		},
		NodeResources: o.nodeResources(i),
	}
}

func datacenter(i int) string { return fmt.Sprintf("dc%d", 1+i%3) }

// node is a node as read, and in events.
type node struct {
	api.Node
	NodeResources resources
}

func (o Options) node(i int, index uint64, httpAddr string) node {
	n := node{
		Node: api.Node{
			ID: o.nodeID(i), Datacenter: datacenter(i), Name: nodeName(i), HTTPAddr: httpAddr, NodeClass: "gpu", NodePool: api.NodePoolDefault,
			Links: map[string]string{}, CgroupParent: "nomad.slice", ReservedResources: &api.NodeReservedResources{},
			SchedulingEligibility: api.NodeSchedulingEligible, Status: api.NodeStatusReady, StatusUpdatedAt: begun.Unix(), Drivers: drivers(),
			Events:      []*api.NodeEvent{{Message: "Node registered", Subsystem: "Cluster", Timestamp: begun}},
			CreateIndex: firstIndex, ModifyIndex: index,
			Meta: map[string]string{
				"connect.gateway_image": "docker.io/envoyproxy/envoy:v${NOMAD_envoy_version}", "connect.log_level": "info", "connect.proxy_concurrency": "1",
				"connect.sidecar_image": "docker.io/envoyproxy/envoy:v${NOMAD_envoy_version}", "connect.transparent_proxy.default_outbound_port": "15001",
				"connect.transparent_proxy.default_uid": "101", "rack": fmt.Sprintf("r%02d", i%64),
			},
			Attributes: map[string]string{
				"cpu.arch": "amd64", "cpu.frequency": strconv.Itoa(mhz), "cpu.modelname": "AMD EPYC", "cpu.numcores": strconv.Itoa(cores),
				"cpu.reservablecores": strconv.Itoa(cores), "cpu.totalcompute": strconv.Itoa(cores * mhz), "cpu.usablecompute": strconv.Itoa(cores * mhz),
				"kernel.arch": "x86_64", "kernel.name": "linux", "kernel.version": "6.12.48", "kernel.landlock": "v6", "memory.totalbytes": strconv.Itoa(512 << 30),
				"nomad.version": version, "nomad.service_discovery": "true", "nomad.bridge.hairpin_mode": "false", "numa.node.count": "2",
				"numa.node0.cores": "0-31", "numa.node1.cores": "32-63", "os.cgroups.version": "2", "os.name": "debian", "os.version": "13.1",
				"os.signals":                 "SIGBUS,SIGFPE,SIGHUP,SIGILL,SIGINT,SIGSEGV,SIGCONT,SIGIOT,SIGKILL,SIGPROF,SIGSTOP,SIGTERM,SIGTRAP,SIGTTIN,SIGABRT,SIGPIPE,SIGTSTP,SIGTTOU,SIGXFSZ,SIGIO,SIGQUIT,SIGSYS,SIGUSR1,SIGUSR2,SIGWINCH,SIGXCPU,SIGNULL,SIGALRM",
				"plugins.cni.version.bridge": "v1.7.1", "plugins.cni.version.firewall": "v1.7.1", "plugins.cni.version.host-local": "v1.7.1",
				"plugins.cni.version.loopback": "v1.7.1", "plugins.cni.version.portmap": "v1.7.1", "plugins.host_volume.mkdir.version": "0.0.1",
				"unique.advertise.address": address(i) + ":4646", "unique.hostname": nodeName(i), "unique.network.ip-address": address(i),
				"unique.storage.bytestotal": strconv.Itoa(2 << 40), "unique.storage.volume": "/dev/nvme0n1p2",
			},
		},
		NodeResources: o.nodeResources(i),
	}
	for _, d := range n.Drivers {
		for k, v := range d.Attributes {
			n.Attributes[k] = v
		}
	}
	return n
}

// taskStates returns a start event, and a training task's driver events.
func (a alloc) taskStates(extra int) map[string]*api.TaskState {
	s := &api.TaskState{State: "running", StartedAt: begun.Add(time.Second)}
	event := func(kind, says string, details map[string]string) {
		s.Events = append(s.Events, &api.TaskEvent{Type: kind, Time: begun.UnixNano(), DisplayMessage: says, Message: says, Details: details})
	}
	event(api.TaskReceived, "Task received by client", map[string]string{})
	event(api.TaskSetup, "Building Task Directory", map[string]string{"message": "Building Task Directory"})
	event(api.TaskStarted, "Task started by client", map[string]string{})
	if a.training {
		for _, says := range []string{"ebbtide: growth is 0.41/s, category NL", "ebbtide: growth is 0.07/s, category WL", "ebbtide: the limit is 0.25 of the pool"} {
			event(api.TaskDriverMessage, says, map[string]string{"ebbtide": "category", "message": says})
		}
	}
	for range extra {
		event(api.TaskDriverMessage, "ebbtide: the limit is 0.50 of the pool", map[string]string{"ebbtide": "category"})
	}
	return map[string]*api.TaskState{task: s}
}

func (a alloc) uses() *api.AllocatedResources {
	return &api.AllocatedResources{
		Tasks: map[string]*api.AllocatedTaskResources{task: {
			Cpu: api.AllocatedCpuResources{CpuShares: a.mhz}, Memory: api.AllocatedMemoryResources{MemoryMB: a.mb},
		}},
		Shared: api.AllocatedSharedResources{DiskMB: 1024},
	}
}

func (o Options) allocStub(i int, index uint64) api.AllocationListStub {
	a := o.alloc(i)
	node := i / o.PerNode
	return api.AllocationListStub{
		ID: a.id, EvalID: uuid(o.draw(drawEval, i), i), Name: a.job + "." + group + "[0]", Namespace: a.namespace(),
		NodeID: o.nodeID(node), NodeName: nodeName(node), JobID: a.job, JobType: a.kind(), TaskGroup: group, AllocatedResources: a.uses(),
		DesiredStatus: api.AllocDesiredStatusRun, ClientStatus: api.AllocClientStatusRunning, ClientDescription: "Tasks are running",
		TaskStates: a.taskStates(0), CreateIndex: firstIndex, ModifyIndex: index, CreateTime: begun.UnixNano(), ModifyTime: begun.UnixNano(),
	}
}

// allocation returns an allocation in events, with extra task events.
func (o Options) allocation(i int, index uint64, extra int) api.Allocation {
	a := o.alloc(i)
	node := i / o.PerNode
	asks := &api.Resources{CPU: new(int(a.mhz)), Cores: new(0), MemoryMB: new(int(a.mb)), MemoryMaxMB: new(0), DiskMB: new(1024)}
	metrics := &api.AllocationMetric{
		NodesEvaluated: 14, NodesInPool: o.Nodes, NodePool: api.NodePoolDefault, NodesAvailable: map[string]int{"dc1": o.Nodes / 3, "dc2": o.Nodes / 3, "dc3": o.Nodes / 3},
		AllocationTime: 412 * time.Microsecond,
	}
	for k := range 5 { // Nomad stores the five best
		score := 0.9 - float64(k)/50
		metrics.ScoreMetaData = append(metrics.ScoreMetaData, &api.NodeScoreMeta{
			NodeID: o.nodeID((node + k) % o.Nodes), NormScore: score,
			Scores: map[string]float64{"binpack": score, "job-anti-affinity": 0, "node-affinity": 0, "node-reschedule-penalty": 0},
		})
	}
	return api.Allocation{
		ID: a.id, Namespace: a.namespace(), EvalID: uuid(o.draw(drawEval, i), i), Name: a.job + "." + group + "[0]",
		NodeID: o.nodeID(node), NodeName: nodeName(node), JobID: a.job, TaskGroup: group,
		Resources: asks, TaskResources: map[string]*api.Resources{task: asks}, AllocatedResources: a.uses(), Metrics: metrics,
		DesiredStatus: api.AllocDesiredStatusRun, ClientStatus: api.AllocClientStatusRunning, ClientDescription: "Tasks are running",
		TaskStates: a.taskStates(extra), NetworkStatus: &api.AllocNetworkStatus{},
		CreateIndex: firstIndex, ModifyIndex: index, AllocModifyIndex: firstIndex, CreateTime: begun.UnixNano(), ModifyTime: begun.UnixNano(),
	}
}

// waiting is a job that is held and waits for a place.
func waiting(id string, index uint64) *api.Job {
	j := job(trainingNS, id, index)
	j.Meta = queued(id, 0, map[string]string{})
	j.Status = new("pending")
	j.Constraints = []*api.Constraint{{LTarget: "${meta.ebbtide_hold}", RTarget: "released", Operand: "="}}
	j.TaskGroups[0].Tasks[0].Resources.MemoryMB = new(16 << 10)
	return j
}

func job(namespace, id string, index uint64) *api.Job {
	j := api.NewBatchJob(id, id, "global", 50)
	driver, config := "ebbtide", map[string]any{
		"image": "registry.example/train:1.4", "args": []string{"--config", "/local/train.yaml", "--resume"},
		"progress":   []map[string]any{{"metric": "loss", "goal": "min"}},
		"checkpoint": []map[string]any{{"path": "${NOMAD_ALLOC_DIR}/data/model.ckpt"}},
	}
	count := 1
	if namespace == trainingNS {
		j.Meta = map[string]string{"ebbtide_migrate": "true"}
	} else {
		j = api.NewServiceJob(id, id, "global", 50)
		driver, config = "docker", map[string]any{"image": "registry.example/service:7", "ports": []string{"http"}}
		count = perService
	}
	j.Namespace = &namespace
	j.Datacenters, j.NodePool = []string{"dc*"}, new(api.NodePoolDefault)
	g := api.NewTaskGroup(group, count)
	g.EphemeralDisk = &api.EphemeralDisk{Sticky: new(true), Migrate: new(true), SizeMB: new(1024)}
	t := api.NewTask(task, driver)
	t.Config = config
	j.AddTaskGroup(g.AddTask(t))
	j.Canonicalize()
	j.Status, j.SubmitTime = new("running"), new(begun.UnixNano())
	j.CreateIndex, j.ModifyIndex, j.JobModifyIndex, j.Version = new(uint64(firstIndex)), &index, &index, new(uint64(0))
	return j
}

func jobStub(namespace, id string, index uint64) api.JobListStub {
	s := api.JobListStub{
		ID: id, Name: id, Namespace: namespace, Datacenters: []string{"dc*"}, Type: api.JobTypeService, Priority: 50, Status: "running",
		JobSummary: &api.JobSummary{
			JobID: id, Namespace: namespace, Summary: map[string]api.TaskGroupSummary{group: {Running: 1}},
			Children: &api.JobChildrenSummary{}, CreateIndex: firstIndex, ModifyIndex: index,
		},
		CreateIndex: firstIndex, ModifyIndex: index, JobModifyIndex: index, SubmitTime: begun.UnixNano(),
	}
	if namespace == trainingNS {
		s.Type, s.Meta = api.JobTypeBatch, map[string]string{"ebbtide_migrate": "true"}
	}
	return s
}

// status returns the driver's status for a training task, with its node.
func (o Options) status(a alloc, now time.Time) status.Status {
	u := status.Unknown()
	s := status.Status{
		Schema: status.Schema, Version: "0.1.0", Task: task, Alloc: a.id, Job: a.job, Namespace: trainingNS, Engine: "docker", Policy: "auto",
		Estimator: "robust", Mode: "weight", Kind: "training", Category: a.category, Since: begun,
		Target: status.Target{State: "training", Acceptable: u, Objective: u, QoE: u, Response: u},
		Metric: "loss", Goal: "min", Value: 0.31, Step: 1200, Total: u, Progress: 0.002, Growth: status.Number(a.growth), Reports: 1200,
		SpeCon: status.SpeCon{Category: specon(a.category), Since: begun, Gain: 0.01, PreviousGain: 0.012, Why: "the loss moved by 1.0 % of what it has spanned"},
		Move:   status.Move{Step: u}, Resources: status.Resources{MemoryMiB: 9211, MemoryGrowth: u, BlockMiBs: u, BlockGrowth: u, NetworkMiBs: u, NetworkGrowth: u},
		Use: 0.2, CPUSeconds: 81231, Throttled: u, Rule: "flowcon.alg1.nl",
		Why:     "grows by 0.41/s, more than α = 0.05 of the pool's: as much as it can use",
		Updated: now,
		Node:    status.Node{PoolCores: poolCores, Use: 0.6, Counts: map[string]int{}, Classes: map[string]int{}, GrowthSum: map[string]status.Number{}, SpeCon: map[string]int{}, Alpha: 0.05, IntervalS: 30},
	}
	s.Limit.Fraction = 0.5
	first := a.number / o.PerNode * o.PerNode
	for i := first; i < first+o.PerNode; i++ {
		other := o.alloc(i)
		if !other.training {
			continue
		}
		s.Node.Tasks++
		s.Node.Counts[other.category]++
		s.Node.GrowthSum[other.category] += status.Number(other.growth)
		s.Node.SpeCon[specon(other.category)]++
	}
	return s
}

func specon(category string) string {
	return map[string]string{"NL": "PC", "WL": "WC", "CL": "CC"}[category]
}
