// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command queue runs training jobs that need a whole place each on a real Nomad, first as Nomad
// starts them, then in the queue, and prints when they start and end. Their trainers really compute,
// save and resume, but mostly wait, so that a machine has more places than cores. It needs root and
// cgroups, but not Docker; use `make demo-queue`.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sync/errgroup"

	"github.com/ebbtide/ebbtide/device/fake"
	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/shim"
	"github.com/ebbtide/ebbtide/shim/config"
)

func main() {
	if err := run(harness.Interruptible(), os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "queue:", err)
		os.Exit(1)
	}
}

type options struct {
	nodes, places, jobs, seeds int
	seed                       uint64
	median                     time.Duration
	work, wrong                float64
	out, log                   string
	shared, device, resume     bool
}

func parse(args []string) (o options, err error) {
	fs := flag.NewFlagSet("queue", flag.ContinueOnError)
	fs.IntVar(&o.nodes, "nodes", 1, "Nomad clients")
	fs.IntVar(&o.places, "places", 1, "places per client: each job asks for that part of its memory")
	fs.IntVar(&o.jobs, "jobs", 8, "jobs per seed")
	fs.IntVar(&o.seeds, "seeds", 1, "number of seeds")
	fs.Uint64Var(&o.seed, "seed", 1, "the first `seed`")
	fs.DurationVar(&o.median, "median", 8*time.Second, "of the jobs' lengths, which are lognormal with σ = 1.2")
	fs.Float64Var(&o.work, "load", 0.9, "work that arrives per place and second")
	fs.Float64Var(&o.wrong, "wrong", 0.3, "standard `deviation` of log2 of ebbtide_duration, relative to the true length")
	fs.BoolVar(&o.shared, "shared", false, "checkpoints are on a volume of all clients: a suspended job may go on on any")
	fs.BoolVar(&o.device, "device", false, "a place is a seat of ebbtide-gpu on a fake card, instead of memory (gcc)")
	fs.StringVar(&o.out, "out", "out/queue.json", "`file` for the results")
	fs.StringVar(&o.log, "log", "", "append the shim's log, with its debug messages, to this `file`")
	fs.BoolVar(&o.resume, "resume", false, "do not measure the seeds again that the file has with the same options")
	err = fs.Parse(args)
	if err == nil && (fs.NArg() > 0 || min(o.nodes, o.places, o.jobs, o.seeds) < 1 || o.median < time.Second || !(o.work > 0) || !(o.wrong >= 0)) {
		err = errors.New("numbers must be > 0, -median at least 1s, -wrong ≥ 0, and nothing follows the options")
	}
	return o, err
}

// job is one job of a seed, with its times in seconds since the seed's begin.
type job struct {
	ID      string  `json:"id"`
	Steps   int     `json:"steps"`
	LengthS float64 `json:"length_s"` // on its own place
	GuessS  float64 `json:"guess_s"`
	At      float64 `json:"at_s"`

	Started  float64 `json:"started_s"` // for the first time
	Ended    float64 `json:"ended_s"`
	Suspends int     `json:"suspends"`
}

// stepS is the time of a step, in seconds: nearly all of it is the trainer's -wait.
const stepS = 0.052

func (o options) sample(seed uint64) (all []job) {
	r := rand.New(rand.NewPCG(seed, 1))
	at, mean := 0.0, o.median.Seconds()*math.Exp(1.2*1.2/2)
	for i := range o.jobs {
		length := max(o.median.Seconds()*math.Exp(1.2*r.NormFloat64()), 2)
		all = append(all, job{
			ID: fmt.Sprintf("job-%d", i+1), Steps: int(length / stepS), LengthS: length,
			GuessS: length * math.Exp2(o.wrong*r.NormFloat64()), At: at,
		})
		at += r.ExpFloat64() * mean / (o.work * float64(o.nodes*o.places))
	}
	return all
}

// spec is what all jobs of a run have in common.
type spec struct {
	memory int  // MiB
	device bool // a seat on a GPU
	queued bool
	shared bool // the checkpoint is on the volume of all clients
}

