// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/ebbtide/ebbtide/driver/status"
	"github.com/ebbtide/ebbtide/e2e/harness"
)

// sourceTests read progress from sources other than output.
func sourceTests() map[string]func(*testing.T, *cluster) {
	tests := map[string]func(*testing.T, *cluster){
		"endpoint":          testEndpoint,
		"endpoint of pages": testEndpointHTML,
		"service":           testService,
		"file comes and goes": func(t *testing.T, c *cluster) {
			testFileChanges(t, c, "jsonl", "", func(step, loss int) string { return fmt.Sprintf(`{"step": %d, "loss": %d}`, step, loss) })
		},
		"table comes and goes": func(t *testing.T, c *cluster) {
			testFileChanges(t, c, "csv", "loss;step\n", func(step, loss int) string { return fmt.Sprintf("%d;%d", loss, step) })
		},
		"hostile file":  testFileHostile,
		"damaged event": testEventsDamaged,
	}
	for name, s := range map[string]struct{ id, progress, args, metric string }{
		"JSON lines":        {"jsonl", `file = "${NOMAD_TASK_DIR}/metrics.jsonl"`, "-progress-file /local/metrics.jsonl", "loss"},
		"CSV":               {"csv", `file = "${NOMAD_ALLOC_DIR}/data/metrics.csv"`, "-progress-file /alloc/data/metrics.csv", "loss"},
		"events":            {"events", `tensorboard = "${NOMAD_ALLOC_DIR}/data/runs"`, "-progress-file /alloc/data/runs -progress-format tensorboard", "train/loss"},
		"events of tensors": {"tensors", "tensorboard = \"${NOMAD_TASK_DIR}/runs\"\n metric = \"train/loss\"", "-progress-file /local/runs -progress-format tensorboard-tensor", "train/loss"},
	} {
		tests[name] = func(t *testing.T, c *cluster) {
			k := quietTrainer(s.args)
			k.config = "progress {\n " + s.progress + "\n}"
			alloc := c.start(t, job{id: "source-" + s.id, tasks: []task{k}})
			measured(t, c, alloc, s.metric)
		}
	}
	return tests
}

// quietTrainer prints nothing.
func quietTrainer(args string) task {
	return shell("exec trainer -model logreg -threads 1 -steps 0 -wait 20ms -every 1 -style none " + args)
}

func measured(t *testing.T, c *cluster, alloc *api.Allocation, metric string) {
	t.Helper()
	st := c.waitStatus(t, alloc, "train", "measured", func(s status.Status) bool {
		return s.Reports > 20 && s.Step > 20 && s.Growth.Known()
	})
	must.Eq(t, metric, st.Metric)
	must.Eq(t, "min", st.Goal)
	must.Between(t, 0.1, float64(st.Value), 3)
	must.Eq(t, 0, countEvents(t, c, alloc, "train", "cannot read its progress"))
}

// endpoint returns the network and listen address of a task that serves metrics at port "metrics".
func (c *cluster) endpoint(t *testing.T) (group, config, listen string) {
	t.Helper()
	if c.engine != "docker" {
		return "network {\n port \"metrics\" {}\n}\n", "", "$NOMAD_ADDR_metrics"
	}
	if c.docker.Bridge == "" {
		t.Skip("no bridge here")
	}
	return "network {\n port \"metrics\" {\n to = 9100\n }\n}\n", "ports = [\"metrics\"]\n", "0.0.0.0:9100"
}

// testEndpoint reads a gauge.
func testEndpoint(t *testing.T, c *cluster) {
	group, config, listen := c.endpoint(t)
	k := quietTrainer("-metrics " + listen)
	k.config = config + `progress {
  prometheus = "http://${NOMAD_ADDR_metrics}/metrics"
  metric     = "train_loss"
  step       = "train_step"
}`
	alloc := c.start(t, job{id: "source-endpoint", group: group, tasks: []task{k}})
	st := c.waitStatus(t, alloc, "train", "measured", func(s status.Status) bool { return s.Reports > 2 && s.Step > 20 && s.Growth.Known() })
	must.Eq(t, "train_loss", st.Metric)
	must.Between(t, 0.1, float64(st.Value), 3)
	must.Eq(t, 0, countEvents(t, c, alloc, "train", "cannot read its progress"))
}

