// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/device/gate/identify"
	"github.com/ebbtide/ebbtide/internal/jsonfile"
)

const mib = 1 << 20

func TestKeyOf(t *testing.T) {
	c := identify.Container{Namespace: "ml", Job: "bert", Group: "g", Task: "train", Arguments: "aa", ID: "1", Alloc: "2"}
	want := Key{"ml", "bert", "g", "train", "aa"}
	for _, job := range []string{
		"bert", "bert/dispatch-1784550000-0a1b2c3d", "bert/periodic-1784550000", "bert/periodic-1784550000/dispatch-1784550001-0a1b2c3d",
	} {
		c.Job = job
		must.Eq(t, want, KeyOf(c))
	}
	for _, job := range []string{"bert/dispatch-x", "bert/periodic", "bert/dispatch-1-0a/more", "dispatch-1784550000-0a1b2c3d"} {
		c.Job = job
		must.Eq(t, job, KeyOf(c).Job)
	}
	must.Eq(t, "ml/bert/g/train", want.Application())

	// Whatever a process calls itself, its file is in the store, and JSON keeps its name.
	c.Job, c.Namespace = "../../etc/passwd\xff", strings.Repeat("n", 100_000)
	k := KeyOf(c)
	must.RegexMatch(t, fileName, k.name())
	b, err := json.Marshal(k)
	must.NoError(t, err)
	must.Less(t, 2000, len(b))
	var back Key
	must.NoError(t, json.Unmarshal(b, &back))
	must.Eq(t, k, back)
	must.NotEq(t, Key{Job: "a", Group: "b"}.name(), Key{Job: "ab"}.name())
}

func record(seconds, every int, curve func(at int) uint64) Run {
	var c Recorder
	for at := 0; at < seconds; at += every {
		c.Observe(time.Duration(at)*time.Second, curve(at))
	}
	return c.End(time.Duration(seconds) * time.Second)
}

func TestRecorder(t *testing.T) {
	var c Recorder
	c.Observe(0, 10)
	c.Observe(500*time.Millisecond, 30)
	c.Observe(3200*time.Millisecond, 5)
	c.Observe(time.Second, 7) // a clock that goes back
	must.Eq(t, Run{WidthS: 1, Bytes: []uint64{30, 30, 30, 30}, Seconds: 3.2}, c.Run())
	c.Observe(4*time.Second, 8)
	must.Eq(t, []uint64{30, 30, 30, 30, 8}, c.Run().Bytes)

	c.Observe(128*time.Second, 9)
	r := c.Run()
	must.Eq(t, 2, r.WidthS)
	must.Len(t, 65, r.Bytes)
	must.Eq(t, []uint64{30, 30, 8, 8}, r.Bytes[:4])
	must.Eq(t, 9, r.Bytes[64])
	c.Observe(1000*time.Hour, 11)
	r = c.End(1001 * time.Hour)
	must.NoError(t, r.validate())
	must.True(t, r.Whole)
	must.Eq(t, 1001*3600, r.Seconds)
	must.Eq(t, 30, r.Bytes[0])
	must.Eq(t, 11, r.Bytes[len(r.Bytes)-1])

	must.Eq(t, 1, len(new(Recorder).End(0).Bytes))
}

// Whatever is observed, a run is valid, keeps its peak, and never understates what was held.
func TestRecorder_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Recorder
		type seen struct {
			at    time.Duration
			bytes uint64
		}
		var all []seen
		at := time.Duration(0)
		for range rapid.IntRange(1, 300).Draw(t, "observations") {
			at += time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "step"))
			s := seen{at, rapid.Uint64Range(0, maxNumber).Draw(t, "bytes")}
			all = append(all, s)
			c.Observe(s.at, s.bytes)
		}
		r := c.Run()
		must.NoError(t, r.validate())
		peak := uint64(0)
		for _, s := range all {
			peak = max(peak, s.bytes)
			must.GreaterEq(t, s.bytes, r.Bytes[int(s.at.Seconds()/r.WidthS)])
		}
		must.Eq(t, peak, r.Peak())
	})
	var c Recorder
	c.Observe(1<<63-1, 1<<64-1)
	c.Observe(-5, 0)
	must.NoError(t, c.Run().validate())
}

