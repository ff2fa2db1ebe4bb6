// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// applets are busybox's commands for tasks and exec sessions.
var applets = []string{
	"sh", "cat", "sleep", "env", "kill", "ls", "nc", "dd", "id", "ps", "head", "tail",
	"wc", "echo", "date", "hostname", "stat", "ln", "mkdir", "rm", "mv", "touch", "mount", "tty", "tr", "true", "false", "wget", "httpd", "seq", "yes", "od", "readlink", "grep", "chmod", "awk", "usleep",
}

// Rootfs creates a small root filesystem for both engines: the trainer, a static busybox, and a
// minimal /etc. It is Docker's image (ImportImages) and exec's chroot (ChrootEnv).
func (h *Harness) Rootfs(ctx context.Context) (string, error) {
	trainer, err := h.Tools.Trainer(ctx)
	if err != nil {
		return "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	root := filepath.Join(h.Dir, "rootfs")
	if exists(root) {
		return root, nil
	}
	tmp := root + ".tmp"
	for _, dir := range []string{"bin", "etc", "tmp"} {
		if err := os.MkdirAll(filepath.Join(tmp, dir), 0o755); err != nil {
			return "", fmt.Errorf("making the root filesystem: %w", err)
		}
	}
	if err := os.Chmod(filepath.Join(tmp, "tmp"), 0o1777); err != nil {
		return "", err
	}
	// Copies, not links: exec hard-links its chroot, and a task could write to the originals.
	if err := copyFile(trainer, filepath.Join(tmp, "bin", "trainer")); err != nil {
		return "", err
	}
	if busybox, err := Look("busybox"); err == nil {
		if err := copyFile(busybox, filepath.Join(tmp, "bin", "busybox")); err != nil {
			return "", err
		}
		for _, name := range applets {
			if err := os.Symlink("busybox", filepath.Join(tmp, "bin", name)); err != nil {
				return "", err
			}
		}
	} else {
		h.logf("busybox is missing (Debian: busybox-static): tasks have no shell")
	}
	for name, text := range map[string]string{
		"passwd": "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
		"group":  "root:x:0:\nnogroup:x:65534:\n",
		"hosts":  "127.0.0.1 localhost\n",
	} {
		if err := os.WriteFile(filepath.Join(tmp, "etc", name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	if err := os.Rename(tmp, root); err != nil {
		return "", err
	}
	return root, nil
}

// writeTar archives a directory, with root as owner.
func writeTar(w io.Writer, root string) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		}
		hdr, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		hdr.Name, hdr.Uid, hdr.Gid, hdr.Uname, hdr.Gname = rel, 0, 0, "", ""
		if err := tw.WriteHeader(hdr); err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(tw, f)
		return err
	})
	if err != nil {
		return fmt.Errorf("packing %s: %w", root, err)
	}
	return tw.Close()
}

func linkOrCopy(from, to string) error {
	if err := os.Link(from, to); err == nil {
		return nil
	} else if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EMLINK) {
		return fmt.Errorf("linking %s to %s: %w", from, to, err)
	}
	return copyFile(from, to)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, st.Mode().Perm())
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return fmt.Errorf("copying %s to %s: %w", from, to, err)
	}
	return out.Close()
}