// testService reads a response time from a histogram.
func testService(t *testing.T, c *cluster) {
	group, config, listen := c.endpoint(t)
	address := strings.Replace(listen, "0.0.0.0", "127.0.0.1", 1)
	k := shell("trainer serve -model mlp -threads 1 -work 20 -train-steps 50 -listen " + listen + " & exec trainer load -silent -target http://" + address)
	k.meta = map[string]string{"ebbtide_qoe_target": "500ms"}
	k.config = config + `progress {
  prometheus = "http://${NOMAD_ADDR_metrics}/metrics"
  metric     = "response_seconds"
  quantile   = 0.5
}`
	alloc := c.start(t, job{id: "source-service", group: group, tasks: []task{k}})
	st := c.waitStatus(t, alloc, "train", "measured", func(s status.Status) bool { return s.Class != "" && s.Target.Response > 0 })
	must.Eq(t, "service", st.Kind)
	must.Eq(t, 0.5, float64(st.Target.QoE))
	must.Eq(t, 0, countEvents(t, c, alloc, "train", "cannot read its progress"))
}

// testEndpointHTML: an endpoint that serves HTML is reported once, without secrets in the address,
// and the task keeps running.
func testEndpointHTML(t *testing.T, c *cluster) {
	group, config, listen := c.endpoint(t)
	k := shell("mkdir -p /local/www; echo '<html>sign in</html>' > /local/www/index.html; exec busybox httpd -f -h /local/www -p " + listen)
	k.config = config + `progress {
  prometheus = "http://${NOMAD_ADDR_metrics}/index.html?token=hunter2"
  metric     = "train_loss"
}`
	alloc := c.start(t, job{id: "source-pages", group: group, tasks: []task{k}})
	ev := c.waitEvent(t, alloc, "train", "cannot read its progress from the endpoint http://", "/index.html", "text/html", "keeps its fair share")
	must.StrNotContains(t, harness.EventText(ev), "hunter2")
	must.StrNotContains(t, harness.EventText(ev), "sign in")
	must.True(t, harness.Alive(c.pid(t, alloc, "train")))
	must.Eq(t, 1, countEvents(t, c, alloc, "train", "cannot read its progress"))
}

// written is a job whose progress file the test writes.
type written struct {
	c       *cluster
	alloc   *api.Allocation
	path    string
	reports int64 // number so far
}

func startWritten(t *testing.T, c *cluster, id, format string) *written {
	t.Helper()
	k := shell("exec sleep 1000")
	k.config = fmt.Sprintf("progress {\n file = \"${NOMAD_ALLOC_DIR}/data/m.%s\"\n}", format)
	alloc := c.start(t, job{id: id, tasks: []task{k}})
	c.waitStatus(t, alloc, "train", "waiting", func(s status.Status) bool {
		return s.Reports == 0 && strings.Contains(s.Why, "m."+format) && strings.Contains(s.Why, "does not exist yet")
	})
	return &written{c: c, alloc: alloc, path: filepath.Join(c.agent.AllocDir(alloc.ID), "alloc", "data", "m."+format)}
}

func (w *written) write(t *testing.T, path string, flags int, text string) {
	t.Helper()
	f, err := os.OpenFile(path, flags|os.O_WRONLY|os.O_CREATE, 0o644)
	must.NoError(t, err)
	_, err = f.WriteString(text)
	must.NoError(t, err)
	must.NoError(t, f.Close())
}

// follows waits until more further reports are read, each once.
func (w *written) follows(t *testing.T, what string, more int64, step, loss float64) {
	t.Helper()
	w.reports += more
	w.c.waitStatus(t, w.alloc, "train", what, func(s status.Status) bool {
		return s.Reports == w.reports && float64(s.Step) == step && float64(s.Value) == loss
	})
}

