// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package jsonfile replaces files of JSON as a whole: a reader sees the old or the new content.
package jsonfile

import (
	"encoding/json"
	"errors"
	"os"
)

// Unfinished is the suffix of a file that is being written. One that is left behind is overwritten by
// the next writer.
const Unfinished = ".new"

// Replace replaces a file, which only its owner can read, by a value. There is one writer at a time.
// durable: afterwards it survives a crash of the machine; otherwise its name may, without its content.
func Replace(path string, v any, durable bool) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := path + Unfinished
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil && durable {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}
