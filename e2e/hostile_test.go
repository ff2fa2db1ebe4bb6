// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/policy"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// TestHostile runs attacking tasks next to others whose limits, statuses and timing must stay as
// measured before the attack, also after a kill of the plugin.
func TestHostile(t *testing.T) {
	for _, engine := range []string{"exec", "docker"} {
		t.Run(engine, func(t *testing.T) {
			testHostile(t, newCluster(t, newHarness(t), engine, clusterOptions{settings: map[string]string{"policy": `"flowcon"`}}))
		})
	}
}

func testHostile(t *testing.T, c *cluster) {
	n := &neighbours{c: c, tasks: map[string]*neighbour{}}
	n.start(t, "flat", flat("train"))
	c.waitStatus(t, n.tasks["flat"].alloc, "train", "converged", settled("train", "CL"))
	n.start(t, "growing", growing("train"))
	n.start(t, "quiet", shell("exec sleep 1000"))

	w := watchCanaries(t, c.h, n)
	attackers := w.attackers(t, c)
	alloc := c.start(t, attackers)
	for _, k := range attackers.tasks {
		n.hostile = append(n.hostile, c.pid(t, alloc, k.name))
	}
	n.total = 400 + 400 + 100 + 100*uint64(len(attackers.tasks))
	c.waitStatus(t, n.tasks["growing"].alloc, "train", "growing", func(s status.Status) bool { return s.Category == "NL" && s.Growth > 0 })
	c.waitStatus(t, n.tasks["flat"].alloc, "train", "limited", func(s status.Status) bool { return s.Limit.InForce.Shares < 300 })
	before := n.watch(t, "before")

	shared := filepath.Join(c.agent.AllocDir(alloc.ID), "alloc")
	must.NoError(t, os.Link(filepath.Join(w.dir, "linked"), filepath.Join(shared, "linked")))
	must.NoError(t, os.WriteFile(filepath.Join(shared, "go"), nil, 0o644))
	w.refused(t, c)
	much := int64(50 << 20)
	if c.engine == "docker" {
		much = 10 << 20 // reading its log takes long
	}
	eventually(t, "much output is written", func() error {
		logs, err := filepath.Glob(filepath.Join(shared, "logs", "flood.stdout.*"))
		var sum int64
		for _, path := range logs {
			if st, err := os.Lstat(path); err == nil {
				sum += st.Size()
			}
		}
		if sum < much {
			return fmt.Errorf("%d bytes, %v", sum, err)
		}
		return nil
	})
	n.unaffected(t, before, n.watch(t, "attacked"))
	n.conserved(t)
	st, err := os.Lstat(filepath.Join(shared, "logs", "forge.stdout.0"))
	must.NoError(t, err)
	must.True(t, st.Mode().IsRegular(), must.Sprint("tasks cannot replace logs"))
	c.waitEvent(t, alloc, "swap", "cannot read its progress from the file")
	if len(attackers.tasks) > 4 {
		c.waitEvent(t, alloc, "redirect", "cannot read its progress from the endpoint", "302")
	}

	pids := c.agent.PluginPIDs("ebbtide-driver")
	must.Len(t, 1, pids)
	must.NoError(t, unix.Kill(pids[0], unix.SIGKILL))
	reports := n.reports(t)
	for name, before := range reports {
		eventually(t, "the status of "+name+" moves on", func() error {
			if now := n.reports(t)[name]; now <= before {
				return fmt.Errorf("%d reports, before: %d", now, before)
			}
			return nil
		})
	}
	n.unaffected(t, before, n.watch(t, "after a restart"))
	n.conserved(t)
	service := shell("while :; do echo response_s=0.1; sleep 1; done")
	service.meta = map[string]string{"ebbtide_qoe_target": "0.1"}
	service.config = "progress {\n metric = \"response_s\"\n}"
	n.start(t, "service", service)
	testSnapshot(t, c, len(n.tasks)+len(attackers.tasks))

	w.untouched(t)
	log, err := c.agent.Log()
	must.NoError(t, err)
	must.StrNotContains(t, log, "panic:")
	for _, path := range []string{"/v1/agent/self", "/v1/metrics"} {
		must.StrNotContains(t, log, "http: request complete: method=GET path="+path)
	}
	c.stop(t, "hostile")
	for name := range n.tasks {
		c.stop(t, name)
	}
	testNothingLeft(t, c)
}

