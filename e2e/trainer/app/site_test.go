// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package app

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"github.com/shoenig/test/wait"

	"github.com/ebbtide/ebbtide/e2e/trainer/load"
	"github.com/ebbtide/ebbtide/e2e/trainer/train"
)

// output is the output of a command, for several goroutines.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// find waits for a pattern and returns its first group.
func (o *output) find(t *testing.T, pattern string) string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	var found []string
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
		found = re.FindStringSubmatch(o.String())
		return found != nil
	}), wait.Timeout(30*time.Second), wait.Gap(time.Millisecond)), must.Sprintf("%s in %q", pattern, o))
	return found[len(found)-1]
}

type command struct {
	out, err output
	signals  chan os.Signal
	code     chan int
}

func (c *command) end(sig os.Signal) int {
	c.signals <- sig
	return <-c.code
}

func startCommand(run func(stdout, stderr io.Writer, signals <-chan os.Signal) int) *command {
	c := &command{signals: make(chan os.Signal, 1), code: make(chan int, 1)}
	go func() { c.code <- run(&c.out, &c.err, c.signals) }()
	return c
}

var tinyServe = []string{"-listen", "127.0.0.1:0", "-size", "80", "-train-batch", "8", "-hidden", "4", "-dim", "6", "-threads", "1", "-train-steps", "20", "-batch", "10", "-report", "10ms"}

func startServe(t *testing.T, args ...string) *command {
	o, _, err := parseServe(args)
	must.NoError(t, err)
	return startCommand(func(stdout, stderr io.Writer, signals <-chan os.Signal) int {
		return serveRun(o, stdout, stderr, signals)
	})
}

func startLoad(t *testing.T, args ...string) *command {
	o, _, err := parseLoad(args)
	must.NoError(t, err)
	return startCommand(func(stdout, stderr io.Writer, signals <-chan os.Signal) int {
		return loadRun(o, stdout, stderr, signals)
	})
}

func get(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	must.NoError(t, err)
	defer func() { _ = r.Body.Close() }()
	text, err := io.ReadAll(r.Body)
	must.NoError(t, err)
	must.Eq(t, http.StatusOK, r.StatusCode)
	return string(text)
}

func TestServeAndLoad(t *testing.T) {
	dir := t.TempDir()
	s := startServe(t, append(tinyServe, "-metrics", "127.0.0.1:0", "-exit-code", "143")...)
	url := s.err.find(t, `Serving mlp after 20 steps at (http://\S+)/predict, 10 rows a batch\n`)
	metrics := s.err.find(t, `Serving metrics at (http://\S+/metrics)\n`)

	l := startLoad(t, "-target", url, "-requests", "40", "-concurrency", "2", "-work", "3", "-report", "5ms",
		"-summary-file", filepath.Join(dir, "s.json"), "-record", filepath.Join(dir, "r.csv"))
	must.Eq(t, 0, <-l.code, must.Sprint(&l.err))
	must.Eq(t, "", l.err.String())
	must.RegexMatch(t, regexp.MustCompile(`(?m)^requests=\d+ response_s=\S+ answered=\d+ p95_s=\S+ longest_s=\S+ errors=0$`), l.out.String())
	must.RegexMatch(t, regexp.MustCompile(`(?m)^requests=40 `), l.out.String())
	must.RegexMatch(t, regexp.MustCompile(`\nsummary: answered=40 failed=0 duration_s=\S+ per_second=\S+ mean_s=\S+ p50_s=\S+ p95_s=\S+ p99_s=\S+ longest_s=\S+\n$`), l.out.String())
	var summary load.Summary
	must.NoError(t, json.Unmarshal([]byte(readFile(t, filepath.Join(dir, "s.json"))), &summary))
	must.Eq(t, 40, summary.Answered)
	rows, err := csv.NewReader(strings.NewReader(readFile(t, filepath.Join(dir, "r.csv")))).ReadAll()
	must.NoError(t, err)
	must.SliceLen(t, 41, rows)
	must.Eq(t, []string{"t_s", "response_s", "error"}, rows[0])

	for _, at := range []string{url + "/metrics", metrics} {
		text := get(t, at)
		must.StrContains(t, text, "\nresponse_seconds_count 40\n")
		must.StrContains(t, text, `requests_total{result="ok"} 40`)
		must.StrContains(t, text, "process_cpu_seconds_total")
	}
	must.Eq(t, "ok\n", get(t, url+"/healthz"))
	s.out.find(t, `(?m)^batches=40 response_s=\S+ answered=\d+ p95_s=\S+ longest_s=\S+ rejected=0 failed=0$`)
	must.Eq(t, 143, s.end(syscall.SIGTERM))
	must.StrContains(t, s.err.String(), "Ended by terminated")
}

func readFile(t *testing.T, path string) string {
	data, err := os.ReadFile(path)
	must.NoError(t, err)
	return string(data)
}