func (s spec) hcl(j job, id string) string {
	meta, path, volume, mount, device := "", "${NOMAD_ALLOC_DIR}/data/model.ckpt", "", "", ""
	if s.device {
		device = `
        device "nvidia/share" {
          count = 1
        }`
	}
	if s.shared {
		path, volume, mount = "/shared/"+id+".ckpt", `
    volume "shared" {
      type   = "host"
      source = "shared"
    }`, `
      volume_mount {
        volume      = "shared"
        destination = "/shared"
      }`
	}
	if s.queued {
		meta = fmt.Sprintf(`
  meta {
    ebbtide_queue    = "true"
    ebbtide_duration = "%.1fs"
  }
  constraint {
    attribute = "${meta.ebbtide_hold}"
    value     = "released"
  }`, max(j.GuessS, 1))
	}
	return fmt.Sprintf(`job %q {
  type = "batch"%s
  group "train" {%s
    task "train" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "logreg", "-threads", "1", "-steps", "%d", "-wait", "50ms", "-every", "5", "-checkpoint", %q, "-resume"]
        checkpoint {
          path   = %q
          shared = %t
        }
      }%s
      resources {
        cpu    = 50
        memory = %d%s
      }
    }
  }
}`, id, meta, volume, j.Steps, path, path, s.shared, mount, s.memory, device)
}

type pair struct {
	Seed  uint64 `json:"seed"`
	Plain []job  `json:"plain"`
	Queue []job  `json:"queue"`
}

func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintf(stdout, format+"\n", args...) }
	h, err := harness.New(harness.Options{Logf: say})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	volume := filepath.Join(h.Dir, "shared")
	if err := errors.Join(os.Mkdir(volume, 0o777), os.Chmod(volume, 0o777)); err != nil { // for unprivileged tasks
		return err
	}
	if o.device {
		if err := fake.Build(filepath.Join(h.Dir, "card")); err != nil {
			return err
		}
	}
	var agents []*harness.Agent
	for i := range o.nodes {
		c := harness.AgentConfig{Name: fmt.Sprintf("client%d", i), PluginName: "ebbtide-driver", Plugin: `engine = "exec"`, LogLevel: "INFO", HostVolumes: map[string]string{"shared": volume}}
		if i > 0 {
			c.Join = agents[0]
		}
		if o.device {
			if err := card(ctx, h, &c, o.places); err != nil {
				return err
			}
		}
		a, err := h.StartAgent(ctx, c)
		if err != nil {
			return fmt.Errorf("starting Nomad: %w", err)
		}
		agents = append(agents, a)
	}
	node, err := agents[0].Node(ctx)
	if err != nil {
		return err
	}
	plain := spec{memory: int(float64(node.NodeResources.Memory.MemoryMB) * 0.95 / float64(o.places)), shared: o.shared, device: o.device}
	if o.device {
		plain.memory = 100
	}
	queued := plain
	queued.queued = true
	say("%d jobs with room for %d, on Nomad %s: first as Nomad starts them, then in the queue.", o.jobs, o.nodes*o.places, node.Attributes["nomad.version"])
	log := hclog.NewNullLogger()
	if o.log != "" {
		f, err := os.OpenFile(o.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		defer f.Close()
		log = hclog.New(&hclog.LoggerOptions{Level: hclog.Debug, Output: f})
	}
	done, fresh := o.load(), false
	for i := range o.seeds {
		p := pair{Seed: o.seed + uint64(i)}
		if slices.ContainsFunc(done.Pairs, func(q pair) bool { return q.Seed == p.Seed }) {
			continue
		}
		fresh = true
		if p.Plain, err = measure(ctx, agents[0], o.sample(p.Seed), fmt.Sprintf("plain-%d-", p.Seed), plain); err != nil {
			return err
		}
		stop := startShim(ctx, agents[0], log)
		p.Queue, err = measure(ctx, agents[0], o.sample(p.Seed), fmt.Sprintf("queue-%d-", p.Seed), queued)
		if err = errors.Join(err, stop()); err != nil {
			return err
		}
		done.Pairs = append(done.Pairs, p)
		data, err := json.MarshalIndent(done, "", " ")
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(o.out), 0o755), os.WriteFile(o.out, data, 0o644))
		}
		if err = errors.Join(err, report(stdout, done.Pairs)); err != nil {
			return err
		}
	}
	if !fresh {
		return report(stdout, done.Pairs)
	}
	return nil
}