// neighbours are well-behaved tasks: one grows, one has converged, one reports no progress.
type neighbour struct {
	alloc *api.Allocation
	pid   int
}

type neighbours struct {
	c       *cluster
	tasks   map[string]*neighbour
	hostile []int
	total   uint64 // base shares of all tasks
}

func (n *neighbours) start(t *testing.T, id string, k task) {
	t.Helper()
	alloc := n.c.start(t, job{id: id, tasks: []task{k}})
	n.tasks[id] = &neighbour{alloc, n.c.pid(t, alloc, "train")}
}

func (n *neighbours) status(t *testing.T, id string) status.Status {
	t.Helper()
	st, err := status.ReadStatus(filepath.Join(n.c.agent.AllocDir(n.tasks[id].alloc.ID), private.DirName, private.StatusName("train")))
	must.NoError(t, err)
	must.Eq(t, n.tasks[id].alloc.ID, st.Alloc)
	return st
}

func (n *neighbours) reports(t *testing.T) map[string]int64 {
	t.Helper()
	return map[string]int64{"growing": n.status(t, "growing").Reports, "flat": n.status(t, "flat").Reports}
}

var lastStep = regexp.MustCompile(`step=(\d+) loss=\S+\n[^\n]*$`)

// printed returns the last step that a neighbour has printed.
func (n *neighbours) printed(t *testing.T, id string) float64 {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(n.c.agent.AllocDir(n.tasks[id].alloc.ID), "alloc", "logs", "train.stdout.0"))
	must.NoError(t, err)
	m := lastStep.FindSubmatch(data)
	must.SliceNotEmpty(t, m)
	step, err := strconv.ParseFloat(string(m[1]), 64)
	must.NoError(t, err)
	return step
}

// observation summarises the neighbours over some time.
type observation struct {
	shares, cores float64       // of the growing task, relative to the flat one
	age           time.Duration // of the oldest status
	lag           time.Duration // maximum lag of a status behind the output
	rss           uint64        // of the plugin, in bytes
}

// watch observes the neighbours until growing and flat have used some CPU.
func (n *neighbours) watch(t *testing.T, when string) observation {
	t.Helper()
	const cpuSeconds = 10 // of shorter runs the kernel's balancing between cores is a large part
	pid := map[string]int{}
	first := map[string]harness.Kernel{}
	steps, begun := map[string]float64{}, time.Now()
	for id, k := range n.tasks {
		pid[id], first[id] = k.pid, kernel(t, k.pid)
	}
	for id := range n.reports(t) {
		steps[id] = n.printed(t, id)
	}
	behind := map[string]float64{}
	var s observation
	var samples, ratios float64
	eventually(t, "the neighbours have used some CPU", func() error {
		now := map[string]harness.Kernel{}
		for id := range n.tasks {
			now[id] = kernel(t, pid[id])
			must.Eq(t, 0, now[id].QuotaCores)
		}
		must.Eq(t, 100, now["quiet"].Shares, must.Sprintf("shares of the quiet neighbour, %s", when))
		for _, pid := range n.hostile {
			if k, err := harness.ReadKernel(pid); err == nil { // a task may be between two processes
				must.LessEq(t, n.total, k.Shares, must.Sprintf("shares of a hostile task, %s", when))
			}
		}
		for id := range steps {
			st := n.status(t, id)
			must.Eq(t, st.Step, status.Number(st.Reports), must.Sprintf("reports of %s, each once", id))
			must.Eq(t, map[string]string{"growing": "NL", "flat": "CL"}[id], st.Category)
			s.age = max(s.age, time.Since(st.Updated))
			behind[id] = max(behind[id], n.printed(t, id)-float64(st.Step))
		}
		ratios += float64(now["growing"].Shares) / float64(now["flat"].Shares)
		samples++
		if used := now["growing"].CPU + now["flat"].CPU - first["growing"].CPU - first["flat"].CPU; used < cpuSeconds*time.Second {
			return fmt.Errorf("they have used %v", used)
		}
		s.cores = now["growing"].Cores(first["growing"]) / now["flat"].Cores(first["flat"])
		return nil
	})
	s.shares = ratios / samples
	for id, b := range behind {
		// Converted to time at the current printing rate.
		s.lag = max(s.lag, time.Duration(b/(n.printed(t, id)-steps[id])*float64(time.Since(begun))))
	}
	for _, pid := range n.c.agent.PluginPIDs("ebbtide-driver") {
		s.rss = max(s.rss, residentMost(t, pid))
	}
	t.Logf("%s: growing has %.2f times the shares and %.2f times the CPU of flat; statuses up to %v old and %v behind; the plugin had at most %d MiB",
		when, s.shares, s.cores, s.age.Round(10*time.Millisecond), s.lag.Round(10*time.Millisecond), s.rss>>20)
	return s
}

