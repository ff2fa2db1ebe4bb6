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
	load, wrong                float64
	out                        string
}

func parse(args []string) (o options, err error) {
	fs := flag.NewFlagSet("queue", flag.ContinueOnError)
	fs.IntVar(&o.nodes, "nodes", 1, "Nomad clients")
	fs.IntVar(&o.places, "places", 1, "places per client: each job asks for that part of its memory")
	fs.IntVar(&o.jobs, "jobs", 8, "jobs per seed")
	fs.IntVar(&o.seeds, "seeds", 1, "number of seeds")
	fs.Uint64Var(&o.seed, "seed", 1, "the first `seed`")
	fs.DurationVar(&o.median, "median", 8*time.Second, "of the jobs' lengths, which are lognormal with σ = 1.2")
	fs.Float64Var(&o.load, "load", 0.9, "work that arrives per place and second")
	fs.Float64Var(&o.wrong, "wrong", 0.3, "standard `deviation` of log2 of ebbtide_duration, relative to the true length")
	fs.StringVar(&o.out, "out", "out/queue.json", "`file` for the results")
	err = fs.Parse(args)
	if err == nil && (fs.NArg() > 0 || min(o.nodes, o.places, o.jobs, o.seeds) < 1 || o.median < time.Second || !(o.load > 0) || !(o.wrong >= 0)) {
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
		at += r.ExpFloat64() * mean / (o.load * float64(o.nodes*o.places))
	}
	return all
}

// hcl is a job's specification; queued adds it to the queue.
func (j job) hcl(id string, memory int, queued bool) string {
	meta := ""
	if queued {
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
  group "train" {
    task "train" {
      driver = "ebbtide"
      config {
        command = "/bin/trainer"
        args    = ["-model", "logreg", "-threads", "1", "-steps", "%d", "-wait", "50ms", "-every", "5", "-checkpoint", "${NOMAD_ALLOC_DIR}/data/model.ckpt", "-resume"]
        checkpoint {
          path = "${NOMAD_ALLOC_DIR}/data/model.ckpt"
        }
      }
      resources {
        cpu    = 50
        memory = %d
      }
    }
  }
}`, id, meta, j.Steps, memory)
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
	var agents []*harness.Agent
	for i := range o.nodes {
		c := harness.AgentConfig{Name: fmt.Sprintf("client%d", i), PluginName: "ebbtide-driver", Plugin: `engine = "exec"`, LogLevel: "INFO"}
		if i > 0 {
			c.Join = agents[0]
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
	memory := int(float64(node.NodeResources.Memory.MemoryMB) * 0.95 / float64(o.places))
	say("%d jobs with room for %d, on Nomad %s: first as Nomad starts them, then in the queue.", o.jobs, o.nodes*o.places, node.Attributes["nomad.version"])
	var pairs []pair
	for i := range o.seeds {
		p := pair{Seed: o.seed + uint64(i)}
		if p.Plain, err = measure(ctx, agents[0], o.sample(p.Seed), fmt.Sprintf("plain-%d-", p.Seed), memory, false); err != nil {
			return err
		}
		stop := startShim(ctx, agents[0])
		p.Queue, err = measure(ctx, agents[0], o.sample(p.Seed), fmt.Sprintf("queue-%d-", p.Seed), memory, true)
		if err = errors.Join(err, stop()); err != nil {
			return err
		}
		pairs = append(pairs, p)
		if err := report(stdout, pairs); err != nil {
			return err
		}
		data, err := json.MarshalIndent(pairs, "", " ")
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(o.out), 0o755), os.WriteFile(o.out, data, 0o644))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// startShim runs a shim in this process, faster than by default, as are the jobs.
func startShim(ctx context.Context, a *harness.Agent) (stop func() error) {
	c := config.Default()
	c.Interval, c.Web.Address, c.Nomad.Address = time.Second, "", a.Addr
	c.Queue.Cost, c.Limits.Cooldown, c.Limits.MovesPerMinute, c.Limits.InFlight = 2*time.Second, 0, 60, 8
	client, err := c.Nomad.Client()
	if err != nil {
		return func() error { return err }
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- shim.New(c, client, "queue", hclog.NewNullLogger()).Run(ctx) }()
	return func() error {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
}

// measure submits the jobs at their times, and waits for their ends.
func measure(ctx context.Context, a *harness.Agent, jobs []job, prefix string, memory int, queued bool) ([]job, error) {
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
			if _, err := a.Run(ctx, j.hcl(id, memory, queued)); err != nil {
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
	fmt.Fprintln(t, "\nIN THE QUEUE, SEED\tMEAN TIME TO THE END\tMEAN WAIT\tLAST END\tWORST JOB\tSUSPENSIONS PER JOB")
	for _, p := range pairs {
		sum := func(all []job, of func(job) float64) (s float64) {
			for _, j := range all {
				s += of(j)
			}
			return s
		}
		end := func(j job) float64 { return j.Ended - j.At }
		wait := func(j job) float64 { return j.Started - j.At }
		latest := func(all []job) float64 {
			return slices.MaxFunc(all, func(a, b job) int { return cmp.Compare(a.Ended, b.Ended) }).Ended
		}
		worst := 0.0
		for i, j := range p.Queue {
			worst = max(worst, end(j)/end(p.Plain[i]))
		}
		change := func(is, was float64) string { return fmt.Sprintf("%+.0f %%", 100*(is/was-1)) }
		fmt.Fprintf(t, "%d\t%s\t%s\t%s\t× %.2f\t%.2f\n", p.Seed, change(sum(p.Queue, end), sum(p.Plain, end)), change(sum(p.Queue, wait), sum(p.Plain, wait)),
			change(latest(p.Queue), latest(p.Plain)), worst, sum(p.Queue, func(j job) float64 { return float64(j.Suspends) })/float64(len(p.Queue)))
	}
	return t.Flush()
}
