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

// Ports are reserved in blocks, with room for an agent's dynamic ports. They are below the range of
// outgoing connections (from 32768), where a free port may be taken at any time.
const (
	firstPort  = 12000
	lastPort   = 32000
	blockPorts = 100
)

// portBlocks reserves blocks with abstract Unix sockets, which all harnesses see and which close
// when the process exits.
type portBlocks struct {
	mu    sync.Mutex
	locks []net.Listener
}

// take reserves a block whose fixed ports are free, and returns its first port.
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

func (p *portBlocks) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.locks {
		_ = l.Close()
	}
	p.locks = nil
}

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