// unaffected compares two observations.
func (n *neighbours) unaffected(t *testing.T, before, now observation) {
	t.Helper()
	const few = 3 * 2 * time.Second
	must.Between(t, before.shares/1.5, now.shares, before.shares*1.5)
	// The kernel follows the shares on two cores within a factor of three.
	must.Between(t, now.shares/3, now.cores, now.shares*3)
	must.LessEq(t, before.age+few, now.age)
	must.LessEq(t, before.lag+few, now.lag)
	must.LessEq(t, before.rss+64<<20, now.rss)
}

// conserved checks that all tasks' shares sum to Nomad's.
func (n *neighbours) conserved(t *testing.T) {
	t.Helper()
	eventually(t, "the sum of the shares is what Nomad gave", func() error {
		var sum uint64
		pids := append([]int{}, n.hostile...)
		for _, k := range n.tasks {
			pids = append(pids, k.pid)
		}
		for _, pid := range pids {
			k, err := harness.ReadKernel(pid)
			if err != nil {
				return err
			}
			sum += k.Shares
		}
		if sum+10 < n.total || sum > n.total+10 {
			return fmt.Errorf("it is %d of %d", sum, n.total)
		}
		return nil
	})
}

// residentMost returns a process's peak memory, in bytes.
func residentMost(t *testing.T, pid int) uint64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must.NoError(t, err)
	_, rest, _ := strings.Cut(string(data), "VmHWM:")
	kib, err := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
	must.NoError(t, err)
	return kib << 10
}

// canaries are files and a listener that must not be accessed; fanotify reports opens.
type canaries struct {
	dir    string   // outside of all allocations
	links  []string // as a task would write them
	listen net.Listener
	asked  atomic.Int32 // number of connections

	mu     sync.Mutex
	opened []string // processes and the files they opened
}

const canary = "step=1 loss=0.001\n" // parsable content

func watchCanaries(t *testing.T, h *harness.Harness, n *neighbours) *canaries {
	t.Helper()
	w := &canaries{dir: filepath.Join(h.Dir, "canaries")}
	must.NoError(t, os.Mkdir(w.dir, 0o777))
	for _, name := range []string{"shadow", "linked"} {
		must.NoError(t, os.WriteFile(filepath.Join(w.dir, name), []byte(canary), 0o666))
	}
	quiet := n.tasks["quiet"].alloc.ID
	theirs := filepath.Join(n.c.agent.AllocDir(quiet), "alloc", "data", "canary")
	must.NoError(t, os.WriteFile(theirs, []byte(canary), 0o666))
	w.links = []string{filepath.Join(w.dir, "shadow"), w.dir, theirs, "../../../../" + quiet + "/alloc/data/canary", "../../../../" + quiet + "/alloc/data"}

	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_LARGEFILE)
	must.NoError(t, err)
	for path, mask := range map[string]uint64{w.dir: unix.FAN_OPEN | unix.FAN_ONDIR | unix.FAN_EVENT_ON_CHILD, theirs: unix.FAN_OPEN} {
		must.NoError(t, unix.FanotifyMark(fd, unix.FAN_MARK_ADD, mask, -1, path))
	}
	events := os.NewFile(uintptr(fd), "fanotify")
	t.Cleanup(func() { events.Close() })
	go w.read(events)

	w.listen, err = net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	t.Cleanup(func() { w.listen.Close() })
	go func() {
		for {
			conn, err := w.listen.Accept()
			if err != nil {
				return
			}
			w.asked.Add(1)
			conn.Close()
		}
	}()
	return w
}

