// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package limits

// These tests use the running kernel: they create cgroups, start small busy processes
// in them and check the kernel's behaviour. They need root and use the machine's cgroup
// version; e2e/cgroup2 runs them under a kernel with version 2. They compare ratios of
// CPU time, which hold on a loaded machine, not wall time.

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

const (
	helperEnv  = "EBBTIDE_LIMITS_HELPER"
	countEnv   = "EBBTIDE_LIMITS_COUNT" // the file of the helper count
	requireEnv = "EBBTIDE_REQUIRE_CGROUP"
	// dirsEnv lists the groups that a helper joins, mountEnv where it mounts the
	// cgroups of its own namespace.
	dirsEnv  = "EBBTIDE_LIMITS_DIRS"
	mountEnv = "EBBTIDE_LIMITS_MOUNT"
)

// Namespaces belong to threads, and /proc/self shows those of the first: a helper stays on it.
func init() {
	if os.Getenv(helperEnv) != "" {
		runtime.LockOSThread()
	}
}

func TestMain(m *testing.M) {
	switch os.Getenv(helperEnv) {
	case "":
		os.Exit(m.Run())
	case "sleep":
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it
	case "busy":
		// Two threads hit a quota below one core hard.
		for range 2 {
			go func() {
				for {
					runtime.KeepAlive(spin())
				}
			}()
		}
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "count":
		go func() {
			file, err := os.Create(os.Getenv(countEnv))
			for err == nil {
				_, err = file.Write([]byte{1})
			}
		}()
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "quota":
		ownQuota()
	case "find":
		findOutside()
	case "touch":
		touchMemory()
	case "write":
		writeBlocks()
	case "receive":
		receivePackets()
	}
}

//go:noinline
func spin() (x uint64) {
	for i := range uint64(1 << 20) {
		x += i * i
	}
	return x
}

type kernel struct {
	t       *testing.T
	version int
	dirs    []string             // one per hierarchy: cpu first
	attr    *syscall.SysProcAttr // of helper processes
}

// newKernel creates a parent group with a unique name, removed with its children at the
// end.
func newKernel(t *testing.T, above ...string) *kernel {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped: -short; this test makes cgroups and burns CPU")
	}
	skip := t.Skipf
	required := os.Getenv(requireEnv)
	if required != "" {
		skip = t.Fatalf
	}
	if os.Geteuid() != 0 {
		skip("skipped: needs root to make cgroups")
	}
	mounts, err := Finder{}.mounts()
	must.NoError(t, err)
	k := &kernel{t: t}
	var v1, v2 []string
	for _, controller := range []string{"cpu", "cpuacct", "memory"} {
		for _, m := range mounts {
			if m.Root == "/" && isHierarchy(m, controller) {
				v1 = append(v1, m.Mountpoint)
				break
			}
		}
	}
	for _, m := range mounts {
		b, err := os.ReadFile(filepath.Join(m.Mountpoint, "cgroup.controllers"))
		if isHierarchy(m, "") && err == nil && slices.Contains(strings.Fields(string(b)), "cpu") {
			v2 = []string{m.Mountpoint}
		}
	}
	switch {
	case len(v1) == 3:
		k.version, k.dirs = 1, v1
		for _, m := range mounts { // optional controllers
			if m.Root == "/" && (isHierarchy(m, "blkio") || isHierarchy(m, "freezer")) {
				k.dirs = append(k.dirs, m.Mountpoint)
			}
		}
	case len(v2) == 1:
		k.version, k.dirs = 2, v2
	default:
		skip("skipped: no cgroup mount with a cpu controller")
	}
	if required != "" && required != strconv.Itoa(k.version) {
		t.Fatalf("cgroup version %s is required, this machine has %d", required, k.version)
	}
	for _, name := range append(above, fmt.Sprintf("ebbtide-test-%d-%d", os.Getpid(), time.Now().UnixNano())) {
		k = k.child(name)
	}
	return k
}

