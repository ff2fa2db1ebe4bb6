// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/device/checkpoint/driver"
	"github.com/ebbtide/ebbtide/device/gate"
	"github.com/ebbtide/ebbtide/device/gate/ledger"
	"github.com/ebbtide/ebbtide/device/gate/parking"
	"github.com/ebbtide/ebbtide/device/nvml"
)

const (
	card = ledger.CardID("GPU-1")
	gib  = uint64(1 << 30)
)

type machine struct {
	mu    sync.Mutex
	calls []string // "lock 1"
	procs map[int]*proc
	other uint64 // bytes held by unknown processes
	// fail is called before each call, and may change the machine.
	fail func(call string) error
	// after is called after each successful call.
	after func(call string) error
}

type proc struct {
	start uint64
	state driver.State
	held  uint64 // bytes
	noGPU bool
}

func (m *machine) do(call string, pid int, from, to driver.State) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	call = fmt.Sprintf("%s %d", call, pid)
	m.calls = append(m.calls, call)
	if m.fail != nil {
		if err := m.fail(call); err != nil {
			return fmt.Errorf("%s: %w", call, err)
		}
	}
	p := m.procs[pid]
	if p == nil || p.noGPU {
		return driver.InvalidValue
	}
	if p.state != from {
		return driver.IllegalState
	}
	if from == driver.Checkpointed && m.used()+p.held > 8*gib {
		p.state = driver.Failed
		return driver.OutOfMemory
	}
	p.state = to
	if m.after != nil {
		return m.after(call)
	}
	return nil
}

func (m *machine) State(_ context.Context, pid int) (driver.State, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		if err := m.fail(fmt.Sprintf("state %d", pid)); err != nil {
			return 0, err
		}
	}
	p := m.procs[pid]
	if p == nil || p.noGPU {
		return 0, fmt.Errorf("state: %w", driver.InvalidValue)
	}
	return p.state, nil
}

func (m *machine) Lock(_ context.Context, pid int, timeout time.Duration) error {
	if timeout <= 0 {
		return errors.New("a lock without a time-out")
	}
	return m.do("lock", pid, driver.Running, driver.Locked)
}

func (m *machine) Checkpoint(_ context.Context, pid int) error {
	return m.do("checkpoint", pid, driver.Locked, driver.Checkpointed)
}

func (m *machine) Restore(_ context.Context, pid int) error {
	return m.do("restore", pid, driver.Checkpointed, driver.Locked)
}

func (m *machine) Unlock(_ context.Context, pid int) error {
	return m.do("unlock", pid, driver.Locked, driver.Running)
}

func (m *machine) used() uint64 {
	used := m.other
	for _, p := range m.procs {
		if p.state != driver.Checkpointed {
			used += p.held
		}
	}
	return used
}

func (m *machine) options() Options {
	return Options{
		Driver: m,
		Alive: func(id ledger.ProcessID) bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			p := m.procs[id.PID]
			return p != nil && p.start == id.Start
		},
		Cards: []ledger.CardID{card},
		Held: func(ledger.CardID) (map[int]uint64, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			held := make(map[int]uint64)
			for pid, p := range m.procs {
				if p.state != driver.Checkpointed {
					held[pid] = p.held
				}
			}
			return held, nil
		},
		Free: func(ledger.CardID) (uint64, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return 8*gib - m.used(), nil
		},
		Room: func(map[int]uint64) error { return nil },
		Poll: time.Millisecond, Undo: 300 * time.Millisecond,
	}
}

func (m *machine) states() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []string
	for _, pid := range slices.Sorted(maps.Keys(m.procs)) {
		out = append(out, m.procs[pid].state.String())
	}
	return strings.Join(out, " ")
}

func (m *machine) said() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := strings.Join(m.calls, ", ")
	m.calls = nil
	return s
}

// three has processes 1 and 2 with 3 and 1 GiB, and 3 without CUDA.
func three() *machine {
	return &machine{procs: map[int]*proc{
		1: {start: 11, held: 3 * gib}, 2: {start: 12, held: gib}, 3: {start: 13, noGPU: true},
	}}
}