// read reads fanotify's events until the file is closed.
func (w *canaries) read(events *os.File) {
	buf := make([]byte, 64<<10)
	for {
		size, err := events.Read(buf)
		if err != nil {
			return
		}
		var e unix.FanotifyEventMetadata
		for b := buf[:size]; binary.Read(bytes.NewReader(b), binary.NativeEndian, &e) == nil; b = b[e.Event_len:] {
			path, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", e.Fd))
			unix.Close(int(e.Fd))
			exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", e.Pid))
			w.mu.Lock()
			w.opened = append(w.opened, fmt.Sprintf("%s by %d (%s)", path, e.Pid, exe))
			w.mu.Unlock()
		}
	}
}

// untouched checks that no canary was opened, changed or connected to.
func (w *canaries) untouched(t *testing.T) {
	t.Helper()
	opened := func() []string {
		w.mu.Lock()
		defer w.mu.Unlock()
		return append([]string{}, w.opened...)
	}
	must.SliceEmpty(t, opened(), must.Sprint(strings.Join(opened(), "\n")))
	must.Eq(t, 0, w.asked.Load())
	entries, err := os.ReadDir(w.dir)
	must.NoError(t, err)
	must.Len(t, 2, entries)
	for _, path := range []string{"shadow", "linked"} {
		data, err := os.ReadFile(filepath.Join(w.dir, path))
		must.NoError(t, err)
		must.Eq(t, canary, string(data))
	}
	data, err := os.ReadFile(w.links[2])
	must.NoError(t, err)
	must.Eq(t, canary, string(data))
	eventually(t, "our own looks are seen", func() error { // fanotify reports the test's own reads
		if all := strings.Join(opened(), "\n"); !strings.Contains(all, "/shadow") || !strings.Contains(all, w.links[2]) {
			return errors.New(all)
		}
		return nil
	})
}

// forge replaces every file that the plugin reads or writes.
const forge = `
data=$NOMAD_ALLOC_DIR/data; d=$data/ebbtide; logs=$NOMAD_ALLOC_DIR/logs; i=0
yes 0001-01-01T00:00:00Z | head -c 9000000 >/tmp/rows; yes '' | head -c 9000000 >/tmp/lines
forged='{"schema": 1, "category": "NL", "growth": 1e300, "reports": 1, "limit": {"shares": 262144, "in_force": {"shares": 262144}},
 "base": {"shares": 262144}, "conversion": {"base": 262144}, "resume": {"base": {"shares": 262144}, "conversion": {"base": 262144}}}'
put() { # something at a path
  i=$((i + 1)); rm -rf "$1"
  case $((i % 8)) in
  0) echo "$forged" >"$1" ;;
  1) ln /tmp/rows "$1" ;;
  2) ln /tmp/lines "$1" ;;
  3) mkdir "$1"; touch "$1/x" ;;
  4) mkfifo "$1" ;;
  5) ln "$NOMAD_ALLOC_DIR/linked" "$1" ;;
  6) mknod "$1" c 1 5 ;;
  7) set -- "$1" $LINKS; shift $((i / 8 % ($# - 1))); ln -s "$2" "$p" ;;
  esac
}
mv $d $d.away; mkdir $d # with the engine exec it is root's, and the task is not root
while :; do
  for task in forge flood slow swap redirect; do
    for name in $task.json .$task.json.tmp $task.csv .$task.csv.tmp $task.png .$task.png.tmp $task.objective $task.state $task.record; do
      p=$d/$name; put "$p"
    done
  done
  p=$logs/forge.stdout.0; put "$p"
  p=$d; put "$p"; usleep 300000; rm -rf "$d"; mkdir "$d"
done 2>/dev/null`

