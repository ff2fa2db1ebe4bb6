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

// Tools finds the programs that a run needs, and builds those of this repository
// that are missing or out of date.
//
// EBBTIDE_BIN names a directory with programs built already (ebbtide-driver,
// ebbtide, trainer); what is in it is used as it is. EBBTIDE_NOMAD names a Nomad
// agent.
type Tools struct {
	Root string // the repository

	logf func(format string, args ...any)
	mu   sync.Mutex
	have map[string]string
}

// NewTools returns the tools of a repository; logf may be nil.
func NewTools(root string, logf func(format string, args ...any)) *Tools {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	return &Tools{Root: root, logf: logf, have: make(map[string]string)}
}

// FindRoot looks for the repository: EBBTIDE_ROOT, or upwards from here.
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

// Driver is the path of the task driver plugin.
func (t *Tools) Driver(ctx context.Context) (string, error) {
	return t.own(ctx, "ebbtide-driver", "./cmd/ebbtide-driver")
}

// GPU is the path of the device plugin.
func (t *Tools) GPU(ctx context.Context) (string, error) {
	return t.own(ctx, "ebbtide-gpu", "./cmd/ebbtide-gpu")
}

// CLI is the path of the ebbtide command, which is static.
func (t *Tools) CLI(ctx context.Context) (string, error) {
	return t.own(ctx, "ebbtide", "./cmd/ebbtide", "CGO_ENABLED=0")
}

// Trainer is the path of the static training program.
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
	// Always asked of the Go command, which knows whether anything has changed;
	// a test of last week's binary is worse than none.
	path := filepath.Join(t.Root, "bin", "e2e", name)
	t.logf("building %s", name)
	if err := t.build(ctx, t.Root, path, pkg, nil, env...); err != nil {
		return "", err
	}
	t.have[name] = path
	return path, nil
}

// nomadRequire finds the version of Nomad in e2e/nomad/go.mod.
var nomadRequire = regexp.MustCompile(`(?m)^\s*(?:require )?github\.com/hashicorp/nomad (v\S+)`)

// Nomad is the path of the Nomad agent: EBBTIDE_NOMAD, or the user's cache, or
// built from e2e/nomad with its web UI and put there.
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

// NomadVersion is the version that e2e/nomad/go.mod pins.
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

// DevicePlugin is the path of Nomad's example device plugin, which offers files
// of a directory as devices.
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

// build builds a package into a file, which appears only when it is complete.
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
	// Linking is skipped for an output that is up to date, so build onto a link
	// to the present file and rename.
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

// lock makes builds of one file wait for each other, in this process and others.
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

// Look finds a program of the system, also where a user's PATH does not lead.
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
