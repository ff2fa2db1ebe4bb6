// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package gputest

import (
	"context"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/identify"
)

func shell(t *testing.T, ctx context.Context, script string) *Process {
	t.Helper()
	p, err := Fake(t.TempDir(), t.TempDir(), Card{}).Start(ctx, Job{Container: "c", Program: "/bin/sh", Args: []string{"-c", script}})
	must.NoError(t, err)
	t.Cleanup(func() { _ = p.Wait() })
	return p
}

func TestProcess(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := shell(t, ctx, `echo '{"a": 1}'; echo no JSON; read x; echo '{"b": 2, "c": '${#EBBTIDE_TEST_CONTAINER}'}'; cat; echo oh >&2; exit 3`)
	l, err := p.Next(ctx, "a")
	must.NoError(t, err)
	must.Eq(t, 1, l.Int("a"))
	must.NoError(t, p.Tell())
	l, err = p.Next(ctx, "b")
	must.NoError(t, err)
	must.Eq(t, Line{"b": 2.0, "c": 1.0}, l)
	short, end := context.WithTimeout(ctx, 10*time.Millisecond)
	_, err = p.Next(short, "d")
	end()
	must.ErrorIs(t, err, context.DeadlineExceeded)
	p.Release()
	_, err = p.Next(ctx, "d")
	must.ErrorIs(t, err, ErrEnded)
	must.ErrorContains(t, p.Wait(), "exit status 3: oh")
	must.Eq(t, 3, p.Exit())
	must.True(t, p.Ended.After(p.Begun))

	_, err = shell(t, ctx, `echo '{"error": 2, "call": "take"}'; exit 2`).Next(ctx, "a")
	must.ErrorContains(t, err, "map[call:take error:2]")

	p = shell(t, ctx, `echo '{"a": 1}'; echo '{"b": 2}'; echo '{"error": "no"}'; exit 2`)
	for _, want := range []Line{{"a": 1.0}, {"b": 2.0}} {
		l, err := p.Next(ctx, "")
		must.NoError(t, err)
		must.Eq(t, want, l)
	}
	_, err = p.Next(ctx, "")
	must.ErrorContains(t, err, "error:no")
}

func TestProcess_interrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := shell(t, ctx, "exec sleep 600")
	cancel()
	must.Error(t, p.Wait())
	must.Eq(t, -1, p.Exit())
}

func TestLimits(t *testing.T) {
	l := Shares{Of: map[string]gate.Share{"a": {Bytes: 1}}, Otherwise: gate.Share{Bytes: 2}}
	for id, want := range map[string]uint64{"a": 1, "b": 2} {
		s, err := l.Join(identify.Container{ID: id}, "")
		must.NoError(t, err)
		must.Eq(t, want, s.Bytes)
	}
}