func ids(pids ...int) (out []ledger.ProcessID) {
	for _, pid := range pids {
		out = append(out, ledger.ProcessID{PID: pid, Start: uint64(10 + pid)})
	}
	return out
}

func once(call string, err error) func(string) error {
	return func(c string) error {
		if c == call {
			defer func() { call = "" }()
			return err
		}
		return nil
	}
}

// always answers all calls with a prefix with an error.
func always(call string, err error) func(string) error {
	return func(c string) error {
		if strings.HasPrefix(c, call) {
			return err
		}
		return nil
	}
}

var errHelper = fmt.Errorf("killed: %w", driver.ErrHelper)

func TestPark(t *testing.T) {
	full := errors.New("the host is full")
	for name, tc := range map[string]struct {
		on     func(*machine, *Options)
		calls  string
		states string // of 1, 2 and 3
		freed  uint64
		err    error // nil: none
		lost   bool
		unsure bool
	}{
		"all is well": {
			calls: "lock 1, lock 2, checkpoint 1, checkpoint 2", states: "checkpointed checkpointed running", freed: 4 * gib,
		},
		"a lock times out": {
			on:    func(m *machine, _ *Options) { m.fail = always("lock 2", driver.NotReady) },
			calls: "lock 1, lock 2, unlock 1", states: "running running running", err: ErrBusy,
		},
		"the helper ends in a lock, which was done": {
			on:    func(m *machine, _ *Options) { m.after = once("lock 2", errHelper) },
			calls: "lock 1, lock 2, unlock 1, unlock 2", states: "running running running", err: driver.ErrHelper,
		},
		"no host memory": {
			on:    func(_ *machine, o *Options) { o.Room = func(map[int]uint64) error { return full } },
			calls: "lock 1, lock 2, unlock 1, unlock 2", states: "running running running", err: full,
		},
		"the cards give no answer": {
			on: func(_ *machine, o *Options) {
				o.Held = func(ledger.CardID) (map[int]uint64, error) { return nil, full }
			},
			states: "running running running", err: full,
		},
		"managed memory": {
			on:    func(m *machine, _ *Options) { m.fail = always("checkpoint 2", driver.NotSupported) },
			calls: "lock 1, lock 2, checkpoint 1, checkpoint 2, restore 1, unlock 2, unlock 1", states: "running running running", err: ErrNotEvictable,
		},
		"a lock that is not supported": {
			on:    func(m *machine, _ *Options) { m.fail = always("lock 1", driver.NotSupported) },
			calls: "lock 1", states: "running running running", err: ErrNotEvictable,
		},
		"an RDMA device": {
			on:     func(_ *machine, o *Options) { o.RDMA = func(pid int) bool { return pid == 2 } },
			states: "running running running", err: ErrNotEvictable,
		},
		"a checkpoint fails": {
			on:    func(m *machine, _ *Options) { m.fail = always("checkpoint 2", driver.Result(999)) },
			calls: "lock 1, lock 2, checkpoint 1, checkpoint 2, restore 1, unlock 2, unlock 1", states: "running running running", err: driver.Result(999),
		},
		"a checkpoint breaks a process": {
			on: func(m *machine, _ *Options) {
				m.fail = func(call string) error {
					if call == "checkpoint 2" {
						m.procs[2].state = driver.Failed
						return driver.Result(999)
					}
					return nil
				}
			},
			calls: "lock 1, lock 2, checkpoint 1, checkpoint 2, restore 1, unlock 1", states: "running failed running", err: driver.Result(999), lost: true,
		},
		"a checkpoint fails, and the way back": {
			on: func(m *machine, _ *Options) {
				m.fail = func(call string) error {
					return errors.Join(always("checkpoint 2", driver.Result(999))(call), always("restore", driver.Result(304))(call))
				}
			},
			calls: "lock 1, lock 2, checkpoint 1, checkpoint 2, restore 1, unlock 2", states: "checkpointed running running", err: driver.Result(999), unsure: true,
		},
		"the helper ends in a checkpoint, which was done": {
			on:    func(m *machine, _ *Options) { m.after = once("checkpoint 2", errHelper) },
			calls: "lock 1, lock 2, checkpoint 1, checkpoint 2, restore 1, restore 2, unlock 1, unlock 2", states: "running running running", err: driver.ErrHelper,
		},
		"the helper ends in a checkpoint, and CUDA continues it": {
			on: func(m *machine, _ *Options) {
				m.fail = func(call string) error {
					if call == "checkpoint 2" {
						m.procs[2].state = 4
						time.AfterFunc(5*time.Millisecond, func() {
							m.mu.Lock()
							defer m.mu.Unlock()
							m.procs[2].state = driver.Checkpointed
						})
						return errHelper
					}
					return nil
				}
			},
			calls: "lock 1, lock 2, checkpoint 1, checkpoint 2, restore 1, unlock 1, restore 2, unlock 2", states: "running running running", err: driver.ErrHelper,
		},
		"the helper is gone for good": {
			on: func(m *machine, _ *Options) {
				m.fail = func(call string) error {
					if strings.HasPrefix(call, "checkpoint") {
						m.fail = always("", errHelper)
						return errHelper
					}
					return nil
				}
			},
			calls: "lock 1, lock 2, checkpoint 1", states: "locked locked running", err: driver.ErrHelper, unsure: true,
		},
		"unlocking fails": {
			on: func(m *machine, _ *Options) {
				m.fail = func(call string) error {
					return errors.Join(always("lock 2", driver.NotReady)(call), always("unlock", driver.Result(999))(call))
				}
			},
			calls: "lock 1, lock 2, unlock 1, unlock 1, unlock 1", states: "locked running running", err: ErrBusy, unsure: true,
		},
		"CUDA does not answer for one while another is locked": {
			on: func(m *machine, _ *Options) {
				m.fail = func(call string) error {
					if strings.HasSuffix(call, " 2") && m.procs[1].state != driver.Running {
						return driver.ErrStuck
					}
					return nil
				}
			},
			calls: "lock 1, lock 2, unlock 1", states: "running running running", err: ErrNotEvictable,
		},
		"CUDA does not know one that holds memory": {
			on:     func(m *machine, _ *Options) { m.procs[2].noGPU = true },
			states: "running running running", err: ErrNotEvictable,
		},
		"the driver does not answer": {
			on:     func(m *machine, _ *Options) { m.fail = always("state", driver.ErrUnsupported) },
			states: "running running running", err: driver.ErrUnsupported,
		},
		"one has failed before": {
			on:     func(m *machine, _ *Options) { m.procs[2].state = driver.Failed },
			states: "running failed running", err: parking.ErrLost, lost: true,
		},
		"another program is moving it": {
			on:     func(m *machine, _ *Options) { m.procs[2].state = 5 },
			states: "running state 5 running", err: errors.New("by another program: it is in state 5"),
		},
		"one is parked already": {
			on:    func(m *machine, _ *Options) { m.procs[1].state = driver.Checkpointed },
			calls: "lock 2, checkpoint 2", states: "checkpointed checkpointed running", freed: gib,
		},
		"one is locked already": {
			on:    func(m *machine, _ *Options) { m.procs[1].state = driver.Locked },
			calls: "lock 2, checkpoint 1, checkpoint 2", states: "checkpointed checkpointed running", freed: 4 * gib,
		},
		"one is another by now": {
			on:    func(m *machine, _ *Options) { m.procs[1].start++ },
			calls: "lock 2, checkpoint 2", states: "running checkpointed running", freed: gib,
		},
		"one ends in its lock": {
			on: func(m *machine, _ *Options) {
				m.fail = func(call string) error {
					if call == "lock 1" {
						m.procs[1] = &proc{start: 99, noGPU: true}
					}
					return nil
				}
			},
			calls: "lock 1, lock 2, checkpoint 2", states: "running checkpointed running", freed: gib,
		},
		"one ends in its checkpoint": {
			on: func(m *machine, _ *Options) {
				m.fail = func(call string) error {
					if call == "checkpoint 1" {
						m.procs[1] = &proc{start: 99, noGPU: true}
					}
					return nil
				}
			},
			calls: "lock 1, lock 2, checkpoint 1, checkpoint 2", states: "running checkpointed running", freed: gib,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := three()
			o := m.options()
			if tc.on != nil {
				tc.on(m, &o)
			}
			e := New(o)
			freed, err := e.Park(t.Context(), ids(1, 2, 3))
			must.Eq(t, tc.calls, m.said())
			must.Eq(t, tc.states, m.states())
			must.Eq(t, tc.lost, errors.Is(err, parking.ErrLost))
			if tc.err == nil {
				must.NoError(t, err)
				must.Eq(t, tc.freed, freed[card])
				return
			}
			if !errors.Is(err, tc.err) {
				must.ErrorContains(t, err, tc.err.Error())
			}
			must.MapEmpty(t, freed)
			must.Eq(t, tc.unsure, errors.Is(err, parking.ErrUnsure))
			if !tc.lost && !tc.unsure {
				must.MapEmpty(t, e.parked.held)
			}
		})
	}
}