// child creates a group below with the controllers enabled; it is removed at the end
// unless it already existed.
func (k *kernel) child(name string) *kernel {
	k.t.Helper()
	c := &kernel{t: k.t, version: k.version}
	for _, dir := range k.dirs {
		if k.version == 2 {
			err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu +memory"), 0)
			must.NoError(k.t, err)
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+io"), 0)
		}
		sub := filepath.Join(dir, name)
		c.dirs = append(c.dirs, sub)
		err := os.Mkdir(sub, 0o755)
		if os.IsExist(err) {
			continue
		}
		must.NoError(k.t, err)
		k.t.Cleanup(func() {
			// Killed processes take a moment to leave.
			for range 200 {
				if err = unix.Rmdir(sub); err == nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			k.t.Errorf("removing %s: %v", sub, err)
		})
	}
	return c
}

// run starts a helper in a task group below k, on one CPU or (cpu < 0) on all.
func (k *kernel) run(task, helper string, cpu int) *Cgroup {
	k.t.Helper()
	g := k.child(task)
	pid := g.start(helper, cpu)
	c, err := FindFor(pid, "")
	must.NoError(k.t, err)
	must.Eq(k.t, g.dirs[0], c.cpu.dir)
	must.Eq(k.t, k.version, c.Version())
	return c
}

func (k *kernel) cgroup() *Cgroup {
	return &Cgroup{cpu: control{version: k.version, dir: k.dirs[0], base: k.dirs[0]}}
}

// start starts a helper in k itself. It ends with the test or with this process, when
// its stdin closes.
func (k *kernel) start(helper string, cpu int) int {
	k.t.Helper()
	pid, _ := k.startTalking(helper, cpu)
	return pid
}

func (k *kernel) startTalking(helper string, cpu int) (pid int, stdin io.Writer) {
	k.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"="+helper)
	cmd.SysProcAttr = k.attr
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdinPipe()
	must.NoError(k.t, err)

	// A child inherits the affinity of the forking thread.
	if cpu >= 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var before, one unix.CPUSet
		must.NoError(k.t, unix.SchedGetaffinity(0, &before))
		one.Set(cpu)
		must.NoError(k.t, unix.SchedSetaffinity(0, &one))
		defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	}
	must.NoError(k.t, cmd.Start())
	k.t.Cleanup(func() {
		_ = pipe.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for _, dir := range k.dirs {
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0)
		must.NoError(k.t, err)
	}
	return cmd.Process.Pid, pipe
}

func cpus(t *testing.T) (list []int) {
	var set unix.CPUSet
	must.NoError(t, unix.SchedGetaffinity(0, &set))
	for i := range 1024 {
		if set.IsSet(i) {
			list = append(list, i)
		}
	}
	return list
}

// during measures the tasks' usage until they have used `enough` CPU-seconds together.
func during(t *testing.T, enough float64, tasks ...*Cgroup) []Usage {
	t.Helper()
	read := func() []Usage {
		us := make([]Usage, len(tasks))
		for i, c := range tasks {
			u, err := c.Usage()
			must.NoError(t, err)
			us[i] = u
		}
		return us
	}
	before := read()
	for range 6000 {
		time.Sleep(20 * time.Millisecond)
		now, sum := read(), 0.0
		for i := range now {
			now[i].CPUSeconds -= before[i].CPUSeconds
			now[i].Periods -= before[i].Periods
			now[i].Throttled -= before[i].Throttled
			now[i].ThrottledSeconds -= before[i].ThrottledSeconds
			sum += now[i].CPUSeconds
		}
		if sum >= enough {
			return now
		}
	}
	t.Fatalf("the tasks did not use %v CPU-seconds", enough)
	return nil
}