// Both stop promptly on a signal despite an endless batch.
func TestBothEndPromptly(t *testing.T) {
	s := startServe(t, append(tinyServe, "-grace", "50ms")...)
	url := s.err.find(t, `at (http://\S+)/predict`)
	l := startLoad(t, "-target", url, "-work", "1e6", "-concurrency", "3")
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
		return strings.Contains(get(t, url+"/metrics"), "\nqueued_requests 2\n")
	}), wait.Timeout(30*time.Second), wait.Gap(time.Millisecond)))

	must.Eq(t, 0, s.end(syscall.SIGTERM)) // the batch is aborted after the grace
	// The load failed, as nothing was answered.
	must.Eq(t, exitFailed, l.end(syscall.SIGTERM))
	must.StrContains(t, l.out.String(), "summary: answered=0")

	l = startLoad(t, "-target", url, "-wait", "1h", "-exit-code", "9")
	must.Eq(t, 9, l.end(os.Interrupt))
	s = startServe(t, append(tinyServe, "-train-steps", "2000000000", "-exit-code", "5")...)
	must.Eq(t, 5, s.end(syscall.SIGTERM))
}

// A running batch completes within the grace; the load counts rejections.
func TestGrace(t *testing.T) {
	s := startServe(t, append(tinyServe, "-grace", "1m")...)
	url := s.err.find(t, `at (http://\S+)/predict`)
	got := make(chan string, 1)
	go func() {
		r, err := http.Post(url+"/predict", "application/json", strings.NewReader(`{"work": 3e4}`))
		if err != nil {
			got <- err.Error()
			return
		}
		defer func() { _ = r.Body.Close() }()
		text, _ := io.ReadAll(r.Body)
		got <- fmt.Sprint(r.StatusCode, " ", string(text))
	}()
	must.Wait(t, wait.InitialSuccess(wait.BoolFunc(func() bool {
		return strings.Contains(get(t, url+"/metrics"), "\nbusy 1\n")
	}), wait.Timeout(30*time.Second), wait.Gap(time.Millisecond)))
	must.Eq(t, 0, s.end(syscall.SIGTERM))
	must.StrContains(t, <-got, `200 {"model":"mlp"`)
	must.StrContains(t, s.out.String(), "batches=1 response_s=")
}

func TestLoadFails(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	silent := "http://" + closed.Addr().String()
	must.NoError(t, closed.Close())
	l := startLoad(t, "-target", silent, "-wait", "50ms")
	must.Eq(t, exitFailed, <-l.code)
	must.StrContains(t, l.err.String(), "trainer load: the target is not up: "+silent)

	s := startServe(t, append(tinyServe, "-silent")...)
	must.Eq(t, 0, s.end(syscall.SIGTERM))
	must.Eq(t, "", s.out.String()+s.err.String())

	s = startServe(t, tinyServe...)
	url := s.err.find(t, `at (http://\S+)/predict`)
	l = startLoad(t, "-target", url+"/no/such/page", "-rate", "200", "-duration", "100ms", "-silent")
	must.Eq(t, exitFailed, <-l.code)
	must.Eq(t, "", l.out.String())
	must.StrContains(t, l.err.String(), "answered none of")
	for _, option := range []string{"-summary-file", "-record"} {
		l = startLoad(t, "-target", url, "-requests", "1", option, filepath.Join(t.TempDir(), "none", "f"))
		must.Eq(t, exitFailed, <-l.code)
		must.StrContains(t, l.err.String(), option)
	}
	l = startLoad(t, "-target", url+"/no", "-requests", "2", "-report", "1ms")
	must.Eq(t, exitFailed, <-l.code)
	must.StrContains(t, l.out.String(), " status_404=2\n")
	must.Eq(t, 0, s.end(syscall.SIGTERM))
}

func TestServeACheckpoint(t *testing.T) {
	dir := t.TempDir()
	best, last := filepath.Join(dir, "best"), filepath.Join(dir, "last")
	code, _, _ := runWith(t, 0, nil, with("-seed", "4", "-steps", "30", "-checkpoint", last, "-save-best", best)...)
	must.Eq(t, 0, code)
	c, err := train.Load(best)
	must.NoError(t, err)

	args := []string{"-listen", "127.0.0.1:0", "-threads", "1"}
	s := startServe(t, append(args, "-checkpoint", best)...)
	url := s.err.find(t, fmt.Sprintf(`Serving mlp after %d steps at (http://\S+)/predict`, c.Step))
	must.StrContains(t, get(t, url+"/metrics"), "response_seconds_count 0")
	must.Eq(t, 0, s.end(os.Interrupt))
	s = startServe(t, append(args, "-checkpoint", last, "-train-steps", "5", "-model", "mlp")...)
	s.err.find(t, `Serving mlp after 35 steps`)
	must.Eq(t, 0, s.end(os.Interrupt))

	s = startServe(t, append(args, "-checkpoint", last, "-model", "vae")...)
	must.Eq(t, exitUsage, <-s.code)
	must.StrContains(t, s.err.String(), "-model: the checkpoint "+last+" was made with mlp, not vae")
	s = startServe(t, append(args, "-checkpoint", filepath.Join(dir, "none"))...)
	must.Eq(t, exitFailed, <-s.code)
	must.NoError(t, train.Save(last, train.Checkpoint{State: train.State{Model: "rnn"}}))
	s = startServe(t, append(args, "-checkpoint", last)...)
	must.Eq(t, exitFailed, <-s.code)
	must.StrContains(t, s.err.String(), `model "rnn": must be one of`)
	c.Params = c.Params[1:]
	must.NoError(t, train.Save(last, c))
	s = startServe(t, append(args, "-checkpoint", last)...)
	must.Eq(t, exitUsage, <-s.code)
	must.StrContains(t, s.err.String(), "cannot serve "+last)
}