// flood prints extreme numbers, endless lines and terminal escapes.
const flood = `exec awk 'BEGIN {
  long = "x"; while (length(long) < 1048576) long = long long
  for (n = 1; ; n++) {
    print "loss=nan"; print "step=1e308 loss=1e308"; print "step=-1e308 loss=-1e308"; print "loss=inf"
    printf "step=%d loss=%d total=0\033[2J\r\a\033]0;x\007 loss=5e-324\n", n, n
    print long; print "loss=" long
    for (i = 0; i < 1000; i++) print "epoch 1/0 step=-1 loss=1e-320 acc=" i " {\"loss\": 1e999}"
    if (n > 30) system("usleep 200000")
  }
}'`

// swap keeps replacing the progress sources.
const swap = `m=$NOMAD_ALLOC_DIR/data/m.jsonl
while :; do
  for target in $LINKS; do
    rm -rf $m; ln -s $target $m
    rm -rf $m; mkfifo $m
    rm -rf $m; echo '{"step": 1, "loss": 0.5}' >$m
    rm -rf $m; mkdir $m
  done
done`

// attackers are idle until the test starts the attack.
func (w *canaries) attackers(t *testing.T, c *cluster) job {
	t.Helper()
	told := "until [ -e $NOMAD_ALLOC_DIR/go ]; do usleep 100000; done\n"
	one := func(name, script, config string) task {
		k := shell(script)
		k.name, k.config, k.body, k.env = name, config, "kill_timeout = \"1s\"", map[string]string{"LINKS": strings.Join(w.links, " "), "AGENT": c.agent.Addr, "LISTENER": w.listen.Addr().String()}
		return k
	}
	j := job{id: "hostile", tasks: []task{
		one("forge", told+forge, ""),
		one("flood", told+flood, ""),
		// Valid, but slow to match.
		one("slow", told+`long=$(head -c 60000 /dev/zero | tr '\0' x); while :; do echo $long; usleep 1000; done`,
			`progress {
  pattern = "(.*x){30}.*(x.*){30}y(?P<value>[0-9]+)"
}`),
		one("swap", told+swap, "progress {\n file = \"/alloc/data/m.jsonl\"\n}"),
	}}
	if c.engine == "exec" || c.docker.Bridge != "" {
		group, config, listen := c.endpoint(t)
		j.group = group
		j.tasks = append(j.tasks, one("redirect", `mkdir -p /local/www/cgi-bin; cat >/local/www/cgi-bin/metrics <<END
#!/bin/sh
case \$((\$\$ % 2)) in 0) to=$AGENT/v1/agent/self ;; *) to=http://$LISTENER/ ;; esac
printf 'Status: 302 Found\r\nLocation: %s\r\n\r\n' \$to
END
chmod +x /local/www/cgi-bin/metrics; exec busybox httpd -f -h /local/www -p `+listen, config+`progress {
  prometheus = "http://${NOMAD_ADDR_metrics}/cgi-bin/metrics"
  metric     = "train_loss"
}`))
	}
	return j
}

// refused checks that another task's endpoint is rejected before the start.
func (w *canaries) refused(t *testing.T, c *cluster) {
	t.Helper()
	urls := map[string]string{
		"agent":     c.agent.Addr + "/v1/metrics",
		"neighbour": "http://" + w.listen.Addr().String() + "/metrics",
		"zone":      "http://[fe80::1%25lo]:9100/metrics",
	}
	for id, url := range urls {
		k := shell("sleep 1000")
		k.config = fmt.Sprintf("progress {\n prometheus = %q\n metric = \"x\"\n}", hclEscape(url))
		if c.engine == "docker" {
			k.config += "\nnetwork_mode = \"host\""
		}
		c.register(t, job{id: "endpoint-" + id, tasks: []task{k}})
	}
	for id := range urls {
		got, err := c.agent.WaitTerminal(deadline(t, startDeadline), "endpoint-"+id)
		must.NoError(t, err)
		must.Eq(t, api.AllocClientStatusFailed, got.ClientStatus)
		events := strings.Join(harness.Events(got, "train"), "\n")
		must.StrContains(t, events, "progress.prometheus: ")
		must.StrContains(t, events, `, got "`)
		must.StrNotContains(t, events, api.TaskStarted)
	}
}

