// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package history

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/driver/private"
	"github.com/ebbtide/ebbtide/driver/remaining"
)

func key(job string) Key {
	return Key{Namespace: "default", Job: job, Group: "g", Task: "train", Arguments: Arguments("python", "--token=s3cret")}
}

func TestHistory(t *testing.T) {
	at := t.TempDir()
	dir := private.Open(at)
	_, err := Find(dir, key("mlp"))
	must.ErrorIs(t, err, fs.ErrNotExist)

	must.NoError(t, Add(dir, key("mlp"), remaining.Run{CPUS: 10, Steps: 100}))
	must.NoError(t, Add(dir, key("vae"), remaining.Run{CPUS: 20}))
	must.NoError(t, Add(dir, key("mlp"), remaining.Run{CPUS: 12, Steps: 101}))
	run, err := Find(dir, key("mlp"))
	must.NoError(t, err)
	must.Eq(t, remaining.Run{CPUS: 12, Steps: 101}, run)
	run, err = Find(dir, key("vae"))
	must.NoError(t, err)
	must.Eq(t, remaining.Run{CPUS: 20}, run)
	other := key("mlp")
	other.Arguments = Arguments("python", "--token=other")
	_, err = Find(dir, other)
	must.ErrorIs(t, err, fs.ErrNotExist)

	file := filepath.Join(at, private.DirName, fileName)
	data, err := os.ReadFile(file)
	must.NoError(t, err)
	must.StrNotContains(t, string(data), "s3cret")

	for _, bad := range []remaining.Run{{}, {CPUS: -1}, {CPUS: math.NaN()}, {CPUS: math.Inf(1)}, {CPUS: 1, Steps: -1}, {CPUS: 1, Steps: math.NaN()}} {
		must.Error(t, Add(dir, key("mlp"), bad))
	}
	must.Error(t, Add(dir, key(strings.Repeat("x", 300)), remaining.Run{CPUS: 1}))
	must.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	_, err = Find(dir, key("mlp"))
	must.ErrorContains(t, err, "reading the history of runs")
	must.NoError(t, Add(dir, key("mlp"), remaining.Run{CPUS: 1}))
	must.NoError(t, os.WriteFile(file, []byte(`[{"job":"a","cpu_s":-5},{"job":"b","cpu_s":5}]`), 0o600))
	_, err = Find(dir, Key{Job: "a"})
	must.ErrorIs(t, err, fs.ErrNotExist)
	run, err = Find(dir, Key{Job: "b"})
	must.NoError(t, err)
	must.Eq(t, remaining.Run{CPUS: 5}, run)
}

// A run's text is read by drivers that know no overhead, and theirs by this one.
func TestText(t *testing.T) {
	k, o := key("mlp"), 0.25
	for _, run := range []remaining.Run{{CPUS: 50}, {CPUS: 50, Steps: 100}, {CPUS: 50, Steps: 100, Overhead: &o}} {
		text := k.Text(run)
		read, err := k.Parse(text)
		must.NoError(t, err)
		must.Eq(t, run, read)
		must.StrHasPrefix(t, fmt.Sprintf("cpu_s=50 steps=%v arguments=%s", run.Steps, k.Arguments), text)
	}
	whole := k.Text(remaining.Run{CPUS: 50})
	for _, bad := range []string{"", "cpu_s=50", whole + " overhead=", whole + " overhead=-1", whole + " overhead=NaN", whole + " overhead=1 more"} {
		_, err := k.Parse(bad)
		must.Error(t, err, must.Sprint(bad))
	}
	_, err := key("other").Parse(strings.Replace(whole, k.Arguments, Arguments("other"), 1))
	must.ErrorIs(t, err, ErrOther)
}

func TestHistory_bounded(t *testing.T) {
	at := t.TempDir()
	dir := private.Open(at)
	full := make([]record, Runs)
	long := strings.Repeat("n", 128)
	for i := range full {
		full[i] = record{Key{Namespace: long, Job: fmt.Sprint(long, i), Group: long, Task: long, Arguments: Arguments()}, remaining.Run{CPUS: 1e14 / 3, Steps: 1e14 / 7}}
	}
	data, err := json.Marshal(full)
	must.NoError(t, err)
	must.NoError(t, dir.WriteFile(fileName, data, false))
	must.NoError(t, Add(dir, key("new"), remaining.Run{CPUS: 1}))
	_, err = Find(dir, key("new"))
	must.NoError(t, err)
	all, err := read(dir)
	must.NoError(t, err)
	must.Len(t, Runs, all)
	must.Eq(t, full[1], all[0])
	info, err := os.Stat(filepath.Join(at, private.DirName, fileName))
	must.NoError(t, err)
	must.Less(t, maxFile, info.Size())
}

func TestJob(t *testing.T) {
	for _, id := range []string{"bert", "bert/dispatch-1784550000-0a1b2c3d", "bert/periodic-1784550000", "bert/periodic-1784550000/dispatch-1784550001-0a1b2c3d"} {
		must.Eq(t, "bert", Job(id))
	}
	must.Eq(t, "bert/dispatch-x", Job("bert/dispatch-x"))
}
