// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package device

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/config"
)

func TestLearn(t *testing.T) {
	dir := t.TempDir()
	for state, kept := range map[string]bool{filepath.Join(dir, "state"): true, "/dev/null/state": false} {
		p := newPlugin(t, twoCards(), func(c *config.Config) {
			c.Gate, c.StateDir = filepath.Join(dir, fmt.Sprint("gate-", kept)), state
		})
		ctx, cancel := context.WithCancel(t.Context())
		p.ctx, p.log = ctx, hclog.NewNullLogger()
		p.settled(t)
		must.NotNil(t, p.gate)
		cancel()
		p.learning.Wait()
		_, err := os.Stat(filepath.Join(state, "running.json"))
		must.Eq(t, kept, err == nil, must.Sprint("runs that have not ended are written down"))
		_, err = os.Stat(filepath.Join(state, "profiles"))
		must.Eq(t, kept, err == nil)
	}
}
