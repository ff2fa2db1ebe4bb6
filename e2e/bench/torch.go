// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/ebbtide/ebbtide/e2e/harness"
	"github.com/ebbtide/ebbtide/e2e/mix"
)

// python is Debian's, like python3-torch.
const python = "/usr/bin/python3"

// torchScript is the trainer; containers have its directory as /job.
const torchScript = "e2e/bench/torch/train.py"

// A PyTorch run: five jobs of one script.
const (
	torchName = "cnn"
	torchJobs = 5
	torchWork = 70 // seconds of the whole pool
	torchSpan = 20 * time.Second
)

// torchMix returns jobs of one model and different lengths.
func torchMix(seed uint64, factor float64) []mix.Job {
	jobs := mix.Overlapping(torchJobs, seed, factor*torchWork, time.Duration(factor*float64(torchSpan)))
	for i := range jobs {
		jobs[i].Model, jobs[i].Name = torchName, fmt.Sprintf("%s%d", torchName, i+1)
	}
	return jobs
}

var errNoTorch = errors.New("PyTorch is not installed (Debian: python3-torch)")

// waitPolicy makes PyTorch's waiting threads sleep. By default GNU's OpenMP spins, which on a busy
// machine takes ten times the CPU of the work; users who share CPUs set it, or use one thread per
// job.
const waitPolicy = "OMP_WAIT_POLICY"

// findTorch checks for PyTorch and Debian's /usr, which is mounted in containers.
func findTorch(ctx context.Context) error {
	for _, path := range []string{"/usr/lib64", "/etc/alternatives"} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("%w; this is no Debian: %w", errNoTorch, err)
		}
	}
	if err := exec.CommandContext(ctx, python, "-c", "import torch").Run(); err != nil {
		return fmt.Errorf("%w: %w", errNoTorch, err)
	}
	return nil
}

// torchSpeeds measures epochs per CPU-second from four additional epochs.
func torchSpeeds(ctx context.Context, root string, threads int) (map[string]float64, error) {
	spent := func(epochs int) (float64, error) {
		c := exec.CommandContext(ctx, python, filepath.Join(root, torchScript), "--epochs", strconv.Itoa(epochs), "--threads", strconv.Itoa(threads))
		c.Env = append(c.Environ(), waitPolicy+"=passive")
		if out, err := c.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("running %s: %w: %s", torchScript, err, out)
		}
		return (c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds(), nil
	}
	one, err := spent(1)
	if err != nil {
		return nil, err
	}
	five, err := spent(5)
	if err != nil {
		return nil, err
	}
	if !(five > one) {
		return nil, fmt.Errorf("five epochs took %.2f CPU-seconds, one %.2f", five, one)
	}
	return map[string]float64{torchName: 4 / (five - one)}, nil
}

// torchTask returns a user's job: an image, and a command with --epochs. To avoid building an image
// of a gigabyte, /usr is mounted read-only from the host.
func torchTask(j mix.Job, epochs, threads int, seed uint64, root string) mix.Task {
	return mix.Task{
		Name: j.Name, MemoryMiB: 600, Env: map[string]string{waitPolicy: "passive"},
		Config: fmt.Sprintf(`image        = %q
        command      = %q
        args         = ["/job/train.py", "--epochs", "%d", "--threads", "%d", "--seed", "%d"]
        network_mode = "none"
        volumes = [
          "/usr:/usr:ro", "/usr/lib:/lib:ro", "/usr/lib64:/lib64:ro", "/etc/alternatives:/etc/alternatives:ro",
          "%s:/job:ro",
        ]`, harness.Image, python, epochs, threads, seed, filepath.Join(root, filepath.Dir(torchScript))),
	}
}

// tested matches the script's line after each epoch.
var tested = regexp.MustCompile(`(?m)^Test set: Average loss: ([0-9.]+), .*, ([0-9.]+) s$`)

// torchCurve parses a job's output.
func (m *measurement) torchCurve(ctx context.Context, done trained, task string) (mix.Curve, error) {
	out, err := m.agent.Logs(ctx, done.alloc, task, "stdout")
	if err != nil {
		return nil, err
	}
	return readTorch(out, done.finished.Sub(done.started))
}

// readTorch parses the output; times count from the task's start. The script's own end right
// after the last line.
func readTorch(stdout string, took time.Duration) (mix.Curve, error) {
	var c mix.Curve
	for _, m := range tested.FindAllStringSubmatch(stdout, -1) {
		value, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return nil, fmt.Errorf("reading %q: %w", m[0], err)
		}
		t, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return nil, fmt.Errorf("reading %q: %w", m[0], err)
		}
		c = append(c, mix.Point{T: t, Step: float64(len(c) + 1), Value: value})
	}
	if len(c) == 0 {
		return nil, fmt.Errorf("it has printed no line such as %q", "Test set: Average loss: 0.5000, Accuracy: 9/10 (90%), 1.00 s")
	}
	late := took.Seconds() - c[len(c)-1].T
	for i := range c {
		c[i].T += late
	}
	return c, nil
}