func TestServeFails(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	defer func() { _ = taken.Close() }()
	for _, option := range []string{"-listen", "-metrics"} {
		s := startServe(t, append(tinyServe, option, taken.Addr().String())...)
		must.Eq(t, exitFailed, <-s.code)
		must.StrContains(t, s.err.String(), "failed to serve "+option)
		must.StrContains(t, s.err.String(), "in use")
	}
}

func TestCommandsUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		want []string
	}{
		{"serve", []string{"trainer serve: -listen: must be given", "run trainer serve -h for all options"}},
		{"serve -listen 8000", []string{`"8000" for flag -listen: must be an address and a port`}},
		{"serve -listen :x", []string{`":x" for flag -listen`}},
		{"serve -listen :70000", []string{`":70000" for flag -listen`}},
		{"serve -work 0.5", []string{`"0.5" for flag -work: must be a number from 1 to 1e+06`}},
		{"serve -work nan", []string{`"nan" for flag -work`}},
		{"serve -batch 0", []string{`"0" for flag -batch: must be a whole number from 1`}},
		{"serve -report 0s", []string{`"0s" for flag -report: must be a duration ≥ 1ms such as 5ms`}},
		{"serve -grace -1s", []string{`"-1s" for flag -grace: must be a duration ≥ 0`}},
		{"serve -model rnn", []string{`"rnn" for flag -model: must be one of logreg, mlp, vae, gru`}},
		{"serve -size 5 -model logreg -hidden 3", []string{"-listen: must be given", `"3" for flag -hidden: logreg has no`, `"5" for flag -size: must be at least -train-batch, 512`}},
		{"serve -listen :0 -checkpoint c -dim 3", []string{`"3" for flag -dim: must be left out with -checkpoint`}},
		{"serve now", []string{`unexpected argument "now"`}},
		{"load", []string{"trainer load: -target: must be given"}},
		{"load -target localhost:80", []string{`"localhost:80" for flag -target: must be a URL`}},
		{"load -target ftp://a", []string{"for flag -target: must be a URL"}},
		{"load -target http://", []string{"for flag -target: must be a URL"}},
		{"load -target http://a -rate 3 -concurrency 2", []string{`"2" for flag -concurrency: must be left out with -rate`}},
		{"load -target http://a -rate 0", []string{`"0" for flag -rate: must be a number from 0.001 to 100000`}},
		{"load -even", []string{"-target: must be given", "-even: needs -rate"}},
		{"train -step 5", []string{"flag provided but not defined: -step"}},
		{"-progress-file a.txt", []string{`"a.txt" for flag -progress-file: its ending says no format, give -progress-format: csv, jsonl`}},
		{"-progress-format xml", []string{`"xml" for flag -progress-format: must be one of csv, jsonl`}},
		{"-progress-format csv", []string{`"csv" for flag -progress-format: needs -progress-file FILE`}},
		{"-checkpoint a -save-best a", []string{`"a" for flag -save-best: must be another file than -checkpoint`}},
		{"-metrics 9100", []string{`"9100" for flag -metrics: must be an address and a port`}},
	} {
		t.Run(c.args, func(t *testing.T) {
			var out, err bytes.Buffer
			must.Eq(t, exitUsage, Main(strings.Fields(c.args), &out, &err))
			must.Eq(t, "", out.String())
			for _, w := range c.want {
				must.StrContains(t, err.String(), w)
			}
		})
	}
	for command, want := range map[string]string{"-h": "trainer serve", "train -h": "-save-best", "serve -h": "POST /predict", "load -h": "-concurrency clients"} {
		var out, err bytes.Buffer
		must.Eq(t, 0, Main(strings.Fields(command), &out, &err))
		must.StrContains(t, out.String(), want)
		must.Eq(t, "", err.String())
	}
}

// Commands through Main, with process signals.
func TestMainCommands(t *testing.T) {
	var out, err output
	code := make(chan int, 1)
	go func() { code <- Main(append([]string{"serve"}, tinyServe...), &out, &err) }()
	url := err.find(t, `at (http://\S+)/predict`)
	var loadOut, loadErr output
	must.Eq(t, 0, Main([]string{"load", "-target", url, "-requests", "5", "-concurrency", "1"}, &loadOut, &loadErr))
	must.StrContains(t, loadOut.String(), "summary: answered=5 failed=0 ")
	must.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	must.Eq(t, 0, <-code)
	must.Eq(t, 0, Main(append([]string{"train"}, with("-steps", "3", "-silent")...), &out, &err))
}