// card gives an agent a fake card with the given number of seats. The card's libraries are built.
func card(ctx context.Context, h *harness.Harness, c *harness.AgentConfig, seats int) error {
	plugin, err := h.Tools.GPU(ctx)
	if err != nil {
		return err
	}
	libraries, own := filepath.Join(h.Dir, "card"), filepath.Join(h.Dir, c.Name+"-card")
	state := filepath.Join(own, "state")
	if err := errors.Join(os.Mkdir(own, 0o755), os.WriteFile(state, nil, 0o644)); err != nil {
		return err
	}
	c.Plugins = map[string]string{"ebbtide-gpu": plugin}
	c.Env = []string{"EBBTIDE_FAKE_GPU=" + state}
	c.HCL = fmt.Sprintf("plugin \"ebbtide-gpu\" {\n config {\n  library = %q\n  preload = %q\n  cuda_library = %q\n  state_dir = %q\n  gate = %q\n  fingerprint_period = \"1s\"\n  parking = true\n  seats_per_gpu = %d\n }\n}\n",
		filepath.Join(libraries, "libnvidia-ml.so.1"), filepath.Join(libraries, "libebbtide-cuda.so"), filepath.Join(libraries, "libcuda.so.1"), filepath.Join(own, "learned"), filepath.Join(own, "gate"), seats)
	return nil
}

// results are those of the seeds that have been measured, with the options that count.
type results struct {
	Options string `json:"options"`
	Pairs   []pair `json:"pairs"`
}

// load reads the results to go on with, none if the file has others.
func (o options) load() results {
	none := results{Options: fmt.Sprintf("-nodes %d -places %d -jobs %d -median %v -load %v -wrong %v -shared %v -device %v", o.nodes, o.places, o.jobs, o.median, o.work, o.wrong, o.shared, o.device)}
	data, err := os.ReadFile(o.out)
	var r results
	if err != nil || !o.resume || json.Unmarshal(data, &r) != nil || r.Options != none.Options {
		return none
	}
	return r
}

// startShim runs a shim in this process, faster than by default, as are the jobs.
func startShim(ctx context.Context, a *harness.Agent, log hclog.Logger) (stop func() error) {
	c := config.Default()
	c.Interval, c.Web.Address, c.Nomad.Address = time.Second, "", a.Addr
	c.Queue.Cost, c.Limits.Cooldown, c.Limits.MovesPerMinute, c.Limits.InFlight = 2*time.Second, 0, 60, 8
	client, err := c.Nomad.Client()
	if err != nil {
		return func() error { return err }
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- shim.New(c, client, "queue", log).Run(ctx) }()
	return func() error {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
}

// measure submits the jobs at their times, and waits for their ends.
func measure(ctx context.Context, a *harness.Agent, jobs []job, prefix string, s spec) ([]job, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Hour)
	defer cancel()
	begin := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for i := range jobs {
		j := &jobs[i]
		group.Go(func() error {
			select {
			case <-time.After(time.Until(begin.Add(time.Duration(j.At * float64(time.Second))))):
			case <-ctx.Done():
				return ctx.Err()
			}
			id := prefix + j.ID
			if _, err := a.Run(ctx, s.hcl(*j, id)); err != nil {
				return err
			}
			return j.follow(ctx, a, id, begin)
		})
	}
	return jobs, group.Wait()
}

