// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
)

// Ports are handed out in blocks, so that an agent has a range for its tasks'
// dynamic ports as well. The blocks lie below the kernel's range for outgoing
// connections (32768 up), where a port that is free may not be free a moment later.
const (
	firstPort  = 12000
	lastPort   = 32000
	blockPorts = 100
)

// portBlocks reserves blocks of ports for this process. A reservation is an
// abstract Unix socket: visible to every harness on the machine, and gone with
// the process whatever its end.
type portBlocks struct {
	mu    sync.Mutex
	locks []net.Listener
}

// take reserves a block in which every port that is needed at once is free and
// returns its first port.
func (p *portBlocks) take() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for first := firstPort; first+blockPorts <= lastPort; first += blockPorts {
		lock, err := net.Listen("unix", "@ebbtide-harness-ports-"+strconv.Itoa(first))
		if err != nil {
			continue
		}
		if !allFree(first, blockPorts) {
			_ = lock.Close()
			continue
		}
		p.locks = append(p.locks, lock)
		return first, nil
	}
	return 0, errors.New("no free block of ports on 127.0.0.1 between " + strconv.Itoa(firstPort) + " and " + strconv.Itoa(lastPort))
}

// release gives all blocks back.
func (p *portBlocks) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.locks {
		_ = l.Close()
	}
	p.locks = nil
}

// allFree says whether nobody listens on any of these ports of the loopback.
func allFree(first, n int) bool {
	for port := first; port < first+n; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}