func TestKernel_readBack(t *testing.T) {
	k := newKernel(t)
	c := k.run("task", "sleep", -1)

	l, err := c.Read()
	must.NoError(t, err)
	must.Eq(t, Limits{Shares: DefaultShares}, l)

	for _, shares := range []uint64{0, 1, 2, 3, 10, 100, 500, 1000, 1024, 2000, 20_000, 262_143, MaxShares, 1 << 40} {
		must.NoError(t, c.SetShares(shares))
		got, err := c.Read()
		must.NoError(t, err)
		must.True(t, c.InForce(Limits{Shares: shares}, got), must.Sprintf("%d shares: read back %d", shares, got.Shares))
		must.GreaterEq(t, ClampShares(shares), got.Shares)
		w, err := c.Weight()
		must.NoError(t, err)
		must.Eq(t, c.Conversion().Weight(shares), w)
	}
	must.NoError(t, c.SetShares(1024))
	for _, cores := range []float64{0.001, 0.1, 0.5, 1, 1.2345678, 16, 0} {
		must.NoError(t, c.SetQuota(cores))
		got, err := c.Read()
		must.NoError(t, err)
		must.True(t, c.InForce(Limits{1024, cores}, got), must.Sprintf("%v cores: read back %v", cores, got.QuotaCores))
	}
	must.False(t, c.InForce(Limits{1024, 0}, Limits{1024, 1}))
	must.False(t, c.InForce(Limits{1024, 2}, Limits{1024, 1}))
	must.False(t, c.InForce(Limits{2048, 1}, Limits{1024, 1}))

	mem, err := c.Memory()
	must.NoError(t, err)
	must.Less(t, 1<<30, mem)
}

// checkDivision checks that busy tasks on one CPU get CPU time in proportion to their
// weights.
func checkDivision(t *testing.T, tasks []*Cgroup, shares ...uint64) {
	t.Helper()
	weights, sum, used := make([]float64, len(tasks)), 0.0, 0.0
	for i, c := range tasks {
		must.NoError(t, c.SetShares(shares[i]))
		got, err := c.Read()
		must.NoError(t, err)
		must.True(t, c.InForce(Limits{Shares: shares[i]}, got))
		weights[i] = float64(c.Conversion().Weight(shares[i]))
		sum += weights[i]
	}
	us := during(t, 2, tasks...)
	for _, u := range us {
		used += u.CPUSeconds
	}
	for i, u := range us {
		want, got := weights[i]/sum, u.CPUSeconds/used
		t.Logf("%d shares: %.3f of the CPU, %.3f by weight", shares[i], got, want)
		must.Between(t, want/1.5, got, want*1.5)
		must.Zero(t, u.Throttled)
	}
}

// Each task gets its entitlement of a busy CPU: one with 8000 MHz is not held to its
// neighbours' mean.
func TestKernel_weights(t *testing.T) {
	k := newKernel(t)
	cpu := cpus(t)[0]
	tasks := []*Cgroup{k.run("a", "busy", cpu), k.run("b", "busy", cpu), k.run("c", "busy", cpu)}
	checkDivision(t, tasks, 8000, 500, 500)
	checkDivision(t, tasks, 4000, 4000, 1000)
	checkDivision(t, tasks, 3000, 3000, 3000)
}

// A low weight does not slow down the only busy task.
func TestKernel_weightConservesWork(t *testing.T) {
	k := newKernel(t)
	cpu := cpus(t)[0]
	a := k.run("a", "busy", cpu)
	must.NoError(t, a.SetShares(MinShares))
	b := k.run("b", "sleep", cpu)
	must.NoError(t, b.SetShares(MaxShares))
	during(t, 0.3, a) // while the sleeper starts up
	us := during(t, 0.5, a, b)
	must.Greater(t, 5*us[1].CPUSeconds, us[0].CPUSeconds)
	must.Zero(t, us[0].Throttled)
}

func TestKernel_quotaThrottles(t *testing.T) {
	k := newKernel(t)
	c := k.run("task", "busy", -1)
	must.NoError(t, c.SetQuota(0.25))
	u := during(t, 0.5, c)[0]
	t.Logf("two threads in a quota of 0.25 cores: %.2f CPU-s in %d periods, throttled in %d, for %.2f s", u.CPUSeconds, u.Periods, u.Throttled, u.ThrottledSeconds)
	must.Positive(t, u.Throttled)
	must.Positive(t, u.ThrottledSeconds)
	must.GreaterEq(t, u.Throttled, u.Periods)
	// Periods are the quota's own clock: 25 ms each, with slack for slices already
	// handed out to CPUs.
	must.Less(t, 1.5*0.025*float64(u.Periods+2), u.CPUSeconds)

	must.NoError(t, c.SetQuota(0))
	during(t, 0.2, c) // lets the last throttled period pass
	u = during(t, 0.5, c)[0]
	must.Zero(t, u.Throttled)
}

