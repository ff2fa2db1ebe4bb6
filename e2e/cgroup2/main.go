// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Command cgroup2 runs driver/limits' kernel tests on cgroup v2 on any machine: it boots a Debian
// kernel under qemu with only the test binary.
//
//	go run ./e2e/cgroup2 [-require] [-timeout 8m] [-kernel FILE] [-qemu FILE] [-accel kvm]
//
// It needs qemu-system-x86_64 and a Debian kernel (downloaded once by apt into the user's cache, not
// installed). KVM is optional. Without them it prints SKIP and exits 0, or 1 with -require. It exits
// 1 unless every TestKernel… test passed and the guest exited with status 0.
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	module    = "github.com/ebbtide/ebbtide"
	tests     = "^TestKernel"
	kernelPkg = "linux-image-cloud-amd64"
	// marker precedes the exit status, printed by init/main.go.
	marker = "EBBTIDE-GUEST-EXIT"
)

// errSkip means that a requirement is unavailable.
var errSkip = errors.New("not available here")

type options struct {
	kernel, qemu, cache, accel string
	verbose                    bool
}

func main() {
	var o options
	require := flag.Bool("require", false, "fail instead of skipping")
	timeout := flag.Duration("timeout", 8*time.Minute, "limit for everything, downloads included")
	flag.StringVar(&o.kernel, "kernel", "", "kernel image to boot (default: Debian's, downloaded)")
	flag.StringVar(&o.qemu, "qemu", "", "qemu-system-x86_64 to use (default: from PATH)")
	flag.StringVar(&o.cache, "cache", "", "directory that keeps the kernel (default: the user's cache directory)")
	flag.StringVar(&o.accel, "accel", "tcg", "qemu's accelerator; tcg emulates, which also works in nested machines")
	flag.BoolVar(&o.verbose, "v", false, "show the guest's whole console")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()

	switch err := run(ctx, o, os.Stdout); {
	case errors.Is(err, errSkip) && !*require:
		fmt.Println("cgroup2: SKIP:", err)
	case err != nil:
		fmt.Fprintln(os.Stderr, "cgroup2: FAIL:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) error {
	start := time.Now()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return fmt.Errorf("%w: needs linux/amd64, this is %s/%s", errSkip, runtime.GOOS, runtime.GOARCH)
	}
	if o.qemu == "" {
		var err error
		if o.qemu, err = exec.LookPath("qemu-system-x86_64"); err != nil {
			return fmt.Errorf("%w: %w (Debian: qemu-system-x86)", errSkip, err)
		}
	}
	if o.kernel == "" {
		var err error
		if o.kernel, err = findKernel(ctx, o.cache); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "ebbtide-cgroup2-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	test, initProgram := filepath.Join(dir, "test"), filepath.Join(dir, "init")
	if err := command(ctx, "go", "test", "-c", "-o", test, module+"/driver/limits"); err != nil {
		return err
	}
	if err := command(ctx, "go", "build", "-ldflags=-s -w", "-o", initProgram, module+"/e2e/cgroup2/init"); err != nil {
		return err
	}
	list, err := exec.CommandContext(ctx, test, "-test.list", tests).Output()
	if err != nil {
		return fmt.Errorf("listing the tests: %w", err)
	}
	names := strings.Fields(string(list))
	image := filepath.Join(dir, "initramfs")
	for boots := 1; ; boots++ {
		if err := makeImage(image, initProgram, test, names); err != nil {
			return err
		}
		booted := time.Now()
		fmt.Fprintf(out, "cgroup2: booting %s\n", filepath.Base(o.kernel))
		failed, err := inGuest(ctx, o, image, names, out)
		switch {
		case err == nil:
			fmt.Fprintf(out, "cgroup2: ok, %d tests on cgroup v2 in %.0f s (%.0f s of them in the guest)\n", len(names), time.Since(start).Seconds(), time.Since(booted).Seconds())
			return nil
		case boots == maxBoots || ctx.Err() != nil:
			return err
		}
		fmt.Fprintln(out, "cgroup2: once more, as it failed:", err)
		names = failed
	}
}

// An emulated machine now and then stops for good, and its clock jumps on a busy host: a test has
// failed if it fails again in another boot.
const (
	maxBoots    = 2
	bootTimeout = 3 * time.Minute // it takes 20 s on an idle host
)

// inGuest returns the tests that did not pass; all of them, if the guest did not come to its end.
func inGuest(ctx context.Context, o options, image string, names []string, out io.Writer) (failed []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	console, err := boot(ctx, o, image, out)
	if err != nil {
		return names, fmt.Errorf("qemu: %w; the console's end:\n%s", err, tail(console, 30))
	}
	return verdict(console, names)
}

// command disables cgo, so that builds are static.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, tail(string(out), 10))
	}
	return nil
}

