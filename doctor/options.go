// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ebbtide/ebbtide/driver/growth"
	"github.com/ebbtide/ebbtide/driver/limits"
	"github.com/ebbtide/ebbtide/driver/policy/flowcon"
	"github.com/ebbtide/ebbtide/driver/policy/policies"
)

const (
	engineDocker = "docker"
	engineExec   = "exec"
)

// rules says of each of Ebbtide's own options what is allowed. The driver itself
// has the last word (driver.Config); it cannot be asked here, because it links
// Nomad's drivers.
func rules() map[string]func(any) error {
	oneOf := func(allowed ...string) func(any) error {
		return func(v any) error {
			if s, ok := v.(string); !ok || !slices.Contains(allowed, s) {
				return fmt.Errorf("must be one of %s, got %s", strings.Join(allowed, ", "), quote(v))
			}
			return nil
		}
	}
	number := func(want string, ok func(float64) bool) func(any) error {
		return func(v any) error {
			if x, isNumber := toNumber(v); !isNumber || !ok(x) {
				return fmt.Errorf("must be %s, got %s", want, quote(v))
			}
			return nil
		}
	}
	duration := func(least, most time.Duration) func(any) error {
		return func(v any) error {
			s, _ := v.(string)
			if d, err := time.ParseDuration(s); err != nil || d < least || d > most {
				return fmt.Errorf("must be a duration from %s to %s, got %s", least, most, quote(v))
			}
			return nil
		}
	}
	return map[string]func(any) error{
		"engine":    oneOf(engineDocker, engineExec),
		"policy":    oneOf(policies.Names()...),
		"mode":      oneOf(string(limits.ModeWeight), string(limits.ModeQuota)),
		"estimator": oneOf(growth.KindRobust, growth.KindPublished),
		"alpha": func(v any) error {
			s, ok := v.(string)
			if x, isNumber := toNumber(v); !ok && isNumber { // HCL turns a number into a string
				s = strconv.FormatFloat(x, 'g', -1, 64)
			}
			_, err := flowcon.ParseAlpha(s)
			return err
		},
		"beta":              number("from 1 to 100", func(x float64) bool { return x >= 1 && x <= 100 }),
		"pool_cores":        number("≥ 0 cores", func(x float64) bool { return x >= 0 }),
		"quota_min_cores":   number("> 0 cores", func(x float64) bool { return x > 0 }),
		"interval":          duration(time.Second, time.Hour),
		"max_interval":      duration(time.Second, 24*time.Hour),
		"no_progress_after": duration(time.Second, 24*time.Hour),
		"docker_timeout":    duration(time.Second, 5*time.Minute),
		"docker_outage":     duration(0, 24*time.Hour),
	}
}

// checkOwn returns what is wrong in Ebbtide's own options. blocks are the inner
// blocks that may stand beside them.
func checkOwn(own Block, blocks ...string) (wrong []string) {
	rules := rules()
	for _, name := range own.names() {
		check, ok := rules[name]
		switch {
		case ok:
			if err := check(own[name]); err != nil {
				wrong = append(wrong, fmt.Sprintf("%s: %v", name, err))
			}
		case !slices.Contains(blocks, name):
			wrong = append(wrong, fmt.Sprintf("%s: is not an option of Ebbtide; allowed are %s",
				clean(name), strings.Join(append(sorted(rules), blocks...), ", ")))
		}
	}
	least, err1 := time.ParseDuration(own.text("interval", "20s"))
	most, err2 := time.ParseDuration(own.text("max_interval", "5m"))
	if err1 == nil && err2 == nil && least > most {
		wrong = append(wrong, fmt.Sprintf("max_interval: must not be less than interval (%s), got %s", least, most))
	}
	return wrong
}

func sorted[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func toNumber(v any) (float64, bool) {
	switch v := v.(type) {
	case int:
		return float64(v), true
	case float64:
		return v, true
	case json.Number:
		x, err := v.Float64()
		return x, err == nil
	case string:
		x, err := strconv.ParseFloat(v, 64)
		return x, err == nil
	}
	return 0, false
}

// quote shows the value of one of Ebbtide's own options.
func quote(v any) string {
	if s, ok := v.(string); ok {
		return strconv.Quote(clean(s))
	}
	if x, ok := toNumber(v); ok {
		return strconv.FormatFloat(x, 'g', -1, 64)
	}
	if b, ok := v.(bool); ok {
		return strconv.FormatBool(b)
	}
	return "something else"
}
