// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/config"
)

func TestProfiles(t *testing.T) {
	dir := t.TempDir()
	for name, preset := range map[string]string{"plain": "", "paper": "adaptive-fair-share"} {
		state := filepath.Join(dir, name)
		p := newPlugin(t, twoCards(), func(c *config.Config) {
			c.Gate, c.StateDir, c.Preset = filepath.Join(dir, "gate-"+name), state, preset
		})
		ctx, cancel := context.WithCancel(t.Context())
		p.ctx, p.log = ctx, hclog.NewNullLogger()
		p.settled(t)
		must.NotNil(t, p.gate)
		cancel()
		p.profiling.Wait()
		_, err := os.Stat(filepath.Join(state, "profiles"))
		must.Eq(t, preset != "", err == nil)
	}
	p := newPlugin(t, twoCards(), func(c *config.Config) {
		c.Gate, c.StateDir, c.Preset = filepath.Join(dir, "gate-none"), "/dev/null/state", "adaptive-fair-share"
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p.ctx, p.log = ctx, hclog.NewNullLogger()
	p.settled(t)
	must.NotNil(t, p.gate, must.Sprint("cards are shared without profiles"))
}
