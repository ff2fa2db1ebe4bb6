// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package wire is the protocol between the gate and a process's preload library, over a Unix
// stream socket. Every message has 48 bytes, little endian, without padding:
//
//	uint32 magic, uint16 type, uint16 flags, uint64 seq, device, bytes, id, arg
//
// so neither side trusts a length from the other. The gate answers the requests of a connection in
// any order; the answer repeats seq.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// Size is the length of a message in bytes.
	Size = 48
	// Magic begins each message: "EBT1" in memory.
	Magic = 0x31544245
	// Version is the protocol version.
	Version = 1
	// MaxOpen is how many unanswered requests a client may have.
	MaxOpen = 64
)

// ErrBad is wrapped by every error about a received message.
var ErrBad = errors.New("bad message")

// Type is the type of a message.
type Type uint16

// Messages of the client. Only the first three and Info are answered.
const (
	// Hello: Arg is the version, ID the pid as the process sees it. Answer: Welcome.
	Hello Type = 1
	// Attach: ID and Arg are the GPU's UUID. Answer: Attached.
	Attach Type = 2
	// Request: Bytes are needed within Arg milliseconds. Answer: Grant.
	Request Type = 3
	// Return: Bytes of its holdings are released.
	Return Type = 6
	// Info asks for Figures.
	Info Type = 7
	// Holds: the process has held Bytes since before this connection.
	Holds Type = 8
	// Pinned: the process cannot be parked. Arg is the reason.
	Pinned Type = 9
	// Paused: no work is submitted, and all submitted work is done.
	Paused Type = 10
	// Active: work was submitted since the last Active, or waits for the end of a pause.
	Active Type = 11
	// Full: the driver refused memory of Device that was granted. The client has returned the
	// grant and is about to request it again.
	Full Type = 12
)

// Messages of the gate.
const (
	// Welcome: Arg is the version.
	Welcome Type = 65
	// Attached: Device is the handle, Bytes the card's memory.
	Attached Type = 66
	// Denied: Arg is the Reason.
	Denied Type = 67
	// Grant: Bytes, at least those requested, are held from now on. The client returns what it
	// does not use.
	Grant Type = 68
	// Figures answers Info: Bytes is the container's share, ID what it holds, Arg what is free on
	// the card.
	Figures Type = 69
	// Share: the container's share of Device is now Bytes.
	Share Type = 80
	// Pause: submit no more work, and answer Paused.
	Pause Type = 81
	// Resume ends a pause.
	Resume Type = 82
	// Recall: a request waits for memory of Device; return what is unused.
	Recall Type = 83
)

// FlagCredit, of a Request: more than Bytes is welcome, for later allocations. Flag 2 has no
// meaning, but older libraries set it.
const FlagCredit uint16 = 1

// Reason is why a request is denied.
type Reason uint64

const (
	BadVersion    Reason = 1
	UnknownDevice Reason = 2
	NoMemory      Reason = 3 // the caller gets CUDA_ERROR_OUT_OF_MEMORY
	TooLong       Reason = 4 // it has waited as long as allowed
	BadMessage    Reason = 5 // the connection is closed
)

// Reasons of Pinned.
const (
	PinnedManaged   = 1 // managed memory
	PinnedIPC       = 2
	PinnedMPS       = 3
	PinnedExternal  = 4 // external memory
	PinnedUnhooked  = 5 // the driver has allocation functions that the library does not hook
	PinnedMulticast = 6 // multicast objects
)

// WhyPinned returns the text of a reason of Pinned.
func WhyPinned(reason uint64) string {
	switch reason {
	case PinnedManaged:
		return "it uses managed memory"
	case PinnedIPC:
		return "it shares memory with other processes (CUDA IPC)"
	case PinnedMPS:
		return "it runs under MPS"
	case PinnedExternal:
		return "it uses external memory"
	case PinnedUnhooked:
		return "the driver is newer than Ebbtide: it may take memory without asking"
	case PinnedMulticast:
		return "it uses multicast objects, as NCCL does (NCCL_NVLS_ENABLE=0 turns them off)"
	}
	return ""
}

// Message is a message. Its type determines the meaning of Flags, ID and Arg.
type Message struct {
	Type   Type
	Flags  uint16
	Seq    uint64
	Device uint64
	Bytes  uint64
	ID     uint64
	Arg    uint64
}

// Append appends the 48 bytes of m to b.
func (m Message) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, Magic)
	b = le.AppendUint16(b, uint16(m.Type))
	b = le.AppendUint16(b, m.Flags)
	for _, v := range [...]uint64{m.Seq, m.Device, m.Bytes, m.ID, m.Arg} {
		b = le.AppendUint64(b, v)
	}
	return b
}

// Decode decodes a message. The error wraps ErrBad.
func Decode(b []byte) (Message, error) {
	le := binary.LittleEndian
	if len(b) != Size {
		return Message{}, fmt.Errorf("%w: %d bytes instead of %d", ErrBad, len(b), Size)
	}
	if magic := le.Uint32(b); magic != Magic {
		return Message{}, fmt.Errorf("%w: wrong magic %#x", ErrBad, magic)
	}
	m := Message{
		Type:   Type(le.Uint16(b[4:])),
		Flags:  le.Uint16(b[6:]),
		Seq:    le.Uint64(b[8:]),
		Device: le.Uint64(b[16:]),
		Bytes:  le.Uint64(b[24:]),
		ID:     le.Uint64(b[32:]),
		Arg:    le.Uint64(b[40:]),
	}
	if !m.Type.fromClient() && !m.Type.fromGate() {
		return Message{}, fmt.Errorf("%w: unknown type %d", ErrBad, m.Type)
	}
	return m, nil
}

// Read reads a message. Between two messages the end of the stream is io.EOF, within one
// io.ErrUnexpectedEOF.
func Read(r io.Reader) (Message, error) {
	var b [Size]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Message{}, err
	}
	return Decode(b[:])
}

func (t Type) fromClient() bool { return t >= Hello && t <= Request || t >= Return && t <= Full }

func (t Type) fromGate() bool { return t >= Welcome && t <= Figures || t >= Share && t <= Recall }

func (t Type) answered() bool {
	return t == Hello || t == Attach || t == Request || t == Info
}

// CheckClient checks that a client may send such a message at all. The error wraps ErrBad.
func (m Message) CheckClient() error {
	switch {
	case !m.Type.fromClient():
		return fmt.Errorf("%w: type %d is sent by the gate only", ErrBad, m.Type)
	case m.Type.answered() && m.Seq == 0:
		return fmt.Errorf("%w: type %d without seq", ErrBad, m.Type)
	case m.Type == Request && m.Bytes == 0:
		return fmt.Errorf("%w: a request of 0 bytes", ErrBad)
	case m.Type == Pinned && (m.Arg < PinnedManaged || m.Arg > PinnedMulticast):
		return fmt.Errorf("%w: pinned with unknown reason %d", ErrBad, m.Arg)
	}
	return nil
}
