// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package source

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/progress/prometheus"
	"github.com/ebbtide/ebbtide/driver/progress/tensorboard/event"
)

func dirs(t *testing.T) Task {
	root := t.TempDir()
	k := Task{Name: "train", LogDir: filepath.Join(root, "alloc/logs"), LocalDir: filepath.Join(root, "train/local"), AllocDir: filepath.Join(root, "alloc")}
	for _, dir := range []string{k.LogDir, k.LocalDir} {
		must.NoError(t, os.MkdirAll(dir, 0o755))
	}
	return k
}

func poll(t *testing.T, s progress.Source) []progress.Report {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for time.Now().Before(deadline) {
		reports, err := s.Poll(t.Context())
		must.NoError(t, err)
		if len(reports) > 0 {
			return reports
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no report; %s", s.Note())
	return nil
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// Every source opens by the task's paths and continues at an earlier process's
// position.
func TestOpen(t *testing.T) {
	k := dirs(t)
	write(t, filepath.Join(k.LogDir, "train.stdout.0"), "step=7 loss=500\n")
	write(t, filepath.Join(k.LocalDir, "m.jsonl"), "{\"step\": 7, \"val\": {\"loss\": 500}}\n")
	write(t, filepath.Join(k.AllocDir, "data/m.txt"), "step,loss\n7,500\n")
	record := event.AppendRecord(nil, event.EncodeSimple(event.Scalar{Tag: "train/loss", Step: 7, Wall: 1, Value: 500}))
	write(t, filepath.Join(k.AllocDir, "runs/a/events.out.tfevents.1"), string(record))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "train_loss{part=\"a\"} 1\ntrain_loss{part=\"b\"} 500\nsteps 7\n")
	}))
	defer server.Close()
	address := server.Listener.Addr().(*net.TCPAddr)

	for name, cfg := range map[string]progress.Config{
		"output":      {},
		"jsonl":       {File: "/local/m.jsonl", Metric: "val.loss"},
		"csv":         {File: "alloc/data/m.txt", Format: "csv"},
		"tensorboard": {TensorBoard: "/alloc/runs", Metric: "train/loss"},
		"prometheus":  {Prometheus: server.URL, Metric: "train_loss", Labels: map[string]string{"part": "b"}, Step: "steps"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg.Scale = 0.001
			k.Reach = &prometheus.Reach{Ports: []prometheus.Port{{Host: address.AddrPort(), Inside: address.AddrPort().Port()}}}
			must.NoError(t, Check(cfg, k.Reach))
			s, err := Open(cfg, k)
			must.NoError(t, err)
			r := poll(t, s)[0]
			must.InDelta(t, 0.5, r.Value, 1e-6)
			must.Eq(t, 7, r.Step)
			must.Eq(t, progress.GoalMin, s.Goal())
			offset := s.Offset()
			must.NoError(t, s.Close())
			if name == "prometheus" {
				return // an endpoint has no past
			}
			s, err = Open(cfg, k)
			must.NoError(t, err)
			s.SetOffset([]byte("nonsense"))
			s.SetOffset(offset)
			reports, err := s.Poll(t.Context())
			must.NoError(t, err)
			must.Len(t, 0, reports, must.Sprint("what was read before is not read again"))
			must.NoError(t, s.Close())
		})
	}
}

// A named step suffices.
func TestStepAlone(t *testing.T) {
	k := dirs(t)
	write(t, filepath.Join(k.LocalDir, "m.jsonl"), "{\"seen\": 7, \"all\": 10}\n")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "seen 7\nall 10\n")
	}))
	defer server.Close()
	address := server.Listener.Addr().(*net.TCPAddr)
	k.Reach = &prometheus.Reach{Ports: []prometheus.Port{{Host: address.AddrPort(), Inside: address.AddrPort().Port()}}}
	for _, cfg := range []progress.Config{{File: "/local/m.jsonl"}, {Prometheus: server.URL}} {
		cfg.Step, cfg.Total = "seen", "all"
		must.NoError(t, cfg.Validate())
		s, err := Open(cfg, k)
		must.NoError(t, err)
		r := poll(t, s)[0]
		must.True(t, r.StepOnly())
		must.Eq(t, []float64{7, 10}, []float64{r.Step, r.Total})
		must.Eq(t, "", s.Goal())
		must.NoError(t, s.Close())
	}
}

func TestOpenErrors(t *testing.T) {
	k := dirs(t)
	k.LocalDir = filepath.Join(k.LocalDir, "gone")
	_, err := Open(progress.Config{File: "/local/m.csv"}, k)
	must.ErrorContains(t, err, "opening the file /local/m.csv")
	_, err = Open(progress.Config{Pattern: "("}, k)
	must.ErrorContains(t, err, "opening the task's output")
	err = Check(progress.Config{Prometheus: "http://user:secret@192.0.2.7/m?token=secret", Metric: "m"}, &prometheus.Reach{})
	must.ErrorContains(t, err, "progress.prometheus")
	must.ErrorContains(t, err, "192.0.2.7")
	must.StrNotContains(t, err.Error(), "secret")
}

func TestWhere(t *testing.T) {
	must.Eq(t, "", Where(progress.Config{}))
	must.Eq(t, "the file /local/a.csv", Where(progress.Config{File: "/local/a.csv"}))
	must.Eq(t, "TensorBoard's files in /alloc/runs", Where(progress.Config{TensorBoard: "/alloc/runs"}))
	must.Eq(t, "the endpoint http://127.0.0.1:80/metrics", Where(progress.Config{Prometheus: "http://me:secret@127.0.0.1:80/metrics?token=x"}))
}