// lammps is the paper's: 1.7 GB, and 8.3 GB from 1180 s to 1195 s.
func lammps(at int) uint64 {
	if at < 1180 {
		return 1700 * mib
	}
	return 8300 * mib
}

func TestSummary(t *testing.T) {
	const low, peak = 1700 * mib, 8300 * mib
	var p Profile
	must.Eq(t, Summary{}, p.Summary())
	p = p.add(record(1195, 5, lammps))
	must.Eq(t, Summary{Measured: 1, Peak: peak, Working: low}, p.Summary())
	part := record(100, 5, func(int) uint64 { return peak + 1 })
	part.Whole = false
	p = p.add(part)
	must.Eq(t, Summary{Measured: 1, Peak: peak + 1, Working: low}, p.Summary(), must.Sprint("its end was not observed"))
	for range Keep {
		p = p.add(record(100, 1, func(int) uint64 { return mib }))
	}
	must.Len(t, Keep, p.Runs)
	must.Eq(t, Summary{Measured: 6, Peak: mib, Working: mib}, p.Summary())
}

type reports []error

func (r *reports) add(err error) { *r = append(*r, err) }

func open(t *testing.T, dir string) (*Store, *reports) {
	t.Helper()
	var told reports
	s, err := Open(dir, told.add)
	must.NoError(t, err)
	return s, &told
}

func TestStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "profiles")
	s, _ := open(t, dir)
	k := Key{"ml", "bert", "g", "train", "aa"}
	_, ok := s.Profile(k)
	must.False(t, ok)
	r := record(1195, 5, lammps)
	must.NoError(t, s.Add(k, r))
	must.NoError(t, s.Add(Key{Job: "other"}, r))
	must.NoError(t, s.Add(k, r))
	must.ErrorContains(t, s.Add(k, Run{}), "adding a run of ml/bert/g/train: width_s: must be a power of two")
	check := func(s *Store) {
		t.Helper()
		p, ok := s.Profile(k)
		must.True(t, ok)
		must.Eq(t, Profile{Key: k, Runs: []Run{r, r}, Measured: 2}, p)
		all := s.Summaries()
		must.Len(t, 2, all)
		must.Eq(t, p.Summary(), all[1])
	}
	check(s)
	s, told := open(t, dir)
	check(s)
	must.Len(t, 0, *told)

	type thing struct{ A int }
	var got thing
	must.ErrorIs(t, Load(dir, "tested", &got), fs.ErrNotExist)
	must.NoError(t, Save(dir, "tested", thing{5}))
	must.NoError(t, Load(dir, "tested", &got))
	must.Eq(t, thing{5}, got)

	info, err := os.Stat(filepath.Join(dir, "profiles", k.name()))
	must.NoError(t, err)
	must.Eq(t, 0o600, info.Mode().Perm())
	must.Less(t, 20<<10, info.Size())
}

