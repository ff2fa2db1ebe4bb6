// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package source opens the configured source of a task's progress.
package source

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/ebbtide/ebbtide/driver/progress"
	"github.com/ebbtide/ebbtide/driver/progress/file"
	"github.com/ebbtide/ebbtide/driver/progress/prometheus"
	"github.com/ebbtide/ebbtide/driver/progress/tensorboard"
	"github.com/ebbtide/ebbtide/driver/taskfs"
)

// Task has a task's directories on the host.
type Task struct {
	Name     string
	LogDir   string            // Nomad's log files of the allocation
	LocalDir string            // the task's own (NOMAD_TASK_DIR)
	AllocDir string            // the allocation's shared one (NOMAD_ALLOC_DIR)
	Reach    *prometheus.Reach // allowed addresses of its metrics endpoint; nil allows none
}

func Open(cfg progress.Config, t Task) (progress.Source, error) {
	src, err := open(cfg, t)
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", orOutput(Where(cfg)), err)
	}
	if cfg.Scale != 0 && cfg.Scale != 1 {
		src = scaled{src, cfg.Scale}
	}
	return src, nil
}

func open(cfg progress.Config, t Task) (progress.Source, error) {
	switch {
	case cfg.File != "":
		return named(cfg.File, t, func(root *taskfs.Dir, path string) (progress.Source, error) {
			return file.Open(root, path, cfg.Format, cfg)
		})
	case cfg.TensorBoard != "":
		return named(cfg.TensorBoard, t, func(root *taskfs.Dir, path string) (progress.Source, error) {
			return tensorboard.Open(root, path, cfg)
		})
	case cfg.Prometheus != "":
		return prometheus.Open(cfg.Prometheus, cfg, prometheus.Options{Reach: t.Reach, Labels: cfg.Labels, Quantile: cfg.Quantile, Step: cfg.Step, Total: cfg.Total})
	}
	parser, err := progress.NewParser(cfg)
	if err != nil {
		return nil, err
	}
	root, dir := filepath.Split(t.LogDir)
	return beneath(root, "", func(root *taskfs.Dir) (progress.Source, error) {
		return progress.NewLogs(root, dir, t.Name, parser), nil
	})
}

// Check reports whether a valid configuration's source is allowed, as far as known
// before the task runs.
func Check(cfg progress.Config, reach *prometheus.Reach) error {
	if cfg.Prometheus == "" {
		return nil
	}
	u, err := url.Parse(cfg.Prometheus)
	if err != nil {
		return nil // invalid
	}
	if err := reach.Check(u); err != nil {
		return &progress.FieldError{Field: "prometheus", Value: u.Host, Problem: err.Error()}
	}
	return nil
}

// Where describes a source for display; "" is the task's output.
func Where(cfg progress.Config) string {
	switch {
	case cfg.File != "":
		return "the file " + cfg.File
	case cfg.TensorBoard != "":
		return "TensorBoard's files in " + cfg.TensorBoard
	case cfg.Prometheus != "":
		if u, err := url.Parse(cfg.Prometheus); err == nil {
			return "the endpoint " + u.Scheme + "://" + u.Host + u.Path
		}
		return "the endpoint"
	}
	return ""
}

func orOutput(where string) string {
	if where == "" {
		return "the task's output"
	}
	return where
}

func named(name string, t Task, open func(*taskfs.Dir, string) (progress.Source, error)) (progress.Source, error) {
	root, path, ok := progress.SplitPath(name)
	if !ok {
		return nil, fmt.Errorf("%q is not beneath /local or /alloc", name)
	}
	host := t.LocalDir
	if root == progress.RootAlloc {
		host = t.AllocDir
	}
	base, dir := filepath.Split(host)
	return beneath(base, dir, func(root *taskfs.Dir) (progress.Source, error) { return open(root, path) })
}

func beneath(base, dir string, open func(*taskfs.Dir) (progress.Source, error)) (progress.Source, error) {
	root, err := taskfs.Open(base, dir)
	if err != nil {
		return nil, err
	}
	src, err := open(root)
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return rooted{src, root}, nil
}

type rooted struct {
	progress.Source
	root *taskfs.Dir
}

func (r rooted) Close() error { return errors.Join(r.Source.Close(), r.root.Close()) }

type scaled struct {
	progress.Source
	factor float64
}

func (s scaled) Poll(ctx context.Context) ([]progress.Report, error) {
	reports, err := s.Source.Poll(ctx)
	for i := range reports {
		reports[i].Value *= s.factor
	}
	return reports, err
}
