// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package fairshare

import (
	"maps"
	"net/url"
	"slices"
	"strings"
)

// Job is a job of the window.
type Job struct {
	// Properties are the known properties of the job, by name; none is named Count.
	Properties map[string]Value
}

// Value is a job's value of a property.
type Value struct {
	// Name is the value: "alice", "20M"; "" if the job has none.
	Name string
	// Score is the memory demand of jobs with this value; 0 if unknown. Only the order counts.
	Score float64
}

// Key returns the ID of a job's group, "user=alice,size=20M", by the properties that form groups,
// as far as the job has them.
func Key(job Job, by []string) string {
	var parts []string
	for _, name := range by {
		if v := job.Properties[name]; v.Name != "" {
			parts = append(parts, url.QueryEscape(name)+"="+url.QueryEscape(v.Name))
		}
	}
	if len(parts) == 0 {
		return "all"
	}
	return strings.Join(parts, ",")
}

// Window groups the jobs of the window (Algorithm 1, line 2), by the properties that form groups,
// usually the user. Groups are sorted by ID.
//
// A group has the properties on which its jobs agree; others are left out, like the input size of
// groups 3 and 4 in figure 11. The rank of a value is its place among the values of the property
// sorted by score, from 1; equal scores have equal ranks. The score of a value is the greatest of
// its jobs'.
func Window(jobs []Job, by []string) []Group {
	scores := make(map[string]map[string]float64) // by property and value
	groups := make(map[string]Group)
	for _, job := range jobs {
		key := Key(job, by)
		g, old := groups[key]
		if !old {
			g = Group{ID: key, Properties: make(map[string]Property)}
			for name, v := range job.Properties {
				g.Properties[name] = Property{Value: v.Name}
			}
		}
		g.Jobs++
		groups[key] = g
		maps.DeleteFunc(g.Properties, func(name string, p Property) bool {
			return p.Value == "" || p.Value != job.Properties[name].Name
		})
		for name, v := range job.Properties {
			if scores[name] == nil {
				scores[name] = make(map[string]float64)
			}
			scores[name][v.Name] = max(scores[name][v.Name], v.Score)
		}
	}
	out := slices.SortedFunc(maps.Values(groups), func(a, b Group) int { return strings.Compare(a.ID, b.ID) })
	ranks := make(map[string]map[string]int)
	for name, of := range scores {
		delete(of, "")
		ranks[name] = rank(of)
	}
	for _, g := range out {
		for name, p := range g.Properties {
			p.Rank = ranks[name][p.Value]
			g.Properties[name] = p
		}
	}
	return out
}

func rank(scores map[string]float64) map[string]int {
	order := slices.Compact(slices.Sorted(maps.Values(scores)))
	ranks := make(map[string]int, len(scores))
	for name, score := range scores {
		place, _ := slices.BinarySearch(order, score)
		ranks[name] = place + 1
	}
	return ranks
}
