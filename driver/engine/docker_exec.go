// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package engine

import (
	"context"
	"fmt"
	"io"
	"time"

	containerapi "github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/hashicorp/nomad/plugins/drivers"
)

// Exec runs a command in a task's container until it has exited and all its output has been
// forwarded, or ctx ends.
//
// Nomad's docker driver (1.11.2) polls the command's state and disconnects once it has exited,
// which cuts off buffered output; and it treats a command that Docker has not started yet as exited
// with code 0. Exec waits for the end of the output first, like the docker command.
func (e *DockerEngine) Exec(ctx context.Context, handle *drivers.TaskHandle, opts *drivers.ExecOptions) (*drivers.ExitResult, error) {
	id, err := ContainerID(handle)
	if err != nil {
		return nil, err
	}
	created, err := e.execCreate(ctx, id, opts)
	if err != nil {
		return nil, err
	}
	conn, err := e.client.ContainerExecAttach(ctx, created, containerapi.ExecAttachOptions{Tty: opts.Tty})
	if err != nil {
		return nil, dockerError("attaching to a command in container "+short(id), err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, conn.Close) // interrupts a read
	go e.resize(ctx, created, opts.ResizeCh)
	defer opts.Stdin.Close() // interrupts the copy
	go func() {
		_, _ = io.Copy(conn.Conn, opts.Stdin)
		_ = conn.CloseWrite()
		_, _ = io.Copy(io.Discard, opts.Stdin) // input that the command has not read
	}()

	if opts.Tty {
		_, err = io.Copy(opts.Stdout, conn.Reader)
	} else {
		_, err = stdcopy.StdCopy(opts.Stdout, opts.Stderr, conn.Reader)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("reading the output of a command in container %s: %w", short(id), err)
	}
	return e.execResult(ctx, created)
}

func (e *DockerEngine) execCreate(ctx context.Context, id string, opts *drivers.ExecOptions) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, e.timeout)
	defer cancel()
	exec, err := e.client.ContainerExecCreate(ctx, id, containerapi.ExecOptions{
		AttachStdin:  true,
		AttachStdout: true,
		AttachStderr: true,
		Tty:          opts.Tty,
		Cmd:          opts.Command,
	})
	if err != nil {
		return "", dockerError("preparing a command in container "+short(id), err)
	}
	return exec.ID, nil
}

func (e *DockerEngine) resize(ctx context.Context, exec string, sizes <-chan drivers.TerminalSize) {
	for {
		select {
		case <-ctx.Done():
			return
		case s, ok := <-sizes:
			if !ok {
				return
			}
			// A lost size is corrected by the next one.
			_ = e.client.ContainerExecResize(ctx, exec, containerapi.ResizeOptions{Height: uint(s.Height), Width: uint(s.Width)})
		}
	}
}

// execResult waits for the exit code: the output may end earlier.
func (e *DockerEngine) execResult(ctx context.Context, exec string) (*drivers.ExitResult, error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ictx, cancel := context.WithTimeout(ctx, e.timeout)
		now, err := e.client.ContainerExecInspect(ictx, exec)
		cancel()
		if err != nil {
			return nil, dockerError("asking for the exit code of a command", err)
		}
		if !now.Running {
			return &drivers.ExitResult{ExitCode: now.ExitCode}, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}