func TestKernel_parentQuota(t *testing.T) {
	k := newKernel(t)
	c := k.run("task", "busy", -1)
	must.NoError(t, k.cgroup().SetQuota(0.5))
	err := c.SetQuota(2)
	if k.version == 1 {
		must.ErrorIs(t, err, unix.EINVAL)
		must.ErrorContains(t, err, "quota of 2.000 cores: the parent "+k.dirs[0]+" allows at most 0.500")
		must.ErrorContains(t, err, "200000")
	} else {
		must.NoError(t, err)
	}
	must.NoError(t, c.SetQuota(0.4))
	must.NoError(t, c.SetQuota(0))
}

// The quota is the minimum of the process's cgroup and its visible parents: in a
// container, its own.
func TestKernel_ownQuota(t *testing.T) {
	above := newKernel(t)
	parent := above.child("parent")
	own := parent.child("own")
	quota := func(mount string) string {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), helperEnv+"=quota", mountEnv+"="+mount, dirsEnv+"="+strings.Join(own.dirs, ":"))
		out, err := cmd.CombinedOutput()
		must.NoError(t, err, must.Sprint(string(out)))
		return string(out)
	}
	before := quota("") // set above the test's groups
	must.NoError(t, above.cgroup().SetQuota(0.75))
	must.Eq(t, "0.75", quota(""))
	must.NoError(t, parent.cgroup().SetQuota(0.5))
	must.Eq(t, "0.5", quota(""))
	must.Eq(t, "0", quota(t.TempDir()))
	must.NoError(t, own.cgroup().SetQuota(0.25))
	must.Eq(t, "0.25", quota(""))
	must.Eq(t, "0.25", quota(t.TempDir()))
	for _, k := range []*kernel{own, parent, above} {
		must.NoError(t, k.cgroup().SetQuota(0))
	}
	must.Eq(t, before, quota(""))
}

