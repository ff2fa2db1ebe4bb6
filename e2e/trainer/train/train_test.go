// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package train

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
	"pgregory.net/rapid"

	"github.com/ebbtide/ebbtide/e2e/trainer/model"
)

// quick is small enough for the race detector.
func quick(t testing.TB, name string, threads int) Config {
	s, err := model.ByName(name)
	must.NoError(t, err)
	s.Dim, s.Hidden, s.Batch, s.Size, s.HeldOut = 16, 12, 21, 210, 70 // unequal shards and pieces
	s.Rate *= 3
	return Config{Spec: s, Seed: 11, Threads: threads}
}

func trainer(t testing.TB, c Config) *Trainer {
	r := New(c)
	t.Cleanup(r.Close)
	return r
}

func steps(r *Trainer, n int) []float64 {
	var losses []float64
	for range n {
		r.Step()
		loss, _ := r.Evaluate()
		losses = append(losses, r.TrainLoss(), loss)
	}
	return losses
}

func each(t *testing.T, f func(t *testing.T, name string)) {
	for _, s := range model.Specs() {
		t.Run(s.Name, func(t *testing.T) { f(t, s.Name) })
	}
}

func TestLossFalls(t *testing.T) {
	each(t, func(t *testing.T, name string) {
		r := trainer(t, quick(t, name, 2))
		before, accuracyBefore := r.Evaluate()
		for range 200 {
			r.Step()
		}
		after, accuracy := r.Evaluate()
		must.Less(t, 0.93*before, after)
		if r.config.Spec.Classifies {
			must.Greater(t, accuracyBefore, accuracy)
		} else {
			must.True(t, math.IsNaN(accuracy))
		}
		must.Greater(t, 0, r.GradientNorm())
	})
}

func TestThreadsDoNotChangeTheResult(t *testing.T) {
	each(t, func(t *testing.T, name string) {
		want := steps(trainer(t, quick(t, name, 1)), 12) // more than an epoch
		for _, threads := range []int{2, 5, 40} {
			must.Eq(t, want, steps(trainer(t, quick(t, name, threads)), 12))
		}
		other := quick(t, name, 1)
		other.Seed++
		must.NotEq(t, want, steps(trainer(t, other), 12))
	})
}

func TestResumeIsExact(t *testing.T) {
	each(t, func(t *testing.T, name string) {
		whole := trainer(t, quick(t, name, 2))
		want := steps(whole, 25)

		path := filepath.Join(t.TempDir(), "model.ckpt")
		var got []float64
		for _, part := range []int{7, 1, 17} {
			r := trainer(t, quick(t, name, 2))
			if len(got) > 0 {
				c, err := Load(path)
				must.NoError(t, err)
				must.Eq(t, 3.5, c.CPUSeconds)
				must.NoError(t, r.Restore(c.State))
			}
			got = append(got, steps(r, part)...)
			must.NoError(t, Save(path, Checkpoint{State: r.State(), CPUSeconds: 3.5}))
		}
		must.Eq(t, want, got)
		must.Eq(t, 25, whole.Done())
	})
}

func TestDiverges(t *testing.T) {
	each(t, func(t *testing.T, name string) {
		c := quick(t, name, 1)
		c.DivergeAt = 10
		r := trainer(t, c)
		plain := trainer(t, quick(t, name, 1))
		must.Eq(t, steps(plain, 9), steps(r, 9))
		for range 10 {
			r.Step()
		}
		loss, _ := r.Evaluate()
		must.True(t, math.IsNaN(loss))
	})
}

func TestRestoreRefusesAnotherRun(t *testing.T) {
	for field, change := range map[string]func(*State){
		"model":      func(s *State) { s.Model = "vae" },
		"seed":       func(s *State) { s.Seed++ },
		"dim":        func(s *State) { s.Dim++ },
		"hidden":     func(s *State) { s.Hidden++ },
		"batch":      func(s *State) { s.Batch++ },
		"size":       func(s *State) { s.Size++ },
		"parameters": func(s *State) { s.V = nil },
	} {
		t.Run(field, func(t *testing.T) {
			r := trainer(t, quick(t, "mlp", 1))
			s := r.State()
			s.Step = 99
			change(&s)
			var mismatch *MismatchError
			must.True(t, errors.As(r.Restore(s), &mismatch))
			must.Eq(t, field, mismatch.Field)
			must.Eq(t, 0, r.Done())
		})
	}
}

func TestCheckpointDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c")
	_, err := Load(path)
	must.ErrorIs(t, err, fs.ErrNotExist)

	c := Checkpoint{State: State{Model: "mlp", Step: 3, Seed: math.MaxUint64, Params: []float64{1, math.NaN(), math.Inf(-1)}, M: []float64{4}, V: []float64{}}}
	must.NoError(t, Save(path, c))
	got, err := Load(path)
	must.NoError(t, err)
	must.Eq(t, c.Seed, got.Seed)
	must.True(t, math.IsNaN(got.Params[1]))
	must.Eq(t, math.Inf(-1), got.Params[2])
	must.Eq(t, c.M, got.M)

	data, err := os.ReadFile(path)
	must.NoError(t, err)
	for n := range data { // cut at every byte, and every byte altered
		must.NoError(t, os.WriteFile(path, data[:n], 0o600))
		_, err := Load(path)
		must.ErrorIs(t, err, ErrDamaged)
		changed := append([]byte(nil), data...)
		changed[n] ^= 0x10
		must.NoError(t, os.WriteFile(path, changed, 0o600))
		_, err = Load(path)
		must.ErrorIs(t, err, ErrDamaged)
	}
}

func TestFailedSaveKeepsTheOld(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "c")
	must.NoError(t, Save(path, Checkpoint{State: State{Step: 1}}))

	must.NoError(t, os.Mkdir(path+".tmp", 0o755)) // the temporary file cannot be created
	err := Save(path, Checkpoint{State: State{Step: 2}})
	must.ErrorContains(t, err, "failed to save checkpoint "+path)
	c, err := Load(path)
	must.NoError(t, err)
	must.Eq(t, 1, c.Step)

	must.NoError(t, os.WriteFile(path+".tmp", []byte("left by a killed run"), 0o600))
	must.NoError(t, Save(path, Checkpoint{State: State{Step: 3}}))
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	must.SliceLen(t, 1, entries)
}

func FuzzCheckpoint(f *testing.F) {
	path := filepath.Join(f.TempDir(), "c")
	must.NoError(f, Save(path, Checkpoint{State: State{Model: "mlp", Params: []float64{1, 2}}}))
	data, err := os.ReadFile(path)
	must.NoError(f, err)
	f.Add(data)
	f.Add([]byte(magic))
	f.Fuzz(func(_ *testing.T, data []byte) {
		var c Checkpoint
		_ = c.decode(data) // no panic
	})
}

func TestOrderVisitsEverythingOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 300).Draw(t, "size")
		seed, epoch := rapid.Uint64().Draw(t, "seed"), rapid.IntRange(0, 100).Draw(t, "epoch")
		o := newOrder(seed, epoch, size)
		seen := make([]bool, size)
		for i := range size {
			at := o.at(i)
			if at >= uint64(size) || seen[at] {
				t.Fatalf("position %d holds %d, out of range or for the second time", i, at)
			}
			seen[at] = true
		}
	})
	large := newOrder(1, 2, math.MaxInt32)
	must.Less(t, math.MaxInt32, large.at(math.MaxInt32-1))
}