// testFileChanges changes a file as writers do.
func testFileChanges(t *testing.T, c *cluster, format, header string, row func(step, loss int) string) {
	w := startWritten(t, c, "source-changes-"+format, format)
	pid := c.pid(t, w.alloc, "train")
	w.write(t, w.path, 0, header+row(1, 90)+"\n"+row(2, 80)+"\n"+row(3, 70)+"\n")
	w.follows(t, "there", 3, 3, 70)
	w.write(t, w.path, os.O_APPEND, row(4, 60)+"\n"+row(5, 50)+"\n"+row(6, 45)[:3])
	w.follows(t, "longer", 2, 5, 50)
	w.write(t, w.path, os.O_APPEND, row(6, 45)[3:]+"\n")
	w.follows(t, "at the end of its line", 1, 6, 45)
	w.write(t, w.path, os.O_TRUNC, header+row(1, 40)+"\n")
	w.follows(t, "truncated", 1, 1, 40)
	w.write(t, w.path+".new", 0, header+row(7, 35)+"\n"+row(8, 30)+"\n"+row(9, 25)+"\n"+row(10, 24)+"\n")
	must.NoError(t, os.Rename(w.path+".new", w.path))
	w.follows(t, "replaced", 4, 10, 24)
	must.NoError(t, os.Remove(w.path))
	w.write(t, w.path, 0, header+row(11, 20)+"\n")
	w.follows(t, "removed and made again", 1, 11, 20)
	must.True(t, harness.Alive(pid))
	must.Eq(t, 0, countEvents(t, c, w.alloc, "train", "cannot read its progress"))
}

// testFileHostile replaces the file with a FIFO, which blocks open, and a symlink out of the task's
// directories.
func testFileHostile(t *testing.T, c *cluster) {
	for name, script := range map[string]string{
		"fifo": "mkfifo /alloc/data/m.jsonl",
		"link": "ln -s /etc/hostname /alloc/data/m.jsonl",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := shell(script + "; exec sleep 1000")
			k.config = "progress {\n file = \"/alloc/data/m.jsonl\"\n}"
			alloc := c.start(t, job{id: "source-" + name, tasks: []task{k}})
			c.waitEvent(t, alloc, "train", "cannot read its progress from the file /alloc/data/m.jsonl", "keeps its fair share")
			must.True(t, harness.Alive(c.pid(t, alloc, "train")))
		})
	}
}

// testEventsDamaged: the rest of a truncated record is awaited; a corrupt byte is reported with its
// position.
func testEventsDamaged(t *testing.T, c *cluster) {
	trainer, err := c.h.Tools.Trainer(deadline(t, startDeadline))
	must.NoError(t, err)
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), trainer, "-model", "logreg", "-threads", "1", "-steps", "40", "-every", "1",
		"-style", "none", "-progress-file", dir, "-progress-format", "tensorboard").CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	files, err := filepath.Glob(filepath.Join(dir, "*tfevents*"))
	must.NoError(t, err)
	must.Len(t, 1, files)
	data, err := os.ReadFile(files[0])
	must.NoError(t, err)

	k := shell("mkdir /alloc/data/runs; exec sleep 1000")
	k.config = "progress {\n tensorboard = \"/alloc/data/runs\"\n}"
	alloc := c.start(t, job{id: "source-damaged", tasks: []task{k}})
	pid := c.pid(t, alloc, "train")
	path := filepath.Join(c.agent.AllocDir(alloc.ID), "alloc", "data", "runs", filepath.Base(files[0]))
	eventually(t, "the directory is there", func() error { return unix.Access(filepath.Dir(path), unix.W_OK) })

	half := len(data)/2 + 3
	must.NoError(t, os.WriteFile(path, data[:half], 0o644))
	c.waitStatus(t, alloc, "train", "read as far as it goes", func(s status.Status) bool { return s.Step > 10 })
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	must.NoError(t, err)
	_, err = f.Write(data[half:])
	must.NoError(t, err)
	c.waitStatus(t, alloc, "train", "read to its end", func(s status.Status) bool { return s.Step == 40 })
	must.Eq(t, 0, countEvents(t, c, alloc, "train", "cannot read its progress"))

	// The same with a corrupt byte.
	again := append([]byte{}, data...)
	again[len(again)/2] ^= 0x40
	_, err = f.Write(again)
	must.NoError(t, err)
	must.NoError(t, f.Close())
	c.waitEvent(t, alloc, "train", "cannot read its progress from TensorBoard's files in /alloc/data/runs", filepath.Base(path), "checksum", " at byte ")
	must.True(t, harness.Alive(pid))
}
