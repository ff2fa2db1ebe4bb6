// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"
	"golang.org/x/sys/unix"
)

// Tags of imported images; Nomad would pull ":latest".
const (
	Image      = "ebbtide-trainer:e2e"
	PauseImage = "ebbtide-pause:e2e"
)

type DockerOptions struct {
	// LiveRestore keeps containers running while the daemon is down.
	LiveRestore bool
	// NoBridge allows only the network modes "host" and "none".
	NoBridge bool
	// Runtimes maps additional runtimes to their programs.
	Runtimes map[string]string
}

// Docker is a private Docker daemon with its own directory, socket, bridge and parent cgroup. It
// does not change firewall rules.
type Docker struct {
	Host   string // "unix:///…/docker.sock"
	Client *client.Client
	Cgroup string // parent cgroup of its containers
	Bridge string // "" = none

	h    *Harness
	opts DockerOptions
	dir  string
	name string
	argv []string
	proc *Process
}

var ErrNoDocker = errors.New("dockerd is not installed (Debian: docker.io)")

// StartDocker starts a daemon and waits until it responds.
func (h *Harness) StartDocker(ctx context.Context, opts DockerOptions) (*Docker, error) {
	dockerd, err := Look("dockerd")
	if err != nil {
		return nil, ErrNoDocker
	}
	h.mu.Lock()
	name := fmt.Sprintf("docker%d", len(h.dockers))
	h.mu.Unlock()
	dir := filepath.Join(h.Dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	d := &Docker{h: h, opts: opts, dir: dir, name: name, Host: "unix://" + filepath.Join(dir, "docker.sock")}
	d.Cgroup = fmt.Sprintf("%s-%s", filepath.Base(h.Dir), name)
	if _, err := h.super.do(ctx, request{Op: "cgroup", Args: []string{d.Cgroup}}); err != nil {
		return nil, err
	}
	if !opts.NoBridge {
		if d.Bridge, _, err = h.newBridge(ctx, name); err != nil {
			h.logf("no bridge for %s, containers have host networking only: %v", name, err)
		}
	}
	// An empty file, as the machine's /etc/docker/daemon.json may conflict with flags.
	config := filepath.Join(dir, "daemon.json")
	if err := os.WriteFile(config, []byte("{}\n"), 0o644); err != nil {
		return nil, err
	}
	d.argv = []string{dockerd,
		"--config-file", config,
		"--data-root", filepath.Join(dir, "data"),
		"--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"),
		"--host", d.Host,
		"--cgroup-parent", "/" + d.Cgroup,
		// Firewall rules are machine-wide. Without them docker-proxy serves published ports on the
		// loopback.
		"--iptables=false", "--ip6tables=false", "--ip-masq=false", "--ip-forward=false",
		"--userland-proxy=true",
	}
	if d.Bridge != "" {
		d.argv = append(d.argv, "--bridge", d.Bridge)
	} else {
		d.argv = append(d.argv, "--bridge=none")
	}
	for name, path := range opts.Runtimes {
		d.argv = append(d.argv, "--add-runtime", name+"="+path)
	}
	if opts.LiveRestore {
		d.argv = append(d.argv, "--live-restore")
	}
	if d.Client, err = client.NewClientWithOpts(client.WithHost(d.Host), client.WithAPIVersionNegotiation()); err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", d.Host, err)
	}
	h.mu.Lock()
	h.dockers = append(h.dockers, d)
	h.mu.Unlock()
	if err := d.Up(ctx); err != nil {
		return nil, err
	}
	return d, nil
}

// Up starts the daemon unless it runs, and waits until it responds.
func (d *Docker) Up(ctx context.Context) error {
	if d.proc == nil || d.proc.Err() != nil {
		// After a kill, dockerd adopts the running containerd by its PID file.
		proc, err := d.h.super.start(ctx, "dockerd", request{
			Args: d.argv, Env: d.h.environ(), Dir: d.dir, Log: filepath.Join(d.dir, "dockerd.log"),
		})
		if err != nil {
			return err
		}
		d.proc = proc
	}
	return Poll(ctx, "the Docker daemon answers", func(ctx context.Context) error {
		if err := d.proc.Err(); err != nil {
			text, _ := tail(d.proc.Log, 20)
			return fmt.Errorf("%w\n%s", err, text)
		}
		_, err := d.Client.Ping(ctx)
		return err
	})
}

func (d *Docker) Process() *Process { return d.proc }

// Down sends SIGTERM. Containers stop unless LiveRestore is set.
func (d *Docker) Down(ctx context.Context) error { return d.end(ctx, unix.SIGTERM) }

// Kill sends SIGKILL, like a crash. Containers keep running.
func (d *Docker) Kill(ctx context.Context) error { return d.end(ctx, unix.SIGKILL) }

func (d *Docker) end(ctx context.Context, sig unix.Signal) error {
	if err := d.proc.Signal(sig); err != nil {
		return err
	}
	return d.proc.Wait(ctx)
}

// Hang suspends the daemon: it accepts connections without responding.
func (d *Docker) Hang() error { return d.proc.Signal(unix.SIGSTOP) }

func (d *Docker) Resume() error { return d.proc.Signal(unix.SIGCONT) }

func (d *Docker) ImportImages(ctx context.Context) error {
	root, err := d.h.Rootfs(ctx)
	if err != nil {
		return err
	}
	for ref, changes := range map[string][]string{
		Image: {"ENV PATH=/bin"},
		// It holds an allocation's network namespace, and must stop immediately when asked.
		PauseImage: {`ENTRYPOINT ["/bin/sh","-c","trap 'exit 0' TERM INT; while :; do sleep 3600 & wait; done"]`},
	} {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writeTar(w, root)) }()
		out, err := d.Client.ImageImport(ctx, image.ImportSource{Source: r, SourceName: "-"}, ref, image.ImportOptions{Changes: changes})
		if err != nil {
			_ = r.CloseWithError(err)
			return fmt.Errorf("importing the image %s: %w", ref, err)
		}
		_, err = io.Copy(io.Discard, out)
		_ = out.Close()
		if err != nil {
			return fmt.Errorf("importing the image %s: %w", ref, err)
		}
	}
	return nil
}

// PluginConfig returns the docker driver's config for this daemon, with extra HCL. Image GC is off,
// as the images cannot be pulled. danglingContainers is the body of that gc block; "" for defaults.
func (d *Docker) PluginConfig(danglingContainers, extra string) string {
	if danglingContainers != "" {
		danglingContainers = "dangling_containers {\n" + danglingContainers + "\n}"
	}
	return fmt.Sprintf(`
endpoint    = %q
infra_image = %q
volumes { enabled = true }
gc {
  image = false
  %s
}
%s`, d.Host, PauseImage, danglingContainers, extra)
}

// Containers lists an allocation's containers, or all for "".
func (d *Docker) Containers(ctx context.Context, allocID string) ([]container.Summary, error) {
	opts := container.ListOptions{All: true}
	if allocID != "" {
		opts.Filters = filters.NewArgs(filters.Arg("label", "com.hashicorp.nomad.alloc_id="+allocID))
	}
	list, err := d.Client.ContainerList(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("listing the containers of %s: %w", d.name, err)
	}
	return list, nil
}

// PID returns the PID of a task's container on the host.
func (d *Docker) PID(ctx context.Context, allocID, task string) (int, error) {
	c, err := d.Client.ContainerInspect(ctx, task+"-"+allocID)
	if err != nil {
		return 0, err
	}
	if c.State == nil || !c.State.Running {
		return 0, fmt.Errorf("the container of task %s is not running", task)
	}
	return c.State.Pid, nil
}
