// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"io"
	"testing"

	"github.com/shoenig/test/must"
)

// The layout is a contract with the preload library, which is written in C.
func TestAppend(t *testing.T) {
	m := Message{Type: Request, Flags: FlagCredit, Seq: 2, Device: 3, Bytes: 4 << 32, ID: 5, Arg: 60000}
	must.Eq(t, "45425431"+"0300"+"0100"+
		"0200000000000000"+"0300000000000000"+"0000000004000000"+"0500000000000000"+"60ea000000000000",
		hex.EncodeToString(m.Append(nil)))
}

func TestRead(t *testing.T) {
	whole := Message{Type: Hello, Seq: 1, Arg: Version}.Append(nil)
	r := bytes.NewReader(append(whole, whole[:20]...))
	m, err := Read(r)
	must.NoError(t, err)
	must.Eq(t, Message{Type: Hello, Seq: 1, Arg: 1}, m)
	_, err = Read(r)
	must.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, err = Read(r)
	must.ErrorIs(t, err, io.EOF)
}

func TestDecode_bad(t *testing.T) {
	good := Message{Type: Info, Seq: 1}.Append(nil)
	for name, change := range map[string]func([]byte) []byte{
		"short":        func(b []byte) []byte { return b[:47] },
		"long":         func(b []byte) []byte { return append(b, 0) },
		"magic":        func(b []byte) []byte { b[0]++; return b },
		"type 0":       func(b []byte) []byte { b[4] = 0; return b },
		"type 4":       func(b []byte) []byte { b[4] = 4; return b },
		"type 5":       func(b []byte) []byte { b[4] = 5; return b },
		"type 13":      func(b []byte) []byte { b[4] = 13; return b },
		"type 64":      func(b []byte) []byte { b[4] = 64; return b },
		"type 70":      func(b []byte) []byte { b[4] = 70; return b },
		"type 84":      func(b []byte) []byte { b[4] = 84; return b },
		"type 263 = 7": func(b []byte) []byte { b[5] = 1; return b },
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode(change(bytes.Clone(good)))
			must.ErrorIs(t, err, ErrBad)
		})
	}
}

func TestCheckClient(t *testing.T) {
	for name, m := range map[string]Message{
		"the gate's":          {Type: Grant, Seq: 1},
		"hello without seq":   {Type: Hello},
		"request without seq": {Type: Request, Bytes: 1},
		"request for nothing": {Type: Request, Seq: 1},
		"pinned for nothing":  {Type: Pinned},
		"pinned for 7":        {Type: Pinned, Arg: 7},
	} {
		t.Run(name, func(t *testing.T) { must.ErrorIs(t, m.CheckClient(), ErrBad) })
	}
	for reason := uint64(PinnedManaged); reason <= PinnedMulticast; reason++ {
		must.NoError(t, Message{Type: Pinned, Arg: reason}.CheckClient())
		must.NotEq(t, "", WhyPinned(reason))
	}
	must.NoError(t, Message{Type: Return, Bytes: 1}.CheckClient())
	must.NoError(t, Message{Type: Request, Seq: 1, Bytes: 1<<64 - 1}.CheckClient())
}

func TestUUID(t *testing.T) {
	const s = "GPU-01020304-0506-0708-090a-0b0c0d0e0fff"
	u, err := ParseUUID(s)
	must.NoError(t, err)
	must.Eq(t, s, u.String())
	id, arg := u.Words()
	must.Eq(t, 0x0807060504030201, id)
	must.Eq(t, u, Message{ID: id, Arg: arg}.UUID())
	for _, bad := range []string{"", "GPU-", s[:39], s + "0", s[4:], "MIG-" + s[4:], "GPU-0102030405060708090a0b0c0d0e0fff", "GPU-x1020304-0506-0708-090a-0b0c0d0e0fff"} {
		_, err := ParseUUID(bad)
		must.ErrorContains(t, err, "must have the form")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Message{Type: Request, Seq: 1, Bytes: 1 << 30, Arg: 60000}.Append(nil))
	f.Add(Message{Type: Pause}.Append(nil))
	f.Add([]byte("EBT1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil {
			must.ErrorIs(t, err, ErrBad)
			return
		}
		must.Eq(t, b, m.Append(nil))
		if err := m.CheckClient(); err != nil {
			must.ErrorIs(t, err, ErrBad)
		}
	})
}
