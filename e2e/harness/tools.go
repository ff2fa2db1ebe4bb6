// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Tools locates the programs that a run needs, and builds this repository's if missing or outdated.
//
// EBBTIDE_BIN is a directory of prebuilt programs (ebbtide-driver, ebbtide, trainer). EBBTIDE_NOMAD
// is a Nomad agent.
type Tools struct {
	Root string // the repository

	logf func(format string, args ...any)
	mu   sync.Mutex
	have map[string]string
}

// NewTools returns a repository's tools; logf may be nil.
func NewTools(root string, logf func(format string, args ...any)) *Tools {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	return &Tools{Root: root, logf: logf, have: make(map[string]string)}
}

// FindRoot returns EBBTIDE_ROOT, or the nearest parent directory with go.mod.
func FindRoot() (string, error) {
	if root := os.Getenv("EBBTIDE_ROOT"); root != "" {
		return filepath.Abs(root)
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.Contains(string(data), "module github.com/ebbtide/ebbtide\n") {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			return "", errors.New("not inside the Ebbtide repository; run from there or set EBBTIDE_ROOT")
		}
		dir = filepath.Dir(dir)
	}
}

// Driver returns the task driver plugin's path.
func (t *Tools) Driver(ctx context.Context) (string, error) {
	return t.own(ctx, "ebbtide-driver", "./cmd/ebbtide-driver")
}

// GPU returns the device plugin's path.
func (t *Tools) GPU(ctx context.Context) (string, error) {
	return t.own(ctx, "ebbtide-gpu", "./cmd/ebbtide-gpu")
}

// CLI returns the path of the static ebbtide command.
func (t *Tools) CLI(ctx context.Context) (string, error) {
	return t.own(ctx, "ebbtide", "./cmd/ebbtide", "CGO_ENABLED=0")
}

// Trainer returns the static trainer's path.
func (t *Tools) Trainer(ctx context.Context) (string, error) {
	return t.own(ctx, "trainer", "./e2e/trainer", "CGO_ENABLED=0")
}

// own finds or builds a program of this repository.
func (t *Tools) own(ctx context.Context, name, pkg string, env ...string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if path := t.have[name]; path != "" {
		return path, nil
	}
	if dir := os.Getenv("EBBTIDE_BIN"); dir != "" {
		path, err := filepath.Abs(filepath.Join(dir, name))
		if err == nil && exists(path) {
			t.have[name] = path
			return path, nil
		}
	}
	// Always let Go check for changes: testing an old binary is worse than not testing.
	path := filepath.Join(t.Root, "bin", "e2e", name)
	t.logf("building %s", name)
	if err := t.build(ctx, t.Root, path, pkg, nil, env...); err != nil {
		return "", err
	}
	t.have[name] = path
	return path, nil
}

// nomadRequire matches Nomad's version in e2e/nomad/go.mod.
var nomadRequire = regexp.MustCompile(`(?m)^\s*(?:require )?github\.com/hashicorp/nomad (v\S+)`)

// Nomad returns the agent's path: EBBTIDE_NOMAD, or in the user's cache, where it is built with its
// UI if necessary.
func (t *Tools) Nomad(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if path := t.have["nomad"]; path != "" {
		return path, nil
	}
	if path := os.Getenv("EBBTIDE_NOMAD"); path != "" {
		if !exists(path) {
			return "", fmt.Errorf("EBBTIDE_NOMAD=%s: no such file", path)
		}
		t.have["nomad"] = path
		return path, nil
	}
	version, err := t.NomadVersion()
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache for the Nomad agent: %w", err)
	}
	path := filepath.Join(cache, "ebbtide", "nomad-"+strings.TrimPrefix(version, "v"))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("making the cache for the Nomad agent: %w", err)
	}
	if !exists(path) {
		t.logf("building Nomad %s with its web UI into %s; this happens once and takes minutes", version, path)
		if err := t.build(ctx, filepath.Join(t.Root, "e2e", "nomad"), path, "github.com/hashicorp/nomad", []string{"-tags", "ui"}); err != nil {
			return "", err
		}
	}
	t.have["nomad"] = path
	return path, nil
}

func (t *Tools) NomadVersion() (string, error) {
	file := filepath.Join(t.Root, "e2e", "nomad", "go.mod")
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("reading which Nomad to use: %w", err)
	}
	m := nomadRequire.FindSubmatch(data)
	if m == nil {
		return "", fmt.Errorf("%s requires no github.com/hashicorp/nomad", file)
	}
	return string(m[1]), nil
}

// DevicePlugin returns the path of Nomad's example plugin, which offers a directory's files as
// devices.
func (t *Tools) DevicePlugin(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const name = "nomad-device-example"
	if path := t.have[name]; path != "" {
		return path, nil
	}
	path := filepath.Join(t.Root, "bin", "e2e", name)
	t.logf("building %s", name)
	if err := t.build(ctx, filepath.Join(t.Root, "e2e", "nomad"), path, "github.com/hashicorp/nomad/plugins/device/cmd/example/cmd", nil); err != nil {
		return "", err
	}
	t.have[name] = path
	return path, nil
}

// build replaces its output atomically.
func (t *Tools) build(ctx context.Context, dir, path, pkg string, flags []string, env ...string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("making the directory of %s: %w", path, err)
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("building %s needs Go (https://go.dev/dl): %w", filepath.Base(path), err)
	}
	unlock, err := lock(path)
	if err != nil {
		return err
	}
	defer unlock()
	// Go does not link up-to-date outputs, so build onto a link and rename it.
	tmp := path + ".new"
	_ = os.Remove(tmp)
	_ = os.Link(path, tmp)
	defer os.Remove(tmp)
	args := append([]string{"build", "-o", tmp}, flags...)
	cmd := exec.CommandContext(ctx, goTool, append(args, pkg)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("building %s: %w\n%s", filepath.Base(path), err, out)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("putting %s in place: %w", path, err)
	}
	return nil
}

// lock serialises builds of a file, across processes.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	return func() { _ = f.Close() }, nil
}

// Look is exec.LookPath, and also searches directories that may not be in PATH.
func Look(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/bin", "/usr/local/sbin"} {
		path := filepath.Join(dir, name)
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed", name)
}