func TestPark_ends(t *testing.T) {
	for _, at := range []string{"state 1", "state 2", "lock 1", "lock 2", "checkpoint 1"} {
		m := three()
		ctx, end := context.WithCancel(t.Context())
		m.fail = func(call string) error {
			if call == at {
				end()
			}
			return nil
		}
		_, err := New(m.options()).Park(ctx, ids(1, 2, 3))
		must.ErrorIs(t, err, context.Canceled)
		must.False(t, errors.Is(err, parking.ErrLost))
		must.Eq(t, "running running running", m.states(), must.Sprint(at))
	}
}

func TestRestore(t *testing.T) {
	for name, tc := range map[string]struct {
		on     func(*machine)
		fresh  bool // parked by another Evictor
		calls  string
		states string
		err    error
		lost   bool
		unsure bool
	}{
		"all is well":                  {calls: "restore 1, restore 2, unlock 1, unlock 2", states: "running running running"},
		"after a restart":              {fresh: true, calls: "restore 1, restore 2, unlock 1, unlock 2", states: "running running running"},
		"nothing was parked":           {on: func(m *machine) { m.procs[1].state, m.procs[2].state = 0, 0 }, states: "running running running"},
		"one was only locked":          {on: func(m *machine) { m.procs[1].state = driver.Locked }, calls: "restore 2, unlock 1, unlock 2", states: "running running running"},
		"one has ended":                {on: func(m *machine) { delete(m.procs, 1) }, calls: "restore 2, unlock 2", states: "running running"},
		"one has failed":               {on: func(m *machine) { m.procs[1].state = driver.Failed }, calls: "restore 2, unlock 2", states: "failed running running", err: parking.ErrLost, lost: true},
		"one has lost its CUDA":        {on: func(m *machine) { m.procs[1].noGPU = true }, calls: "restore 2, unlock 2", states: "checkpointed running running", err: parking.ErrLost, lost: true},
		"another program is moving it": {on: func(m *machine) { m.procs[2].state = 4 }, states: "checkpointed state 4 running", err: errors.New("it is in state 4")},
		"no answer":                    {on: func(m *machine) { m.fail = always("state 2", errHelper) }, states: "checkpointed checkpointed running", err: driver.ErrHelper},
		"a restore fails": {
			on:    func(m *machine) { m.fail = always("restore 1", driver.OutOfMemory) },
			calls: "restore 1, restore 2, unlock 2", states: "checkpointed running running", err: driver.OutOfMemory, lost: true,
		},
		"a restore is refused, and changes nothing": {
			on:    func(m *machine) { m.fail = once("restore 2", driver.Result(304)) },
			calls: "restore 1, restore 2, checkpoint 1", states: "checkpointed checkpointed running", err: driver.Result(304),
		},
		"a restore is refused, and breaks the process": {
			on: func(m *machine) {
				m.fail = func(call string) error {
					if call == "restore 1" {
						m.procs[1].state = driver.Failed
						return driver.Result(999)
					}
					return nil
				}
			},
			calls: "restore 1, restore 2, unlock 2", states: "failed running running", err: driver.Result(999), lost: true,
		},
		"an unlock is refused": {
			on:    func(m *machine) { m.fail = always("unlock 1", driver.Result(999)) },
			calls: "restore 1, restore 2, unlock 1, unlock 1, unlock 1, unlock 2", states: "locked running running", err: driver.Result(999), unsure: true,
		},
		"an unlock breaks the process": {
			on: func(m *machine) {
				m.fail = func(call string) error {
					if call == "unlock 1" {
						m.procs[1].state = driver.Failed
						return driver.Result(999)
					}
					return nil
				}
			},
			calls: "restore 1, restore 2, unlock 1, unlock 2", states: "failed running running", err: driver.Result(999), lost: true,
		},
		"one ends because of its restore": {
			on: func(m *machine) {
				m.fail = func(call string) error {
					if call == "restore 1" {
						delete(m.procs, 1)
						return driver.OutOfMemory
					}
					return nil
				}
			},
			calls: "restore 1, restore 2, unlock 2", states: "running running", err: driver.OutOfMemory, lost: true,
		},
		"one ends in its restore": {
			on: func(m *machine) {
				m.fail = func(call string) error {
					if call == "restore 1" {
						delete(m.procs, 1)
					}
					return nil
				}
			},
			calls: "restore 1, restore 2, unlock 2", states: "running running",
		},
		"the helper ends in a restore": {
			on:    func(m *machine) { m.fail = once("restore 1", errHelper) },
			calls: "restore 1, restore 1, restore 2, unlock 1, unlock 2", states: "running running running",
		},
		"the helper ends in a restore, which was done": {
			on:    func(m *machine) { m.after = once("restore 1", errHelper) },
			calls: "restore 1, restore 2, unlock 1, unlock 2", states: "running running running",
		},
		"the helper ends in a restore, and CUDA continues it": {
			on: func(m *machine) {
				m.fail = func(call string) error {
					if call == "restore 1" {
						m.procs[1].state = 5
						time.AfterFunc(5*time.Millisecond, func() {
							m.mu.Lock()
							defer m.mu.Unlock()
							m.procs[1].state = driver.Locked
						})
						return errHelper
					}
					return nil
				}
			},
			calls: "restore 1, restore 2, unlock 1, unlock 2", states: "running running running",
		},
		"the helper ends in a restore, which never ends": {
			on: func(m *machine) {
				m.fail = func(call string) error {
					if call == "restore 1" {
						m.procs[1].state = 5
						return errHelper
					}
					return nil
				}
			},
			calls: "restore 1, restore 2, unlock 2", states: "state 5 running running", err: parking.ErrUnsure, unsure: true,
		},
		"the helper ends in a restore, which breaks the process": {
			on: func(m *machine) {
				m.fail = func(call string) error {
					if call == "restore 1" {
						m.procs[1].state = driver.Failed
						return errHelper
					}
					return nil
				}
			},
			calls: "restore 1, restore 2, unlock 2", states: "failed running running", err: parking.ErrLost, lost: true,
		},
		"the helper ends in each restore of one": {
			on:    func(m *machine) { m.fail = always("restore 2", errHelper) },
			calls: "restore 1, restore 2, restore 2, restore 2, checkpoint 1", states: "checkpointed checkpointed running", err: driver.ErrHelper,
		},
		"the helper ends in an unlock": {
			on:    func(m *machine) { m.fail = once("unlock 1", errHelper) },
			calls: "restore 1, restore 2, unlock 1, unlock 1, unlock 2", states: "running running running",
		},
		"the helper ends in an unlock, which was done": {
			on:    func(m *machine) { m.after = once("unlock 1", errHelper) },
			calls: "restore 1, restore 2, unlock 1, unlock 2", states: "running running running",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := three()
			e := New(m.options())
			_, err := e.Park(t.Context(), ids(1, 2, 3))
			must.NoError(t, err)
			m.said()
			if tc.on != nil {
				tc.on(m)
			}
			if tc.fresh {
				e = New(m.options())
			}
			err = e.Restore(t.Context(), ids(1, 2, 3))
			must.Eq(t, tc.calls, m.said())
			must.Eq(t, tc.states, m.states())
			must.Eq(t, tc.lost, errors.Is(err, parking.ErrLost))
			must.Eq(t, tc.unsure, errors.Is(err, parking.ErrUnsure))
			if tc.err == nil {
				must.NoError(t, err)
				must.MapEmpty(t, e.parked.held)
				return
			}
			if !errors.Is(err, tc.err) {
				must.ErrorContains(t, err, tc.err.Error())
			}
		})
	}
}