// follow waits for a job's end. A suspended one has an allocation that is complete, but is pending.
func (j *job) follow(ctx context.Context, a *harness.Agent, id string, begin time.Time) error {
	return harness.Poll(ctx, "job "+id+" has ended", func(ctx context.Context) error {
		is, _, err := a.API.Jobs().Info(id, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return err
		}
		if *is.Status != "dead" {
			return fmt.Errorf("it is %s", *is.Status)
		}
		stubs, err := a.Allocs(ctx, id)
		if err != nil || len(stubs) == 0 {
			return errors.Join(err, errors.New("it has no allocation"))
		}
		slices.SortFunc(stubs, func(a, b *api.AllocationListStub) int { return cmp.Compare(a.CreateIndex, b.CreateIndex) })
		first, last := stubs[0].TaskStates["train"], stubs[len(stubs)-1].TaskStates["train"]
		if first == nil || last == nil || last.Failed || last.FinishedAt.IsZero() {
			return errors.New("its last allocation has not ended with success")
		}
		j.Started, j.Ended, j.Suspends = first.StartedAt.Sub(begin).Seconds(), last.FinishedAt.Sub(begin).Seconds(), len(stubs)-1
		return nil
	})
}

// report prints the jobs of the last seed, and all seeds' results.
func report(w io.Writer, pairs []pair) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	last := pairs[len(pairs)-1]
	fmt.Fprintf(t, "\nSEED %d\tSUBMITTED\tLENGTH\tPLAIN: WAITED\tTO ITS END\tQUEUE: WAITED\tTO ITS END\tSUSPENDED\n", last.Seed)
	for i, p := range last.Plain {
		q := last.Queue[i]
		fmt.Fprintf(t, "%s\t%.0f s\t%.0f s\t%.0f s\t%.0f s\t%.0f s\t%.0f s\t%d\n", p.ID, p.At, p.LengthS, p.Started-p.At, p.Ended-p.At, q.Started-q.At, q.Ended-q.At, q.Suspends)
	}
	fmt.Fprintln(t, "\nIN THE QUEUE, SEED\tMEAN TIME TO THE END\tMEAN WAIT\tLAST END\tWORST JOB\tSLOWED\tSUSPENSIONS PER JOB\tHANDOVER, PLAIN\tQUEUE")
	all := total{name: "all"}
	for _, p := range pairs {
		one := total{name: fmt.Sprint(p.Seed)}
		one.add(p)
		all.add(p)
		one.print(t)
	}
	if len(pairs) > 1 {
		all.print(t)
	}
	return t.Flush()
}

// total sums up seeds, in seconds.
type total struct {
	name                    string
	end, wait, last         [2]float64 // plain Nomad's, the queue's
	handovers               [2][]float64
	worst                   float64
	jobs, suspended, slowed int
}

func (s *total) add(p pair) {
	for k, jobs := range [][]job{p.Plain, p.Queue} {
		last := 0.0
		for _, j := range jobs {
			s.end[k] += j.Ended - j.At
			s.wait[k] += j.Started - j.At
			last = max(last, j.Ended)
		}
		s.last[k] += last
		s.handovers[k] = append(s.handovers[k], handovers(jobs)...)
	}
	for i, j := range p.Queue {
		ratio := (j.Ended - j.At) / (p.Plain[i].Ended - p.Plain[i].At)
		s.worst = max(s.worst, ratio)
		if ratio > 1.05 {
			s.slowed++
		}
		s.jobs++
		s.suspended += j.Suspends
	}
}

// handovers are the times from a job's end to the start of one that waited then, in seconds.
func handovers(jobs []job) (all []float64) {
	for _, j := range jobs {
		ended := math.Inf(-1)
		for _, o := range jobs {
			if o.Ended > j.At && o.Ended <= j.Started {
				ended = max(ended, o.Ended)
			}
		}
		if !math.IsInf(ended, -1) {
			all = append(all, j.Started-ended)
		}
	}
	return all
}

func median(of []float64) string {
	if len(of) == 0 {
		return "-"
	}
	slices.Sort(of)
	return fmt.Sprintf("%.1f s", of[len(of)/2])
}

func (s *total) print(w io.Writer) {
	change := func(of [2]float64) string { return fmt.Sprintf("%+.0f %%", 100*(of[1]/of[0]-1)) }
	n := float64(s.jobs)
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t× %.2f\t%.0f %%\t%.2f\t%s\t%s\n", s.name, change(s.end), change(s.wait), change(s.last), s.worst, 100*float64(s.slowed)/n, float64(s.suspended)/n,
		median(s.handovers[0]), median(s.handovers[1]))
}