// testSnapshot runs every policy on the node's snapshot.
func testSnapshot(t *testing.T, c *cluster, tasks int) {
	t.Helper()
	cli, err := c.h.Tools.CLI(deadline(t, startDeadline))
	must.NoError(t, err)
	node, err := c.agent.Node(t.Context())
	must.NoError(t, err)
	run := func(stdin []byte, args ...string) []byte {
		var errOut bytes.Buffer
		cmd := exec.CommandContext(deadline(t, stepDeadline), cli, args...)
		cmd.Stdin, cmd.Stderr = bytes.NewReader(stdin), &errOut
		out, err := cmd.Output()
		must.NoError(t, err, must.Sprint(errOut.String()))
		must.Eq(t, "", errOut.String())
		return out
	}
	var s policy.Snapshot
	var data []byte
	eventually(t, "all tasks are in the snapshot", func() error {
		data = run(nil, "snapshot", "-address", c.agent.Addr, "-node", node.Name)
		must.NoError(t, json.Unmarshal(data, &s))
		if len(s.Tasks) != tasks {
			return fmt.Errorf("%d of %d", len(s.Tasks), tasks)
		}
		return nil
	})
	kinds := map[policy.Kind]int{}
	for _, k := range s.Tasks {
		kinds[k.Kind]++
	}
	must.Eq(t, map[policy.Kind]int{policy.Service: 1, policy.Training: tasks - 1}, kinds)
	for _, p := range policies.Names() {
		var decided policy.Outcome
		must.NoError(t, json.Unmarshal(run(data, "decide", "--policy", p), &decided))
		must.Len(t, tasks, decided.Tasks, must.Sprint(p))
		for i, d := range decided.Tasks {
			must.Eq(t, s.Tasks[i].ID, d.ID)
			must.NotEq(t, "", d.Rule)
			must.Between(t, 1e-3, d.Bound(), 1)
		}
	}
}

// TestEntitlement: a task without progress keeps its entitlement next to many small ones with
// changing limits.
func TestEntitlement(t *testing.T) {
	c := newCluster(t, newHarness(t), "exec", clusterOptions{
		settings: map[string]string{"policy": `"flowcon"`}, agent: harness.AgentConfig{ClientHCL: "cpu_total_compute = 10000"},
	})
	small := map[string]int{}
	for id, k := range map[string]task{"flat-0": flat("train"), "flat-1": flat("train"), "growing": growing("train")} {
		k.cpu = 500
		small[id] = c.pid(t, c.start(t, job{id: id, tasks: []task{k}}), "train")
	}
	pids := []int{}
	base := map[string]uint64{}
	eventually(t, "those that have converged give way", func() error {
		pids = pids[:0]
		for id, pid := range small {
			base[id] = kernel(t, pid).Shares
			pids = append(pids, pid)
		}
		if base["flat-0"] >= 500 || base["flat-1"] >= 500 {
			return fmt.Errorf("%v", base)
		}
		return nil
	})
	big := shell("yes >/dev/null & yes >/dev/null & yes >/dev/null & exec yes >/dev/null")
	big.cpu = 8000
	alloc := c.start(t, job{id: "big", tasks: []task{big}})
	pid := c.pid(t, alloc, "train")
	c.waitStatus(t, alloc, "train", "one of four", func(s status.Status) bool { return s.Node.Tasks == 4 && s.Rule != "" })
	cores := use(t, 10, append(pids, pid)...)
	must.Eq(t, 8000, kernel(t, pid).Shares)
	var theirs uint64
	var rest float64
	for i, pid := range pids {
		theirs += kernel(t, pid).Shares
		rest += cores[i]
	}
	must.Between(t, 1495, theirs, 1505)
	least := min(kernel(t, small["flat-0"]).Shares, kernel(t, small["flat-1"]).Shares)
	must.Less(t, 500, least)
	ratio := cores[len(pids)] / rest
	t.Logf("the one with 8000 MHz has %.2f cores, three with 500 have %.2f: %.1f times", cores[len(pids)], rest, ratio)
	must.GreaterEq(t, 1.5, ratio) // 5.3 on an idle machine, 0.3 with equal shares
}
