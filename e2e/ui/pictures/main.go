// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Pictures serves Ebbtide's page of a fake cluster, and runs a command against it that takes
// pictures: make screenshots. Without a command it serves until interrupted.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/ebbtide/ebbtide/shim/config"
	"github.com/ebbtide/ebbtide/top/fake"
	"github.com/ebbtide/ebbtide/top/page"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

func run() error {
	tasks := flag.Int("tasks", 60, "tasks of the cluster")
	listen := flag.String("listen", "127.0.0.1:0", "where the page is served")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	nomad := httptest.NewServer(fake.Example(*tasks))
	defer nomad.Close()
	leader := config.Default().Leader
	o := page.Options{
		UI: config.UI{Address: *listen}, Nomad: config.Nomad{Address: nomad.URL}, ShimNamespace: leader.Namespace, ShimPath: leader.Path, Log: hclog.NewNullLogger(),
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	err := page.Serve(ctx, o, func(url string) {
		if flag.NArg() == 0 {
			fmt.Println(url)
			close(ended)
			return
		}
		go func() {
			defer close(ended)
			cmd := exec.CommandContext(ctx, flag.Arg(0), flag.Args()[1:]...)
			cmd.Env = append(os.Environ(), "EBBTIDE_UI="+url)
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it closes its browser
			cmd.WaitDelay = 30 * time.Second
			cancel(cmd.Run())
		}()
	})
	<-ended
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}
