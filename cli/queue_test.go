// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/leader"
	"github.com/ebbtide/ebbtide/shim/queue"
	"github.com/ebbtide/ebbtide/shim/store"
)

// queued is a job of the queue, or one like it.
func queued(namespace, id string, more func(*api.Job)) *api.Job {
	status, stop := "pending", false
	j := &api.Job{ID: &id, Namespace: &namespace, Status: &status, Stop: &stop, Meta: map[string]string{"ebbtide_queue": "true"}}
	if more != nil {
		more(j)
	}
	return j
}

func TestQueue(t *testing.T) {
	vars := variables(t)
	status, _, stderr := ebbtide("", "queue")
	must.Eq(t, exitError, status)
	must.StrContains(t, stderr, "no shim has led yet")

	at := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	must.NoError(t, vars.SaveReport(t.Context(), store.Report{QueueOff: "the queue is drained since then", Queue: []store.Queued{
		{Namespace: "ml", Job: "mlp", Number: 1, Owner: "ml", Priority: -3, Start: at, End: at.Add(time.Hour), FairEnd: at.Add(2 * time.Hour), Why: "no place is free"},
		{Namespace: "ml", Job: "gru", Number: 2, Owner: "ml", Order: store.DoHold, Why: "on hold since then"},
		{Namespace: "ml", Job: "vae", Owner: "vision", Order: store.DoTop, Priority: 7, Node: "n1", End: at, Late: true, Why: "runs"},
	}, Owners: []queue.OwnerShare{
		{Owner: queue.Owner{Name: "vision", Weight: 2}, Use: 0.625, Share: 0.667, Running: 1},
		{Owner: queue.Owner{Name: "ml", Weight: 0.5}, Share: 0.333, Waiting: 2},
	}}))
	status, stdout, stderr := ebbtide("", "queue")
	must.Eq(t, exitOK, status)
	must.Eq(t, "the queue is drained since then\n", stderr)
	must.Eq(t, `NO  JOB     OWNER   PRIORITY  NODE  START        END          FAIR END     WHY
1   ml/mlp  ml      -3        -     01-02 03:04  01-02 04:04  01-02 05:04  no place is free
2   ml/gru  ml      hold      -     unknown      unknown      unknown      on hold since then
-   ml/vae  vision  top       n1    -            01-02 03:04  late         runs
`, stdout)
	_, stdout, _ = ebbtide("", "queue", "-json")
	var jobs []store.Queued
	must.NoError(t, json.Unmarshal([]byte(stdout), &jobs))
	must.Len(t, 3, jobs)

	status, stdout, stderr = ebbtide("", "queue", "-owners")
	must.Eq(t, exitOK, status)
	must.Eq(t, "the queue is drained since then\n", stderr)
	must.Eq(t, `OWNER   WEIGHT  USE    SHARE  RUNNING  WAITING
vision  2       62.5%  66.7%  1        0
ml      0.5     0.0%   33.3%  0        2
`, stdout)
	_, stdout, _ = ebbtide("", "queue", "-owners", "-json")
	var owners []queue.OwnerShare
	must.NoError(t, json.Unmarshal([]byte(stdout), &owners))
	must.Len(t, 2, owners)
	must.Eq(t, "ml", owners[1].Name)
}

func TestQueue_orders(t *testing.T) {
	vars := variables(t, queued("default", "vae", nil), queued("ml", "mlp", nil), queued("default", "a/b", nil))
	order := func(key string) store.Order {
		orders, err := vars.LoadOrders(t.Context())
		must.NoError(t, err)
		return orders.Jobs[key]
	}
	run := func(want string, args ...string) {
		t.Helper()
		status, stdout, stderr := ebbtide("", append([]string{"queue"}, args...)...)
		must.Eq(t, exitOK, status, must.Sprint(stderr))
		must.StrContains(t, stdout, want)
	}
	run("default/vae is on hold since ", "hold", "-reason", "no data yet", "vae")
	must.Eq(t, store.DoHold, order("default/vae").Do)
	must.Eq(t, "no data yet", order("default/vae").Why)
	must.Less(t, time.Minute, time.Since(order("default/vae").Since))
	run("ml/mlp is at the top since ", "top", "ml/mlp")
	must.Eq(t, store.DoTop, order("ml/mlp").Do)
	run("default/a/b is on hold", "stop", "default/a/b")
	must.Eq(t, store.DoStop, order("default/a/b").Do)
	run("default/a/b is on hold", "hold", "default/a/b")

	status, _, stderr := ebbtide("", "queue", "top", "default/vae")
	must.Eq(t, exitError, status)
	must.StrContains(t, stderr, "job default/vae is on hold since ")
	must.StrContains(t, stderr, ": no data yet; see ebbtide queue release")
	must.Eq(t, store.DoHold, order("default/vae").Do)

	run("default/vae has no order", "release", "vae")
	must.Eq(t, "", order("default/vae").Do)
	run("ml/mlp is out of the queue since ", "release", "-now", "ml/mlp")
	must.Eq(t, store.DoLeave, order("ml/mlp").Do)

	t.Setenv("NOMAD_NAMESPACE", "ml")
	run("ml/mlp has no order", "release", "mlp")
	must.Eq(t, "", order("ml/mlp").Do)
	must.Eq(t, store.DoHold, order("default/a/b").Do, must.Sprint("the others stay"))
}

