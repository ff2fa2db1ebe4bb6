// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package gate

import (
	"fmt"
	"net"
	"time"

	"github.com/ebbtide/ebbtide/device/gate/wire"
)

type client struct {
	conn   net.Conn
	seq    uint64
	device uint64
	limit  uint64             // of the last Limit
	on     func(wire.Message) // called with the gate's unsolicited messages, if not nil
}

func dial(path string, card wire.UUID) (*client, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn}
	if _, err := c.ask(wire.Message{Type: wire.Hello, Arg: wire.Version}); err != nil {
		conn.Close()
		return nil, err
	}
	id, arg := card.Words()
	m, err := c.ask(wire.Message{Type: wire.Attach, ID: id, Arg: arg})
	if err != nil {
		conn.Close()
		return nil, err
	}
	c.device = m.Device
	return c, nil
}

func (c *client) send(m wire.Message) error {
	_, err := c.conn.Write(m.Append(nil))
	return err
}

func (c *client) ask(m wire.Message) (wire.Message, error) {
	c.seq++
	m.Seq = c.seq
	if err := c.send(m); err != nil {
		return wire.Message{}, err
	}
	for {
		a, err := wire.Read(c.conn)
		switch {
		case err != nil:
			return a, err
		case a.Type == wire.Share:
			c.limit = a.Bytes
		case a.Type == wire.Pause || a.Type == wire.Resume || a.Type == wire.Recall:
			if c.on != nil {
				c.on(a)
			}
		case a.Seq != m.Seq:
			return a, fmt.Errorf("an answer to %d: %+v", a.Seq, a)
		case a.Type == wire.Denied:
			return a, denied(a.Arg)
		default:
			return a, nil
		}
	}
}

func (c *client) take(bytes uint64, wait time.Duration) error {
	_, err := c.ask(wire.Message{Type: wire.Request, Device: c.device, Bytes: bytes, Arg: uint64(wait.Milliseconds())})
	return err
}

func (c *client) giveBack(bytes uint64) error {
	return c.send(wire.Message{Type: wire.Return, Device: c.device, Bytes: bytes})
}

func (c *client) info() (wire.Message, error) {
	return c.ask(wire.Message{Type: wire.Info, Device: c.device})
}

type denied wire.Reason

func (r denied) Error() string { return fmt.Sprintf("denied for reason %d", uint64(r)) }