func TestRestore_room(t *testing.T) {
	m := three()
	e := New(m.options())
	_, err := e.Park(t.Context(), ids(1, 2))
	must.NoError(t, err)
	m.said()
	m.other = 4*gib + 1
	err = e.Restore(t.Context(), ids(1, 2))
	must.ErrorContains(t, err, "card GPU-1 has 4294967295 bytes free, and needs 4294967296 for the restore")
	must.False(t, errors.Is(err, parking.ErrLost))
	must.Eq(t, "", m.said())

	delete(m.procs, 2)
	must.NoError(t, e.Restore(t.Context(), ids(1, 2)))
	must.Eq(t, "restore 1, unlock 1", m.said())
}

func TestPark_undo(t *testing.T) {
	for name, tc := range map[string]struct {
		frees  bool
		states string
		lost   bool
	}{
		"room comes":         {frees: true, states: "running running running"},
		"room does not come": {states: "failed running running", lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := three()
				m.fail = func(call string) error {
					if call == "checkpoint 2" {
						m.other = 5 * gib // a process that does not ask the gate
						return driver.Result(999)
					}
					return nil
				}
				if tc.frees {
					time.AfterFunc(3*time.Second, func() {
						m.mu.Lock()
						defer m.mu.Unlock()
						m.other = 0
					})
				}
				ctx, end := context.WithTimeout(t.Context(), time.Second) // the rollback does not end with it
				defer end()
				o := m.options()
				o.Poll, o.Undo = 0, 0 // the defaults
				_, err := New(o).Park(ctx, ids(1, 2))
				must.ErrorIs(t, err, driver.Result(999))
				must.Eq(t, tc.lost, errors.Is(err, parking.ErrLost))
				must.Eq(t, tc.states, m.states())
			})
		})
	}
}

// A process whose usage NVML does not report is left out: it does not hold nothing.
func TestMeasure(t *testing.T) {
	m, err := Measure(func(string) (nvml.Usage, error) {
		return nvml.Usage{Free: 5, Processes: []nvml.Process{{PID: 7, Used: 3}, {PID: 7, Used: 1}, {PID: 8}}}, nil
	})(card)
	must.NoError(t, err)
	must.Eq(t, gate.Measured{Free: 5, By: map[int]uint64{7: 4}}, m)
}

func TestOpens(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.Symlink("/dev/null", filepath.Join(dir, "0")))
	must.NoError(t, os.Symlink("socket:[7]", filepath.Join(dir, "1")))
	must.False(t, opens(dir, "/dev/infiniband/"))
	must.NoError(t, os.Symlink("/dev/infiniband/uverbs0", filepath.Join(dir, "2")))
	must.True(t, opens(dir, "/dev/infiniband/"))
	must.False(t, opens(filepath.Join(dir, "gone"), "/dev/infiniband/"))
}