// ownQuota is the helper of TestKernel_ownQuota. With a directory it acts as a
// container, with its own cgroup namespace and mount.
func ownQuota() {
	err := enter()
	if dir := os.Getenv(mountEnv); dir != "" && err == nil {
		fstype, data := "cgroup", "cpu"
		if ours, _, err := (Finder{}).self(); err == nil && ours["cpu"] == "" {
			fstype, data = "cgroup2", ""
		}
		err = errors.Join(
			unix.Unshare(unix.CLONE_NEWCGROUP|unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount(fstype, dir, fstype, 0, data))
	}
	cores := 0.0
	if err == nil {
		cores, err = OwnQuota()
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Print(cores)
}

func enter() error {
	var errs []error
	for dir := range strings.SplitSeq(os.Getenv(dirsEnv), ":") {
		errs = append(errs, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0))
	}
	return errors.Join(errs...)
}

// The job's quota period is kept; very short periods still work.
func TestKernel_period(t *testing.T) {
	k := newKernel(t)
	c := k.run("task", "sleep", -1)
	for _, per := range []int64{20_000, 1_000} {
		if k.version == 1 {
			must.NoError(t, c.cpu.write("cpu.cfs_period_us", strconv.FormatInt(per, 10)))
		} else {
			must.NoError(t, c.cpu.write("cpu.max", fmt.Sprintf("max %d", per)))
		}
		for _, cores := range []float64{1.5, 0.5, 0.1} {
			must.NoError(t, c.SetQuota(cores))
			l, err := c.Read()
			must.NoError(t, err)
			must.Eq(t, cores, l.QuotaCores)
		}
	}
}

func TestKernel_gone(t *testing.T) {
	k := newKernel(t)
	var c *Cgroup
	t.Run("alive", func(t *testing.T) {
		sub := &kernel{t: t, version: k.version, dirs: k.dirs}
		c = sub.run("task", "sleep", -1)
	})
	_, err := c.Usage()
	must.ErrorIs(t, err, ErrGone)
	_, err = c.Memory()
	must.ErrorIs(t, err, ErrGone)
	_, err = c.Read()
	must.ErrorIs(t, err, ErrGone)
	must.ErrorIs(t, c.SetShares(512), ErrGone)
	must.ErrorIs(t, c.SetQuota(1), ErrGone)

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"=nothing")
	must.NoError(t, cmd.Start())
	for range 500 {
		if (Finder{}).zombie(strconv.Itoa(cmd.Process.Pid)) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	_, err = FindFor(cmd.Process.Pid, "")
	must.ErrorIs(t, err, ErrGone)
	_ = cmd.Wait()
	_, err = FindFor(cmd.Process.Pid, "")
	must.ErrorIs(t, err, ErrGone)
}

func TestKernel_refusesOurs(t *testing.T) {
	newKernel(t)
	_, err := FindFor(os.Getpid(), "")
	must.ErrorIs(t, err, ErrNotExclusive)
	_, err = FindFor(1, "")
	must.ErrorIs(t, err, ErrNotExclusive)
}

// As created by Nomad's exec driver.
func TestKernel_execDriver(t *testing.T) {
	const id = "0b5d9b1c-8d2f-7a0e-6a0e-3f1f2b7f1d11.web"
	above, scope := []string{"ebbtide-nomad"}, id
	if newKernel(t).version == 2 {
		above, scope = []string{"ebbtide-nomad.slice", "share.slice"}, id+".scope"
	}
	k := newKernel(t, above...)
	pid := k.child(scope).start("sleep", -1)

	c, err := FindFor(pid, id)
	must.NoError(t, err)
	must.StrHasSuffix(t, "/"+scope, c.cpu.dir)
	must.NoError(t, c.SetShares(500))
	must.NoError(t, c.SetQuota(1))
	l, err := c.Read()
	must.NoError(t, err)
	must.True(t, c.InForce(Limits{500, 1}, l))

	_, err = FindFor(pid, id+"2")
	must.ErrorIs(t, err, ErrNotExclusive)
}

// Version 2 without the cpu controller in the parent's subtree_control.
func TestKernel_controllerNotEnabled(t *testing.T) {
	k := newKernel(t)
	if k.version == 1 {
		t.Skip("skipped: cgroup v1 has no such switch")
	}
	g := k.child("task")
	must.NoError(t, os.WriteFile(filepath.Join(k.dirs[0], "cgroup.subtree_control"), []byte("-cpu"), 0))
	c, err := FindFor(g.start("busy", -1), "")
	must.NoError(t, err)
	err = c.SetShares(500)
	must.ErrorIs(t, err, ErrNoController)
	must.ErrorContains(t, err, filepath.Join(k.dirs[0], "cgroup.subtree_control"))
	must.ErrorIs(t, c.SetQuota(1), ErrNoController)
	during(t, 0.1, c) // CPU time is counted nevertheless
}

// Cgroups outside the plugin's namespace are refused, never mistaken for others.
func TestKernel_namespace(t *testing.T) {
	k := newKernel(t)
	outside, inside := k.child("outside"), k.child("inside")
	pid := outside.start("sleep", -1)

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"=find",
		dirsEnv+"="+strings.Join(inside.dirs, ":"),
		fmt.Sprintf("EBBTIDE_LIMITS_PIDS=%d %d", os.Getpid(), pid))
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	t.Logf("from a namespace:\n%s", out)
	for line := range strings.Lines(string(out)) {
		must.True(t, strings.HasPrefix(line, "refused: ") || strings.HasPrefix(line, "right: "), must.Sprint(line))
	}
	must.Eq(t, 2, strings.Count(string(out), "\n"))
}

// findOutside is the helper of TestKernel_namespace: it joins the groups, unshares the
// cgroup namespace and looks for processes outside.
func findOutside() {
	if err := errors.Join(enter(), unix.Unshare(unix.CLONE_NEWCGROUP)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for field := range strings.FieldsSeq(os.Getenv("EBBTIDE_LIMITS_PIDS")) {
		pid, _ := strconv.Atoi(field)
		c, err := FindFor(pid, "")
		switch {
		case errors.Is(err, ErrNotExclusive):
			fmt.Println("refused:", err)
		case err != nil:
			fmt.Println("error:", err)
		default:
			// The cgroup found must contain the process.
			procs, _ := os.ReadFile(filepath.Join(c.cpu.dir, "cgroup.procs"))
			if slices.Contains(strings.Fields(string(procs)), field) {
				fmt.Println("right:", c.cpu.dir)
			} else {
				fmt.Println("wrong:", c.cpu.dir)
			}
		}
	}
}
