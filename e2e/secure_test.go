// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// TestSecure runs the shim on three nodes with ACLs and mTLS: as a program with a token, then as a
// Nomad job with a workload identity.
func TestSecure(t *testing.T) {
	t.Parallel()
	s := newSecured(t)
	t.Run("refused", s.testRefused)
	flat := s.fill(t)
	s.join(t, "docker")
	s.join(t, "exec") // without containers
	must.True(t, t.Run("as a program", func(t *testing.T) { s.testProgram(t, flat) }))
	t.Run("as a job", s.testJob)
}

// secured is a cluster with ACLs and mTLS; its first node is the server.
type secured struct {
	*cluster
	nodes map[string]*cluster // by ID
	cli   string
	token string // with the policy of jobspecs/acl
}

func newSecured(t *testing.T) *secured {
	h := newHarness(t)
	cli, err := h.Tools.CLI(deadline(t, startDeadline))
	must.NoError(t, err)
	s := &secured{cli: cli, nodes: make(map[string]*cluster)}
	s.cluster = s.node(t, h, "docker", harness.AgentConfig{ACL: true, TLS: true})
	s.token = s.newToken(t, "program", 0, "")
	return s
}

// node starts a node with short SpeCon intervals.
func (s *secured) node(t *testing.T, h *harness.Harness, engine string, agent harness.AgentConfig) *cluster {
	t.Helper()
	agent.Chroot = installed(s.cli)
	c := newCluster(t, h, engine, clusterOptions{
		settings: map[string]string{"specon_interval": `"2s"`, "specon_alpha": "0.05"},
		agent:    agent,
	})
	s.nodes[c.agent.NodeID()] = c
	return c
}

// installed mounts the command in exec's chroot.
func installed(cli string) map[string]string { return map[string]string{cli: "/usr/bin/ebbtide"} }

func (s *secured) join(t *testing.T, engine string) {
	t.Helper()
	s.node(t, s.h, engine, harness.AgentConfig{Join: s.agent})
}

// product returns the path of a file in the repository.
func (s *secured) product(path ...string) string {
	return filepath.Join(append([]string{s.h.Tools.Root}, path...)...)
}

// newToken creates a token with the shim's policy, changed by but.
func (s *secured) newToken(t *testing.T, name string, ttl time.Duration, but string) string {
	t.Helper()
	rules, err := os.ReadFile(s.product("jobspecs", "acl", "shim.hcl"))
	must.NoError(t, err)
	must.StrContains(t, string(rules), but)
	token, err := s.agent.Token(deadline(t, stepDeadline), name, strings.ReplaceAll(string(rules), but, ""), ttl)
	must.NoError(t, err)
	return token
}

type access struct {
	address, token string
	cert           harness.Certificate
}

func (s *secured) access(t *testing.T) access {
	t.Helper()
	cert, err := s.agent.Certificate("shim")
	must.NoError(t, err)
	return access{s.agent.Addr, s.token, cert}
}

func (a access) config(t *testing.T) (file string) {
	t.Helper()
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	must.NoError(t, os.WriteFile(token, []byte(a.token+"\n"), 0o600))
	settings := map[string]string{"address": quote(a.address), "token_file": quote(token), "ca_file": quote(a.cert.CAFile)}
	if a.cert.CertFile != "" {
		settings["cert_file"], settings["key_file"] = quote(a.cert.CertFile), quote(a.cert.KeyFile)
	}
	file = filepath.Join(dir, "shim.hcl")
	must.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf(`
interval = "1s"
nomad {
  %s
}
leader {
  ttl   = "10s"
  delay = "1s"
}
web {
  address = ""
}
relocation {
  enabled = false
}
migration {
  enabled = true
}
`, assignments(settings))), 0o644))
	return file
}