// findKernel returns Debian's cloud kernel, which has everything built in. The package is
// unpacked, not installed.
func findKernel(ctx context.Context, cache string) (string, error) {
	if cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			base = os.TempDir()
		}
		cache = filepath.Join(base, "ebbtide", "cgroup2")
	}
	if kernel := kernelIn(cache); kernel != "" {
		return kernel, nil
	}
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", kernelPkg).Output()
	pkg := ""
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(name, "linux-image-") {
			pkg = name
		}
	}
	if pkg == "" {
		return "", fmt.Errorf("%w: apt knows no package %s (apt-get update?): %w", errSkip, kernelPkg, cmpErr(err))
	}
	tmp, err := os.MkdirTemp("", "ebbtide-kernel-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	fmt.Println("cgroup2: downloading", pkg)
	download := exec.CommandContext(ctx, "apt-get", "download", "-q", pkg)
	download.Dir = tmp
	if out, err := download.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: apt-get download %s: %w\n%s", errSkip, pkg, err, tail(string(out), 10))
	}
	debs, _ := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if len(debs) != 1 {
		return "", fmt.Errorf("apt-get download %s left %d packages, not 1", pkg, len(debs))
	}
	if err := command(ctx, "dpkg", "-x", debs[0], filepath.Join(tmp, "root")); err != nil {
		return "", err
	}
	kernel := kernelIn(filepath.Join(tmp, "root", "boot"))
	if kernel == "" {
		return "", fmt.Errorf("%s holds no /boot/vmlinuz-*", filepath.Base(debs[0]))
	}
	content, err := os.ReadFile(kernel)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	kept := filepath.Join(cache, filepath.Base(kernel))
	// Renamed, so that an interrupted run leaves no partial file.
	if err := os.WriteFile(kept+".tmp", content, 0o644); err != nil {
		return "", err
	}
	return kept, os.Rename(kept+".tmp", kept)
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("it depends on no kernel")
	}
	return err
}

func kernelIn(dir string) string {
	found, _ := filepath.Glob(filepath.Join(dir, "vmlinuz-*"))
	found = slices.DeleteFunc(found, func(s string) bool { return strings.HasSuffix(s, ".tmp") })
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

func makeImage(image, initProgram, test string, names []string) error {
	entries := []entry{
		{name: "dev", mode: modeDir}, {name: "proc", mode: modeDir}, {name: "sys", mode: modeDir}, {name: "tmp", mode: modeDir},
		{name: "args", mode: modeFile, content: []byte("-test.v\n-test.run=^(" + strings.Join(names, "|") + ")$\n-test.timeout=5m\n")},
	}
	for name, path := range map[string]string{"init": initProgram, "test": test} {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		entries = append(entries, entry{name: name, mode: modeExec, content: b})
	}
	f, err := os.Create(image)
	if err != nil {
		return err
	}
	z, _ := gzip.NewWriterLevel(f, gzip.BestSpeed)
	return errors.Join(writeCPIO(z, entries), z.Close(), f.Close())
}

// boot runs the machine to its end and returns its output.
func boot(ctx context.Context, o options, image string, out io.Writer) (string, error) {
	cmd := exec.CommandContext(ctx, o.qemu,
		"-accel", o.accel, "-cpu", "max", "-smp", "2", "-m", "512",
		"-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-nic", "none", "-no-reboot",
		"-kernel", o.kernel, "-initrd", image,
		"-append", "console=ttyS0 quiet panic=-1 cgroup_no_v1=all")
	// It must not outlive this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 5 * time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	var problems bytes.Buffer
	cmd.Stderr = &problems
	runtime.LockOSThread() // Pdeathsig refers to the thread
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return "", err
	}
	var console strings.Builder
	interesting := regexp.MustCompile(`^(=== |--- |\s+--- |\s+\S+_test\.go:|PASS|FAIL|ok|init:|panic)`)
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		console.WriteString(line + "\n")
		if o.verbose || interesting.MatchString(line) && !strings.HasPrefix(line, "===") {
			fmt.Fprintln(out, "  "+line)
		}
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		err = fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	if err != nil {
		err = fmt.Errorf("%w %s", err, strings.TrimSpace(problems.String()))
	}
	return console.String(), err
}

// verdict requires that every test passed (not skipped) and the guest exited with status 0. It
// returns the tests that did not pass, all of them if it is none of them; the error has their output.
func verdict(console string, names []string) (failed []string, err error) {
	if len(names) == 0 {
		return nil, errors.New("the test binary has no tests " + tests)
	}
	code, ended := "", false
	passed, output := map[string]bool{}, map[string]*strings.Builder{}
	current := &strings.Builder{}
	for line := range strings.Lines(console) {
		line = strings.TrimRight(line, "\r\n")
		if name, ok := strings.CutPrefix(line, "=== RUN   "); ok && slices.Contains(names, name) {
			current = &strings.Builder{}
			output[name] = current
		}
		fmt.Fprintln(current, line)
		if rest, ok := strings.CutPrefix(line, marker+" "); ok {
			code, ended = rest, true
		}
		if rest, ok := strings.CutPrefix(line, "--- PASS: "); ok {
			passed[strings.Fields(rest + " ")[0]] = true
		}
	}
	var errs []error
	for _, name := range names {
		if passed[name] {
			continue
		}
		failed = append(failed, name)
		said := ""
		if output[name] != nil {
			said = ":\n" + tail(output[name].String(), 30)
		}
		errs = append(errs, fmt.Errorf("%s did not pass%s", name, said))
	}
	switch {
	case !ended:
		errs = append(errs, fmt.Errorf("the guest did not come to its end: no %q", marker))
	case code != "0":
		errs = append(errs, fmt.Errorf("the tests ended with status %s", code))
	}
	if !ended || len(failed) == 0 && len(errs) > 0 {
		failed = names
		errs = append(errs, fmt.Errorf("the console's end:\n%s", tail(console, 30)))
	}
	return failed, errors.Join(errs...)
}

func tail(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
