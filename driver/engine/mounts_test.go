// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"
)

// No syntax mounts the private directory into a container; other mounts are left to
// Nomad's driver.
func TestPrepareRefusesThePrivateDirectory(t *testing.T) {
	prepare := func(config map[string]any) error {
		cfg := &drivers.TaskConfig{Name: "train", AllocDir: "/nomad/alloc/a1"}
		must.NoError(t, cfg.EncodeConcreteDriverConfig(config))
		_, err := new(DockerEngine).Prepare(t.Context(), cfg)
		return err
	}
	for source, refused := range map[string]bool{
		"..": true, "../": true, "local/../..": true, "/nomad/alloc/a1": true,
		"../.ebbtide": true, "../.ebbtide/train.state": true, "/nomad/alloc/a1/.ebbtide/": true,
		".": false, "local": false, "../alloc": false, "../.ebbtides": false, "/": false, "/data": false,
	} {
		for kind, config := range map[string]map[string]any{
			"volumes": {"volumes": []string{source + ":/x:ro"}},
			"mount":   {"mount": []map[string]any{{"type": "bind", "source": source, "target": "/x"}}},
			"mounts":  {"mounts": []map[string]any{{"type": "bind", "source": source, "target": "/x"}}},
		} {
			if err := prepare(config); refused {
				must.ErrorContains(t, err, "would expose the allocation's private directory", must.Sprint(kind, source))
			} else {
				must.NoError(t, err, must.Sprint(kind, source))
			}
		}
	}
	must.NoError(t, prepare(map[string]any{"mount": []map[string]any{{"type": "volume", "source": "..", "target": "/x"}}}))
	must.NoError(t, prepare(map[string]any{"volume_driver": "nfs", "volumes": []string{"..:/x"}}))
}
