// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/drivers/docker/docklog"
	"github.com/hashicorp/nomad/plugins/base"
	"github.com/shoenig/test/must"
)

// helper starts this program, which becomes a helper of Nomad's drivers, with the pipe of a plugin
// that has died as its standard error.
func helper(t *testing.T, args ...string) (*exec.Cmd, io.Reader) {
	t.Helper()
	r, w, err := os.Pipe()
	must.NoError(t, err)
	must.NoError(t, r.Close())
	defer w.Close()
	self, err := os.Executable()
	must.NoError(t, err)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), base.Handshake.MagicCookieKey+"="+base.Handshake.MagicCookieValue)
	cmd.Stderr = w
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	return cmd, out
}

// The helpers survive writing to a dead plugin's pipe, as in Nomad 2.0.0: an executor would take its
// task with it.
func TestHelpersSurviveThePlugin(t *testing.T) {
	cmd, out := helper(t, docklog.PluginName)
	line, err := bufio.NewReader(out).ReadString('\n') // after a line of its log
	must.NoError(t, err)
	must.StrContains(t, line, "grpc")
	must.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()

	cmd, _ = helper(t, "executor") // logs that its configuration is missing
	must.Error(t, cmd.Wait())
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	must.Eq(t, 1, status.ExitStatus(), must.Sprint("ended by signal: ", status.Signal()))
}