func TestQueue_orderErrors(t *testing.T) {
	stopped, dead := true, "dead"
	vars := variables(t, queued("default", "plain", func(j *api.Job) { j.Meta = nil }), queued("default", "vae", nil),
		queued("default", "stopped", func(j *api.Job) { j.Stop = &stopped }), queued("default", "over", func(j *api.Job) { j.Status = &dead }))
	for _, tc := range []struct {
		status int
		want   string
		args   []string
	}{
		{exitError, `job "x" is not in the queue: there is no such job`, []string{"hold", "x"}},
		{exitError, `job "ml/vae" is not in the queue: there is no such job`, []string{"top", "ml/vae"}},
		{exitError, `job "plain" is not in the queue: its meta does not have ebbtide_queue = "true"`, []string{"release", "plain"}},
		{exitError, `job "stopped" is not in the queue: it has ended`, []string{"hold", "stopped"}},
		{exitError, `job "over" is not in the queue: it has ended`, []string{"release", "-now", "over"}},
		{exitUsage, "missing argument JOB; see ebbtide queue top -h", []string{"top"}},
		{exitUsage, `unexpected argument "y"`, []string{"hold", "x", "y"}},
		{exitUsage, `unexpected argument "y"`, []string{"drain", "y"}},
		{exitUsage, "-reason: must have at most 100 bytes, got 101", []string{"hold", "-reason", strings.Repeat("x", 101), "vae"}},
		{exitUsage, "-reason: must have at most 100 bytes, got 101", []string{"drain", "-reason", strings.Repeat("x", 101)}},
	} {
		status, stdout, stderr := ebbtide("", append([]string{"queue"}, tc.args...)...)
		must.Eq(t, tc.status, status, must.Sprint(tc.args))
		must.Eq(t, "", stdout)
		must.StrContains(t, stderr, tc.want)
	}
	orders, err := vars.LoadOrders(t.Context())
	must.NoError(t, err)
	must.Eq(t, store.Orders{}, orders)

	// The error lists the queue.
	var r store.Report
	for i, want := range []string{"; no job is\n", "; in it are ml/0\n", "; in it are ml/0, ml/1, ml/2, ml/3, ml/4, ml/5, ml/6, ml/7, ml/8, ml/9, and 1 more\n"} {
		for len(r.Queue) < []int{0, 1, 11}[i] {
			r.Queue = append(r.Queue, store.Queued{Namespace: "ml", Job: fmt.Sprint(len(r.Queue))})
		}
		must.NoError(t, vars.SaveReport(t.Context(), r))
		_, _, stderr := ebbtide("", "queue", "hold", "x")
		must.StrHasSuffix(t, want, stderr)
	}
}

func TestQueue_drain(t *testing.T) {
	vars := variables(t, queued("default", "vae", nil))
	_, _, stderr := ebbtide("", "queue", "hold", "vae")
	must.Eq(t, "", stderr)
	status, stdout, _ := ebbtide("", "queue", "drain", "-reason", "uninstall")
	must.Eq(t, exitOK, status)
	must.StrContains(t, stdout, ": uninstall\n")
	orders, err := vars.LoadOrders(t.Context())
	must.NoError(t, err)
	must.Eq(t, "uninstall", orders.Drained.Why)
	must.MapLen(t, 1, orders.Jobs)

	lock := &leader.Variable{Client: vars.Client, Namespace: vars.Namespace, Path: vars.Path + "/leader", TTL: time.Minute, Holder: "n1, process 7"}
	must.NoError(t, lock.Acquire(t.Context()))
	_, stdout, _ = ebbtide("", "queue", "drain")
	must.StrContains(t, stdout, "The leading shim, n1, process 7, releases its jobs within 10 seconds.\n")
	_, _, stderr = ebbtide("", "queue", "top", "vae")
	must.StrContains(t, stderr, "is on hold")
	_, _, stderr = ebbtide("", "queue", "release", "vae")
	must.StrContains(t, stderr, "until ebbtide queue resume the order has no effect")

	status, _, _ = ebbtide("", "queue", "resume")
	must.Eq(t, exitOK, status)
	orders, err = vars.LoadOrders(t.Context())
	must.NoError(t, err)
	must.Nil(t, orders.Drained)
}

// Without a leader for long enough, jobs are released; what is unknown releases none.
func TestQueue_fallback(t *testing.T) {
	vars := variables(t, queued("default", "vae", nil))
	fallback := func(after string) (int, string, string) { return ebbtide("", "queue", "drain", "-fallback", after) }
	_, _, stderr := fallback("9m")
	must.StrContains(t, stderr, "-fallback: must be ≥ 10m0s, got 9m0s")
	status, _, stderr := fallback("1h")
	must.Eq(t, exitError, status)
	must.StrContains(t, stderr, "it is unknown when a shim has led")
	must.NoError(t, vars.SaveReport(t.Context(), store.Report{At: time.Now().Add(-30 * time.Minute)}))
	status, stdout, _ := fallback("1h")
	must.Eq(t, exitOK, status)
	must.StrHasPrefix(t, "a shim has led 30m", stdout)
	status, stdout, stderr = fallback("10m")
	must.Eq(t, exitOK, status, must.Sprint(stderr))
	must.StrHasPrefix(t, "no shim has led since ", stdout)
	orders, err := vars.LoadOrders(t.Context())
	must.NoError(t, err)
	must.Nil(t, orders.Drained, must.Sprint("the queue goes on with the next shim"))
}
