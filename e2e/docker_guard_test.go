// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/moby/sys/mountinfo"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// TestGuard: attacks that succeed under the docker driver of Nomad 1.11.3, with its defaults, fail
// under Ebbtide's, which contains that driver. Jobs that Nomad 2.0.5 accepts run.
func TestGuard(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	d := dockerWithImages(t, h)
	config := func(dangling, more string) string {
		return strings.Replace(d.PluginConfig(dangling, more), "volumes { enabled = true }", "", 1)
	}
	c := newCluster(t, h, "docker", clusterOptions{daemon: d, agent: harness.AgentConfig{
		PluginName: "ebbtide-driver",
		Plugin:     "interval = \"2s\"\ndocker {\n" + config("", "allowed_modes {\n uts = [\"host\"]\n}") + "\n}\n",
		HCL:        "plugin \"docker\" {\n config {\n" + config("enabled = false", "") + "\n}\n}\n",
	}})
	stock := *c
	stock.driver = "docker"
	node, err := c.agent.Node(t.Context())
	must.NoError(t, err)
	vulnerable := strings.HasPrefix(node.Attributes["nomad.version"], "1.11.3")

	host := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(host, "secret"), []byte("of the host"), 0o644))
	link := shell("ln -s " + host + " $NOMAD_ALLOC_DIR/data/out")
	replace := shell("ln -s " + host + " /x/local")
	replace.config = `volumes = ["../train:/x"]`
	for _, k := range []*task{&link, &replace} {
		k.name, k.body = "before", "lifecycle {\n hook = \"prestart\"\n}"
	}
	read := func(config string) task {
		k := shell(`[ "$(cat /x/secret)" = "of the host" ]`)
		k.config = config
		return k
	}
	type attack struct {
		tasks []task
		want  []string // of the event of task train
	}
	attacks := map[string]attack{
		"link-volumes": {[]task{link, read(`volumes = ["../alloc/data/out:/x"]`)}, []string{"volumes:", "../alloc/data/out", "volumes { enabled = true }"}},
		"link-mount": {[]task{link, read("mount {\n type = \"bind\"\n source = \"../alloc/data/out\"\n target = \"/x\"\n}")},
			[]string{"mount.source:", "../alloc/data/out", "volumes { enabled = true }"}},
		"replace": {[]task{replace, shell(`[ "$(cat $NOMAD_TASK_DIR/secret)" = "of the host" ]`)}, []string{"a task has replaced the directory"}},
	}
	for _, ns := range []string{"pid", "ipc"} {
		is, err := os.Readlink("/proc/self/ns/" + ns)
		must.NoError(t, err)
		k := shell(fmt.Sprintf(`[ "$(readlink /proc/self/ns/%s)" = "%s" ]`, ns, is))
		k.config = ns + `_mode = "host"`
		attacks[ns] = attack{[]task{k}, []string{ns + "_mode:", "allowed_modes { " + ns, "allow_privileged", `"host"`}}
	}
	for name, a := range attacks {
		t.Run(name, func(t *testing.T) {
			alloc := c.finish(t, job{id: "guarded-" + name, tasks: a.tasks})
			events := strings.Join(harness.Events(alloc, "train"), "\n")
			must.Eq(t, api.AllocClientStatusFailed, alloc.ClientStatus, must.Sprint(events))
			for _, want := range a.want {
				must.StrContains(t, events, want)
			}
			must.StrNotContains(t, events, api.TaskStarted)
			if vulnerable {
				alloc := stock.finish(t, job{id: "stock-" + name, tasks: a.tasks})
				must.Eq(t, api.AllocClientStatusComplete, alloc.ClientStatus, must.Sprint(harness.Events(alloc, "train")))
			}
		})
	}

	link = shell("mkdir -p /alloc/data/in && ln -s in /alloc/data/out && echo inside >/alloc/data/in/file")
	link.name, link.body = "before", "lifecycle {\n hook = \"prestart\"\n}"
	k := shell(`set -e
[ "$(cat /x/file)" = inside ]
[ "$(cat /file)" = inside ]
echo new >/new/file
[ "$(cat $NOMAD_TASK_DIR/new/file)" = new ]
echo printed
` + logsReadOnly)
	k.config = `uts_mode = "host"
volumes = ["../alloc/data/out:/x", "local/new:/new"]
mount {
  type = "bind"
  source = "../alloc/data/in/file"
  target = "/file"
}`
	testLogs(t, c, job{id: "fine", tasks: []task{link, k}})
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(h.Dir))
	must.NoError(t, err)
	for _, m := range mounts {
		must.StrNotContains(t, m.Mountpoint, "/"+private.DirName+"/")
	}
}

// logsReadOnly succeeds in a task that can write to the allocation's directories except the logs',
// once its output is there: Nomad's docker driver may lose the last lines (hashicorp/nomad#6931).
const logsReadOnly = `
until grep -q printed $NOMAD_ALLOC_DIR/logs/$NOMAD_TASK_NAME.stdout.0; do sleep 0.1; done
echo kept >$NOMAD_ALLOC_DIR/data/kept
if ( echo forged >$NOMAD_ALLOC_DIR/logs/forged ) 2>/dev/null; then exit 1; fi
if mv $NOMAD_ALLOC_DIR/logs $NOMAD_ALLOC_DIR/was 2>/dev/null; then exit 1; fi`

// TestGuardExec: exec's tasks cannot write to the logs either.
func TestGuardExec(t *testing.T) {
	t.Parallel()
	testLogs(t, newCluster(t, newHarness(t), "exec", clusterOptions{}), job{id: "fine", tasks: []task{{
		command: "/bin/sh", args: []string{"-c", "set -e\necho printed\n" + logsReadOnly},
	}}})
}

func testLogs(t *testing.T, c *cluster, j job) {
	t.Helper()
	alloc := c.finish(t, j)
	must.Eq(t, api.AllocClientStatusComplete, alloc.ClientStatus, must.Sprint(harness.Events(alloc, "train")))
	out, err := os.ReadFile(filepath.Join(c.agent.AllocDir(alloc.ID), "alloc", "logs", "train.stdout.0"))
	must.NoError(t, err)
	must.Eq(t, "printed\n", string(out))
}