func run(t *testing.T, env []string, argv ...string) (exit int, output string) {
	t.Helper()
	cmd := exec.CommandContext(deadline(t, stepDeadline), argv[0], argv[1:]...)
	cmd.Env = env
	out, err := cmd.CombinedOutput()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		must.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// nomad runs Nomad's CLI with the management token.
func (s *secured) nomad(t *testing.T, args ...string) {
	t.Helper()
	path, err := s.h.Tools.Nomad(deadline(t, startDeadline))
	must.NoError(t, err)
	exit, out := run(t, s.agent.Environ(""), append([]string{path}, args...)...)
	must.Eq(t, 0, exit, must.Sprint(out))
	t.Log(out)
}

// testRefused: shims without rights report why and exit.
func (s *secured) testRefused(t *testing.T) {
	stranger, err := harness.NewAuthority(t.TempDir())
	must.NoError(t, err)
	expired := s.newToken(t, "expired", time.Second, "")
	eventually(t, "the token has expired", func() error {
		_, _, err := s.agent.API.ACLTokens().Self(&api.QueryOptions{AuthToken: expired})
		if err == nil {
			return errors.New("it is good")
		}
		return nil
	})
	policies := 0
	lacks := func(but string) func(*access) {
		policies++
		token := s.newToken(t, fmt.Sprint("lacks-", policies), 0, but)
		return func(a *access) { a.token = token }
	}
	for name, tc := range map[string]struct {
		spoil func(*access)
		want  string
	}{
		"unknown token":  {func(a *access) { a.token = "3d1f4a52-0000-4000-8000-7c1b7d9b1e55" }, "the token is unknown to Nomad or has expired"},
		"expired token":  {func(a *access) { a.token = expired }, "the token is unknown to Nomad or has expired"},
		"no signals":     {lacks(`"alloc-lifecycle", `), `missing right: namespace "default": alloc-lifecycle`},
		"no list":        {lacks(`"list-jobs", `), `missing right: namespace "default": list-jobs`},
		"no nodes":       {lacks("node {\n  policy = \"read\"\n}"), "missing right: node: read"},
		"no memory":      {lacks(`"write", `), `missing right: namespace "default": variables: path "ebbtide/shim/leader": write`},
		"another CA":     {func(a *access) { a.cert.CAFile = stranger.CAFile }, "certificate signed by unknown authority"},
		"no certificate": {func(a *access) { a.cert.CertFile = "" }, "certificate required"},
		"no TLS":         {func(a *access) { a.address = "http" + strings.TrimPrefix(a.address, "https") }, "HTTP request to an HTTPS server"},
		"no listener":    {func(a *access) { a.address = "https://127.0.0.1:1" }, "connection refused"},
	} {
		a := s.access(t)
		tc.spoil(&a)
		exit, out := run(t, []string{}, s.cli, "shim", "-config", a.config(t))
		t.Logf("%s: %s", name, out)
		must.Eq(t, 1, exit, must.Sprint(name))
		must.StrContains(t, out, "ebbtide shim: ")
		must.StrContains(t, out, tc.want)
		must.StrNotContains(t, out, a.token)
	}
}

func converged(id string, migrates bool) job {
	if migrates {
		return optIn(trainee(id))
	}
	return trainee(id)
}

// fill starts two converged training jobs, one of them movable, next to two that learn.
func (s *secured) fill(t *testing.T) *api.Allocation {
	t.Helper()
	moves := s.start(t, converged("moves", true))
	s.start(t, converged("stays", false))
	for i := range 2 {
		s.start(t, job{id: fmt.Sprintf("grows-%d", i), tasks: []task{shell(`n=0; v=-100
while :; do n=$((n+1)); v=$((v*105/100)); echo step=$n loss=$v; sleep 0.5; done`)}})
	}
	s.waitStatus(t, moves, "train", "sorted", func(st status.Status) bool { return st.SpeCon.Category != "" })
	return moves
}

// waitMoved waits until the job runs on another node, once, from its checkpoint, and a shim with its
// variables in the namespace has written it down.
func (s *secured) waitMoved(t *testing.T, old *api.Allocation, namespace string) {
	t.Helper()
	ctx := deadline(t, startDeadline)
	var next string
	must.NoError(t, harness.Poll(ctx, "it runs on another node", func(ctx context.Context) error {
		stubs, err := s.agent.Allocs(ctx, old.JobID)
		if err != nil {
			return err
		}
		running := 0
		for _, stub := range stubs {
			if stub.ClientStatus == api.AllocClientStatusRunning {
				next = stub.ID
				running++
			}
		}
		must.LessEq(t, 1, running)
		if running == 0 || next == old.ID {
			return errors.New("it is where it was")
		}
		return nil
	}))
	alloc, _, err := s.agent.API.Allocations().Info(next, nil)
	must.NoError(t, err)
	must.NotEq(t, old.NodeID, alloc.NodeID)
	to := s.nodes[alloc.NodeID]
	must.Eq(t, "docker", to.engine)

	ev := s.waitEvent(t, old, "train", "checkpoint saved")
	saved, err := strconv.Atoi(ev.Details["step"])
	must.NoError(t, err)
	must.Positive(t, saved)
	out, err := to.agent.WaitLog(ctx, alloc, "train", "stdout", "\n")
	must.NoError(t, err)
	first := 0
	_, err = fmt.Sscanf(out, "step=%d", &first)
	must.NoError(t, err, must.Sprint(out))
	must.GreaterEq(t, saved, first, must.Sprint("it begins where it was"))
	must.Eq(t, []string{"start", "start"}, goal{to, alloc}.lines(t, "starts"))
	t.Logf("it saved step %d, and resumes at step %d", saved, first)

	eventually(t, "it is written down", func() error {
		exit, out := run(t, s.agent.Environ(s.token), s.cli, "moves")
		must.Eq(t, 0, exit, must.Sprint(out))
		for row := range strings.Lines(out) {
			if strings.Contains(row, "default/"+old.JobID+" ") && strings.Contains(row, "  moved, ") {
				t.Log(row)
				return nil
			}
		}
		return fmt.Errorf("there is\n%s", out)
	})
}

func (s *secured) shim(t *testing.T, name string) *harness.Process {
	t.Helper()
	p, err := s.h.Start(deadline(t, startDeadline), name, []string{s.cli, "shim", "-config", s.access(t).config(t)}, nil)
	must.NoError(t, err)
	return p
}

func waitLine(t *testing.T, p *harness.Process, text string) {
	t.Helper()
	eventually(t, p.Name+" says "+text, func() error {
		out, err := os.ReadFile(p.Log)
		must.NoError(t, err)
		if !strings.Contains(string(out), text) {
			return fmt.Errorf("it says\n%s", out)
		}
		return nil
	})
}

func (s *secured) endShim(t *testing.T, p *harness.Process) {
	t.Helper()
	must.NoError(t, p.Signal(unix.SIGTERM))
	must.NoError(t, p.Wait(deadline(t, stepDeadline)))
	out, err := os.ReadFile(p.Log)
	must.NoError(t, err)
	must.ErrorContains(t, p.Err(), "exit status 0", must.Sprint(string(out)))
	must.StrNotContains(t, string(out), s.token)
}

// testProgram runs two shims: one moves the movable job, and the other takes over when it stops.
func (s *secured) testProgram(t *testing.T, moves *api.Allocation) {
	leads := s.shim(t, "shim-1")
	waitLine(t, leads, "following the cluster")
	next := s.shim(t, "shim-2")
	waitLine(t, next, "standing by")
	s.waitMoved(t, moves, "default")
	stubs, err := s.agent.Allocs(deadline(t, stepDeadline), "stays")
	must.NoError(t, err)
	must.Len(t, 1, stubs, must.Sprint("a job that has not opted in stays"))
	s.endShim(t, leads)
	waitLine(t, next, "following the cluster")
	s.endShim(t, next)
}

// testJob runs the jobspec of the package.
func (s *secured) testJob(t *testing.T) {
	s.takes(t, false)
	more := s.start(t, converged("moves-too", true))
	must.Eq(t, s.agent.NodeID(), more.NodeID)
	s.takes(t, true)

	const name, namespace = "ebbtide-shim", "ebbtide"
	s.nomad(t, "namespace", "apply", namespace)
	s.nomad(t, "acl", "policy", "apply", "-namespace", namespace, "-job", name, name, s.product("jobspecs", "acl", "shim.hcl"))
	// With a policy that moves idle tasks.
	spec, err := os.ReadFile(s.product("jobspecs", "shim.hcl"))
	must.NoError(t, err)
	file := filepath.Join(t.TempDir(), "shim.hcl")
	must.StrContains(t, string(spec), "          web {\n")
	must.NoError(t, os.WriteFile(file, bytes.Replace(spec, []byte("          web {\n"), []byte("          migration {\n            enabled = true\n          }\n          web {\n"), 1), 0o644))
	s.nomad(t, "job", "run", "-detach", "-namespace", namespace, file)
	end := func() error {
		_, _, err := s.agent.API.Jobs().Deregister(name, false, &api.WriteOptions{Namespace: namespace})
		return err
	}
	t.Cleanup(func() { _ = end() })
	defer func() {
		if t.Failed() {
			t.Log(s.shims(t, namespace, name))
		}
	}()
	var logs map[string]string
	eventually(t, "one of two leads and the other stands by", func() (err error) {
		logs, err = s.shims(t, namespace, name)
		return err
	})
	s.nomad(t, "alloc", "logs", "-namespace", namespace, "-stderr", "-job", name) // as in the file's comment
	s.waitMoved(t, more, namespace)
	// Nomad refuses plans to workload identities up to 2.0.3.
	plan := "Nomad would place it there"
	self, err := s.agent.API.Agent().Self()
	must.NoError(t, err)
	if strings.HasPrefix(self.Member.Tags["build"], "1.") {
		plan = "Nomad returned no plan"
	}
	logs, err = s.shims(t, namespace, name)
	must.NoError(t, err)
	must.StrContains(t, fmt.Sprint(logs), plan)

	must.NoError(t, end())
	for id := range logs {
		alloc, err := s.agent.WaitAllocID(deadline(t, startDeadline), id, "ended", harness.Terminal)
		must.NoError(t, err)
		must.NotNil(t, harness.FindEvent(alloc, "shim", "Exit Code: 0"), must.Sprint(harness.Events(alloc, "shim")))
		text, err := s.agent.Logs(deadline(t, stepDeadline), alloc, "shim", "stderr")
		must.NoError(t, err)
		must.StrNotContains(t, text, "eyJ", must.Sprint("a token"))
	}
}

// takes sets the eligibility of all nodes except the first.
func (s *secured) takes(t *testing.T, yes bool) {
	t.Helper()
	for id := range s.nodes {
		if id == s.agent.NodeID() {
			continue
		}
		eligible(t, s.agent, id, yes)
	}
}

// shims returns the shim allocations' logs, or an error unless one leads, another stands by, and
// both are healthy.
func (c *cluster) shims(t *testing.T, namespace, jobID string) (logs map[string]string, err error) {
	ctx := deadline(t, stepDeadline)
	stubs, err := c.agent.AllocsIn(ctx, namespace, jobID)
	if err != nil {
		return nil, err
	}
	if len(stubs) == 0 {
		return nil, fmt.Errorf("none is placed%s", c.agent.WhyNotPlaced(namespace, jobID))
	}
	logs = make(map[string]string)
	leads, stands, well := 0, 0, 0
	for _, stub := range stubs {
		text, err := c.agent.Logs(ctx, &api.Allocation{ID: stub.ID, NodeID: stub.NodeID}, "shim", "stderr")
		if err != nil {
			return logs, fmt.Errorf("%w: %s", err, harness.Events(&api.Allocation{TaskStates: stub.TaskStates}, "shim"))
		}
		logs[stub.ID] = text
		switch {
		case strings.Contains(text, "following the cluster"):
			leads++
		case strings.Contains(text, "standing by"):
			stands++
		}
		checks, err := c.agent.API.Allocations().Checks(stub.ID, nil)
		if err != nil {
			return logs, err
		}
		for _, check := range checks {
			if check.Status == "success" {
				well++
			}
		}
	}
	if leads != 1 || stands != 1 || well != 2 {
		return logs, fmt.Errorf("%d lead, %d stand by, %d are well: %q", leads, stands, well, logs)
	}
	return logs, nil
}
