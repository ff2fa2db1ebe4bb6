// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

func valid() Config {
	return Config{
		Enabled: true, Seats: 4, Period: "30s", Inject: InjectRuntime, Mounts: MountsDriver, Preload: "/usr/lib/ebbtide/libebbtide-cuda.so", Gate: "/run/ebbtide/gate",
		Reserve: 512, Division: "adaptive", MaxWait: "1h", Over: OverAuto, Parking: ParkingAuto, Turn: "1m", Idle: "30s", StateDir: "/var/lib/ebbtide/gpu",
	}
}

func TestConfig_Validate(t *testing.T) {
	s, err := valid().Validate()
	must.NoError(t, err)
	must.Eq(t, 512<<20, s.Reserve)
	must.Eq(t, 30*time.Second, s.Period)
	must.Eq(t, time.Hour, s.MaxWait)
	must.Eq(t, MountsDriver, s.Mounts)
	for want, change := range map[string]func(*Config){
		"seats_per_gpu: must be from 1 to 64, got 1000":                                              func(c *Config) { c.Seats = 1000 },
		`fingerprint_period: must be a duration like 30s, got "often"`:                               func(c *Config) { c.Period = "often" },
		"fingerprint_period: must be a duration from 1s to 1h, got 1ms":                              func(c *Config) { c.Period = "1ms" },
		`ignored_gpu_ids: must be UUIDs like GPU-…, as nvidia-smi -L has them, got "0"`:              func(c *Config) { c.Ignored = []string{"0"} },
		`inject: must be one of runtime, devices, got "cdi"`:                                         func(c *Config) { c.Inject = "cdi" },
		`mounts: must be one of driver, device, got "docker"`:                                        func(c *Config) { c.Mounts = "docker" },
		`max_wait: must be a duration like 1h, got "long"`:                                           func(c *Config) { c.MaxWait = "long" },
		"max_wait: must be a duration from 1s to 24h, got 24h0m1s":                                   func(c *Config) { c.MaxWait = "86401s" },
		`division: must be one of seats, adaptive, static, whole-card, got "fair"`:                   func(c *Config) { c.Division = "fair" },
		`library: must be the absolute path of libnvidia-ml.so.1, or empty, got "libnvidia-ml.so.1"`: func(c *Config) { c.Library = "libnvidia-ml.so.1" },
		`preload: must be the absolute path of libebbtide-cuda.so, got "lib.so"`:                     func(c *Config) { c.Preload = "lib.so" },
		"gate: must be the absolute path of a directory, of at most 97 bytes":                        func(c *Config) { c.Gate = "/" + strings.Repeat("x", 97) },
		`preset: must be adaptive-fair-share or empty, got "fair"`:                                   func(c *Config) { c.Preset = "fair" },
		`over_share: must be one of auto, wait, deny, got "borrow"`:                                  func(c *Config) { c.Over = "borrow" },
		`cuda_library: must be the absolute path of libcuda.so.1, or empty, got "libcuda.so"`:        func(c *Config) { c.CUDA = "libcuda.so" },
		"turn: must be a duration from 1s to 24h, got 0s":                                            func(c *Config) { c.Turn = "0s" },
		`idle: must be a duration like 30s, got "5"`:                                                 func(c *Config) { c.Idle = "5" },
		`state_dir: must be the absolute path of a directory, got "state"`:                           func(c *Config) { c.StateDir = "state" },
		"reserve_mib: must be from 0 to 1048576, got -1":                                             func(c *Config) { c.Reserve = -1 },
	} {
		c := valid()
		change(&c)
		_, err := c.Validate()
		must.ErrorContains(t, err, want)
	}
}

func TestConfig_preset(t *testing.T) {
	c := valid()
	c.Division = "seats"
	s, err := c.Validate()
	must.NoError(t, err)
	must.Eq(t, []any{"seats", false}, []any{s.Division, s.Profiles})
	c.Preset = "adaptive-fair-share"
	s, err = c.Validate()
	must.NoError(t, err)
	must.Eq(t, []any{"adaptive", true}, []any{s.Division, s.Profiles})
}

func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/gpu.md")
	must.NoError(t, err)
	options := Spec().GetObject().GetAttributes()
	must.MapNotEmpty(t, options)
	for name, spec := range options {
		row := fmt.Sprintf("\n* `%s` (`%s`): ", name, spec.GetDefault().GetDefault().GetLiteral().GetValue())
		must.StrContains(t, string(text), row)
	}
}
