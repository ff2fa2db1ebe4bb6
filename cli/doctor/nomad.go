// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ebbtide/ebbtide/driver/config"
)

// nomadRead are the versions of Nomad that Ebbtide is tested with, by series, each the last whose
// changelog has been read for changes of the drivers (docs/operations.md).
var nomadRead = map[string]int{"1.11": 9, "2.0": 5}

// openEntries are those of Nomad's changelog that are open in docs/operations.md: fixed in an agent,
// but not in the drivers that the plugin contains.
var openEntries = []struct {
	entry   string
	fixed   map[string]int // the first patch version, by series
	matters func(*Snapshot) bool
	effect  string
}{{
	"GH-28272", map[string]int{"1.11": 9, "2.0": 5},
	func(s *Snapshot) bool {
		return s.engine() == config.EngineDocker && s.API.Node != nil && s.API.Node.Cores
	},
	"a starting docker task uses the cores of tasks with `cores` for up to 3 s, and longer if Docker has a cgroup-parent",
}}

// splitVersion returns the series and the patch version of "2.0.5"; "" if it is none.
func splitVersion(v string) (series string, patch int) {
	var major, minor int
	if n, _ := fmt.Sscanf(v, "%d.%d.%d", &major, &minor, &patch); n < 2 {
		return "", 0
	}
	return fmt.Sprintf("%d.%d", major, minor), patch
}

// linkedNomad returns the version of the drivers in the plugin, "" if unknown.
func (s *Snapshot) linkedNomad() string {
	if s.Host != nil {
		for _, f := range s.Host.Plugins {
			if f.Ours {
				return clean(f.Nomad)
			}
		}
	}
	_, attrs := s.onNode()
	return attrs["nomad_version"]
}

func checkVersion(s *Snapshot) []Finding {
	const name = "nomad version"
	v := s.API.Version
	if v == "" && s.API.Node != nil {
		v = s.API.Node.Attributes["nomad.version"]
	}
	v = clean(v)
	linked := s.linkedNomad()
	contains := "; the plugin contains the drivers of Nomad " + linked
	if linked == "" {
		contains = "; the version of the drivers in the plugin is unknown"
	}
	if v == "" {
		return skipped(name, "unknown: the agent was not queried"+contains)
	}
	series, patch := splitVersion(v)
	read, tested := nomadRead[series]
	var lacks []string
	linkedSeries, linkedPatch := splitVersion(linked)
	for _, o := range openEntries {
		fixed, ok := o.fixed[series]
		there, known := o.fixed[linkedSeries]
		if ok && patch >= fixed && known && linkedPatch < there && o.matters(s) {
			lacks = append(lacks, o.effect+" ("+o.entry+")")
		}
	}
	switch {
	case !tested:
		known := strings.Join(slices.Sorted(maps.Keys(nomadRead)), " or ")
		return one(name, Warn, fmt.Sprintf("%s; Ebbtide is tested with %s%s", v, known, contains),
			"test it on one node first, or use Nomad "+known, "")
	case len(lacks) > 0:
		return one(name, Warn, v+contains+", which are older: "+strings.Join(lacks, "; "), "see \"Nomad's versions\" in docs/operations.md", "")
	case patch > read && linked != v:
		return one(name, Warn, fmt.Sprintf("%s%s; Nomad's changelog has been read up to %s.%d", v, contains, series, read),
			"look for changes of docker, exec and drivers in Nomad's changelog, or use a later Ebbtide", "")
	}
	return okay(name, "%s%s", v, contains)
}
