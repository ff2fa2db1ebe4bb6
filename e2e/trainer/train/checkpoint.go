// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package train

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// magic starts a checkpoint. Little-endian: header length (uint32), header (JSON), vectors
// (uint64 length and float64 values each), and the CRC-32 of all before.
const magic = "EBBTRN1\n"

// ErrDamaged means that a file is not a complete checkpoint.
var ErrDamaged = errors.New("not a whole checkpoint")

// Checkpoint is a state and the run's total cost so far.
type Checkpoint struct {
	State
	CPUSeconds  float64
	WallSeconds float64

	// Metric and Value are the reason why the best state was kept.
	Metric string  `json:",omitempty"`
	Value  float64 `json:",omitempty"`
}

// Save replaces path atomically, with syncs of file and directory. A failed save leaves no
// temporary file.
func Save(path string, c Checkpoint) (err error) {
	header, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("failed to encode checkpoint header: %w", err)
	}
	var b bytes.Buffer
	b.Grow(len(magic) + len(header) + 8*(len(c.Params)+len(c.M)+len(c.V)) + 64)
	b.WriteString(magic)
	scratch := binary.LittleEndian.AppendUint32(nil, uint32(len(header)))
	b.Write(scratch)
	b.Write(header)
	for _, vector := range [][]float64{c.Params, c.M, c.V} {
		b.Write(binary.LittleEndian.AppendUint64(scratch[:0], uint64(len(vector))))
		if err := binary.Write(&b, binary.LittleEndian, vector); err != nil {
			return fmt.Errorf("failed to encode checkpoint: %w", err)
		}
	}
	b.Write(binary.LittleEndian.AppendUint32(scratch[:0], crc32.ChecksumIEEE(b.Bytes())))

	// A fixed name, which later saves overwrite.
	temporary := path + ".tmp"
	defer func() {
		if err != nil {
			_ = os.Remove(temporary)
			err = fmt.Errorf("failed to save checkpoint %s: %w", path, err)
		}
	}()
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b.Bytes())
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Load fails with os.ErrNotExist without a file, and with ErrDamaged for a truncated, altered
// or foreign one.
func Load(path string) (Checkpoint, error) {
	var c Checkpoint
	data, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("failed to read checkpoint: %w", err)
	}
	if err := c.decode(data); err != nil {
		return Checkpoint{}, fmt.Errorf("failed to read checkpoint %s: %w: %w", path, ErrDamaged, err)
	}
	return c, nil
}

func (c *Checkpoint) decode(data []byte) error {
	end := len(data) - 4
	if end < len(magic) || string(data[:len(magic)]) != magic {
		return errors.New("it does not begin as one")
	}
	if crc32.ChecksumIEEE(data[:end]) != binary.LittleEndian.Uint32(data[end:]) {
		return errors.New("its checksum is wrong")
	}
	r := bytes.NewReader(data[len(magic):end])
	var headerLen uint32
	if err := binary.Read(r, binary.LittleEndian, &headerLen); err != nil {
		return err
	}
	if int64(headerLen) > int64(r.Len()) {
		return io.ErrUnexpectedEOF
	}
	header := make([]byte, headerLen)
	if _, err := io.ReadFull(r, header); err != nil {
		return err
	}
	if err := json.Unmarshal(header, c); err != nil {
		return err
	}
	for _, vector := range []*[]float64{&c.Params, &c.M, &c.V} {
		var n uint64
		if err := binary.Read(r, binary.LittleEndian, &n); err != nil {
			return err
		}
		if n > uint64(r.Len()/8) {
			return io.ErrUnexpectedEOF
		}
		*vector = make([]float64, n)
		if err := binary.Read(r, binary.LittleEndian, *vector); err != nil {
			return err
		}
	}
	return nil
}