func TestStore_bad(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	good, k := Key{Job: "good"}, Key{Job: "bad"}
	must.NoError(t, s.Add(good, record(10, 1, lammps)))
	must.NoError(t, s.Add(k, record(10, 1, lammps)))
	path := filepath.Join(dir, "profiles", k.name())
	whole, err := os.ReadFile(path)
	must.NoError(t, err)
	for name, text := range map[string]string{
		"torn":             string(whole[:len(whole)/2]),
		"empty":            "",
		"of another key":   strings.Replace(string(whole), `"bad"`, `"worse"`, 1),
		"no runs":          `{"key": {"job": "bad"}}`,
		"endless parts":    strings.Replace(string(whole), `"width_s":1`, `"width_s":1e-300`, 1),
		"an odd width":     strings.Replace(string(whole), `"width_s":1`, `"width_s":3`, 1),
		"a size too large": strings.Replace(string(whole), `[1782579200`, `[18446744073709551615`, 1),
		"a negative time":  strings.Replace(string(whole), `"seconds":10`, `"seconds":-10`, 1),
		"too many parts":   strings.Replace(string(whole), `[1782579200`, `[1`+strings.Repeat(",1", Bins), 1),
		"too long":         string(whole) + strings.Repeat(" ", maxFile),
	} {
		must.NotEq(t, string(whole), text)
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		s, told := open(t, dir)
		_, ok := s.Profile(k)
		must.False(t, ok, must.Sprint(name))
		_, ok = s.Profile(good)
		must.True(t, ok)
		must.Len(t, 1, *told, must.Sprint(name))
		must.ErrorContains(t, (*told)[0], "1 files of profiles are ignored, such as: "+k.name()+": ")
	}
	// Pipes do not block, links are not followed, and leftovers of a killed plugin are removed.
	must.NoError(t, os.Remove(path))
	must.NoError(t, unix.Mkfifo(path, 0o600))
	link := filepath.Join(dir, "profiles", Key{Job: "link"}.name())
	must.NoError(t, os.Symlink("/dev/zero", link))
	left := filepath.Join(dir, "profiles", "1"+jsonfile.Unfinished)
	must.NoError(t, os.WriteFile(left, whole, 0o600))
	s, told := open(t, dir)
	must.Len(t, 1, s.Summaries())
	must.Len(t, 1, *told)
	must.ErrorContains(t, (*told)[0], "2 files of profiles are ignored")
	_, err = os.Stat(left)
	must.ErrorIs(t, err, fs.ErrNotExist)
	must.NoError(t, s.Add(k, record(10, 1, lammps)))
	s, told = open(t, dir)
	must.Len(t, 2, s.Summaries())
	must.Len(t, 1, *told)
}

func TestStore_bounded(t *testing.T) {
	dir := t.TempDir()
	open(t, dir) // makes it
	key := func(i int) Key { return Key{Job: fmt.Sprint("job-", i)} }
	r := Run{WidthS: 1, Bytes: []uint64{1}, Whole: true}
	old := time.Now().Add(-time.Hour)
	for i := range MaxProfiles {
		p := Profile{Key: key(i)}.add(r)
		path := filepath.Join(dir, "profiles", p.Key.name())
		must.NoError(t, jsonfile.Replace(path, p, true))
		must.NoError(t, os.Chtimes(path, old, old.Add(time.Duration(i)*time.Second)))
	}
	files := func() int {
		entries, err := os.ReadDir(filepath.Join(dir, "profiles"))
		must.NoError(t, err)
		return len(entries)
	}
	s, told := open(t, dir)
	must.Len(t, 0, *told)
	must.Len(t, MaxProfiles, s.Summaries())
	must.NoError(t, s.Add(key(0), r))
	must.NoError(t, s.Add(key(MaxProfiles), r))
	must.Eq(t, MaxProfiles, files())
	_, ok := s.Profile(key(1))
	must.False(t, ok, must.Sprint("of the others the oldest"))
	_, ok = s.Profile(key(0))
	must.True(t, ok)
	must.NoError(t, jsonfile.Replace(filepath.Join(dir, "profiles", key(1).name()), Profile{Key: key(1)}.add(r), true))
	s, _ = open(t, dir)
	must.Len(t, MaxProfiles, s.Summaries())
	must.Eq(t, MaxProfiles, files())
}

func TestStore_fails(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	must.NoError(t, os.RemoveAll(dir))
	k := Key{Job: "a"}
	must.ErrorContains(t, s.Add(k, record(10, 1, lammps)), "writing the profile of /a//: ")
	_, ok := s.Profile(k)
	must.True(t, ok)
	must.ErrorContains(t, Save(dir, "x", 1), "writing x: ")
	must.NoError(t, os.WriteFile(dir, nil, 0o600))
	_, err := Open(dir, func(error) {})
	must.ErrorContains(t, err, "creating the directory of profiles: ")
}

func TestStore_together(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 10 {
				k := Key{Job: fmt.Sprint("job-", (i+n)%4)}
				if err := s.Add(k, record(20, 1, lammps)); err != nil {
					t.Error(err)
				}
				s.Profile(k)
				s.Summaries()
			}
		})
	}
	all.Wait()
	measured := 0
	again, told := open(t, dir)
	for _, sum := range again.Summaries() {
		measured += sum.Measured
	}
	must.Eq(t, 80, measured)
	must.Len(t, 0, *told)
	must.True(t, slices.IsSortedFunc(again.Summaries(), func(a, b Summary) int { return strings.Compare(a.Key.Job, b.Key.Job) }))
}
