// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package nvml reads a machine's NVIDIA cards through NVIDIA's management library.
package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ErrNone: there is no library or no driver.
var ErrNone = errors.New("there is no NVIDIA driver here")

const MiB = 1 << 20

// Card is a physical card.
type Card struct {
	UUID        string // "GPU-…"
	Name        string // of the model
	PCIBusID    string
	Minor       int    // of its device node, /dev/nvidia<minor>
	Driver      string // version
	ComputeMode string // "default", "exclusive", "prohibited"
	MIG         bool   // partitioned by hardware
	Memory      uint64 // bytes, including what the driver reserves
	// Reserved is the part of Memory that the driver keeps, in bytes; 0 if unknown.
	Reserved uint64
	// Unhealthy is why nothing may run on it, or "".
	Unhealthy string
	// What NVIDIA's own device plugin tells Nomad, too; nil or "": unknown.
	PowerW, BAR1MiB, CoresClockMHz, MemoryClockMHz *int64
	PCIeMBps                                       *int64 // MB/s, of all lanes
	Display, Persistence                           string // "Enabled", "Disabled"
}

// Usage is the current usage of a card.
type Usage struct {
	Time       time.Time
	Used, Free uint64 // memory, in bytes
	// Percent of the last sample period: with a kernel running, with memory being read or written,
	// with the encoder or decoder used. These and the next are nil if unknown.
	GPU, Memory, Encoder, Decoder *int64
	TemperatureC, PowerW, BAR1MiB *int64
	// Corrected errors since the driver was loaded; nil if unknown.
	ECCL1, ECCL2, ECCMemory *int64
	Processes               []Process
	ProcessesKnown          bool
}

// Process is a process on a card.
type Process struct {
	PID  int    // on the host
	Used uint64 // memory, in bytes; 0 if unknown
	// BusyS is seconds in which a kernel of it ran, since the library first saw it; nil if unknown
	// (NVML reports no utilisation per process, as with MIG).
	BusyS *float64
}

// Library is NVML. It is not safe for concurrent use.
type Library struct {
	nvml      nvml.Interface
	ready     bool
	events    nvml.EventSet     // nil: not supported
	listening map[string]bool   // cards with event reporting, by UUID
	xids      map[string]uint64 // last harmful Xid error, by UUID
	busy      map[string]*busy  // by UUID
}

// New returns the library at a path; "" is the system's.
func New(path string) *Library {
	var opts []nvml.LibraryOption
	if path != "" {
		opts = append(opts, nvml.WithLibraryPath(path))
	}
	return newLibrary(nvml.New(opts...))
}

func newLibrary(n nvml.Interface) *Library {
	return &Library{nvml: n, listening: make(map[string]bool), xids: make(map[string]uint64), busy: make(map[string]*busy)}
}

// open loads the library, unless loaded. The error is ErrNone if there is none.
func (l *Library) open() error {
	if l.ready {
		return nil
	}
	switch ret := l.nvml.Init(); ret {
	case nvml.SUCCESS:
		l.ready = true
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_NO_PERMISSION:
		return fmt.Errorf("%w: %s", ErrNone, resultText(ret))
	default:
		return fmt.Errorf("loading NVML: %s", resultText(ret))
	}
}

// Close unloads the library.
func (l *Library) Close() error {
	if !l.ready {
		return nil
	}
	l.ready = false
	if l.events != nil {
		_ = l.events.Free() // unloading frees it anyway
		l.events = nil
		clear(l.listening)
	}
	return nvmlError("closing NVML", l.nvml.Shutdown())
}

// resultText describes a result. NVML's own text needs the library.
func resultText(ret nvml.Return) string {
	if s := nvml.ErrorString(ret); s != "" {
		return s
	}
	return fmt.Sprintf("error %d", ret)
}

func nvmlError(what string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return fmt.Errorf("%s: %s", what, resultText(ret))
}

// hasFunction reports whether the library has a function. Calling a missing one ends the process.
func (l *Library) hasFunction(function string) bool {
	return l.nvml.Extensions().LookupSymbol(function) == nil
}

// Cards lists the cards by bus address. One that can be read only in part is unhealthy.
func (l *Library) Cards() ([]Card, error) {
	if err := l.open(); err != nil {
		return nil, err
	}
	driver, ret := l.nvml.SystemGetDriverVersion()
	if err := nvmlError("reading the driver's version", ret); err != nil {
		return nil, err
	}
	n, ret := l.nvml.DeviceGetCount()
	if err := nvmlError("counting the cards", ret); err != nil {
		return nil, err
	}
	l.readXids()
	var cards []Card
	for i := range n {
		dev, ret := l.nvml.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			// Without its UUID it counts as missing.
			continue
		}
		c, ok := l.card(dev)
		if !ok {
			continue
		}
		c.Driver = driver
		cards = append(cards, c)
	}
	slices.SortFunc(cards, func(a, b Card) int {
		return cmp.Or(strings.Compare(a.PCIBusID, b.PCIBusID), strings.Compare(a.UUID, b.UUID))
	})
	return cards, nil
}

// card reads the constant properties and the health. ok is false without a UUID.
func (l *Library) card(dev nvml.Device) (c Card, ok bool) {
	var ret nvml.Return
	if c.UUID, ret = dev.GetUUID(); ret != nvml.SUCCESS {
		return c, false
	}
	bad := func(what string, ret nvml.Return) {
		if c.Unhealthy == "" && ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
			c.Unhealthy = fmt.Sprintf("%s cannot be read: %s", what, resultText(ret))
		}
	}
	c.Name, ret = dev.GetName()
	bad("its name", ret)
	memory, ret := dev.GetMemoryInfo()
	c.Memory = memory.Total
	bad("its memory", ret)
	if l.hasFunction("nvmlDeviceGetMemoryInfo_v2") {
		if m, ret := dev.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			c.Reserved = min(m.Reserved, c.Memory)
		}
	}
	pci, ret := dev.GetPciInfo()
	bad("its address", ret)
	c.PCIBusID = busID(pci)
	c.ComputeMode = "default"
	if l.hasFunction("nvmlDeviceGetMinorNumber") {
		c.Minor, ret = dev.GetMinorNumber()
		bad("the number of its device node", ret)
	}
	if l.hasFunction("nvmlDeviceGetComputeMode") {
		mode, ret := dev.GetComputeMode()
		bad("its compute mode", ret)
		c.ComputeMode = computeMode(mode)
	}
	if l.hasFunction("nvmlDeviceGetMigMode") {
		current, _, ret := dev.GetMigMode()
		c.MIG = ret == nvml.SUCCESS && current == nvml.DEVICE_MIG_ENABLE
	}
	l.describe(&c, dev)
	l.listen(c.UUID, dev)
	if c.Unhealthy == "" {
		c.Unhealthy = l.memoryFault(dev)
	}
	if c.Unhealthy == "" {
		c.Unhealthy = l.fault(c.UUID, dev)
	}
	return c, true
}

// known returns what a function of the library reports; nil if it lacks the function or cannot tell.
func known[T any](l *Library, function string, read func() (T, nvml.Return)) *T {
	if !l.hasFunction(function) {
		return nil
	}
	v, ret := read()
	if ret != nvml.SUCCESS {
		return nil
	}
	return &v
}

// number converts a value into a larger unit.
func number[T uint32 | uint64](v *T, unit T) *int64 {
	if v == nil {
		return nil
	}
	n := int64(*v / unit)
	return &n
}

func withoutPeriod(read func() (uint32, uint32, nvml.Return)) func() (uint32, nvml.Return) {
	return func() (uint32, nvml.Return) {
		v, _, ret := read()
		return v, ret
	}
}

// lane is what a PCIe lane carries, in MB/s, by generation.
var lane = map[int]int{1: 250, 2: 500, 3: 985, 4: 1969, 5: 3938, 6: 7563}

// describe reads what only informs.
func (l *Library) describe(c *Card, dev nvml.Device) {
	c.PowerW = number(known(l, "nvmlDeviceGetPowerManagementLimit", dev.GetPowerManagementLimit), 1000)
	if bar1 := known(l, "nvmlDeviceGetBAR1MemoryInfo", dev.GetBAR1MemoryInfo); bar1 != nil {
		c.BAR1MiB = number(&bar1.Bar1Total, MiB)
	}
	clock := func(of nvml.ClockType) *int64 {
		return number(known(l, "nvmlDeviceGetMaxClockInfo", func() (uint32, nvml.Return) { return dev.GetMaxClockInfo(of) }), 1)
	}
	c.CoresClockMHz, c.MemoryClockMHz = clock(nvml.CLOCK_SM), clock(nvml.CLOCK_MEM)
	generation := known(l, "nvmlDeviceGetMaxPcieLinkGeneration", dev.GetMaxPcieLinkGeneration)
	width := known(l, "nvmlDeviceGetMaxPcieLinkWidth", dev.GetMaxPcieLinkWidth)
	if generation != nil && width != nil && lane[*generation] > 0 {
		c.PCIeMBps = new(int64(*width * lane[*generation]))
	}
	state := func(s *nvml.EnableState) string {
		switch {
		case s == nil:
			return ""
		case *s == nvml.FEATURE_ENABLED:
			return "Enabled"
		}
		return "Disabled"
	}
	c.Display = state(known(l, "nvmlDeviceGetDisplayMode", dev.GetDisplayMode))
	c.Persistence = state(known(l, "nvmlDeviceGetPersistenceMode", dev.GetPersistenceMode))
}

// memoryFault returns which memory the card reports as broken. An uncorrectable ECC error ends
// the processes it hits; the card continues once the memory is replaced.
func (l *Library) memoryFault(dev nvml.Device) string {
	const reset = ", and is replaced when the card is reset (nvidia-smi -r)"
	if l.hasFunction("nvmlDeviceGetRemappedRows") {
		switch _, _, pending, failure, ret := dev.GetRemappedRows(); {
		case ret == nvml.SUCCESS && failure:
			return "some of its memory is broken, and could not be replaced (row remapping)"
		case ret == nvml.SUCCESS && pending:
			return "some of its memory is broken (row remapping)" + reset
		}
	}
	if l.hasFunction("nvmlDeviceGetRetiredPagesPendingStatus") {
		if pending, ret := dev.GetRetiredPagesPendingStatus(); ret == nvml.SUCCESS && pending == nvml.FEATURE_ENABLED {
			return "some of its memory is broken (retired pages)" + reset
		}
	}
	return ""
}

func busID(pci nvml.PciInfo) string {
	var b strings.Builder
	for _, c := range pci.BusId {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

func computeMode(mode nvml.ComputeMode) string {
	switch mode {
	case nvml.COMPUTEMODE_PROHIBITED:
		return "prohibited"
	case nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, nvml.COMPUTEMODE_EXCLUSIVE_THREAD:
		return "exclusive"
	}
	return "default"
}

// Usage reads the current usage of a card.
func (l *Library) Usage(uuid string) (Usage, error) {
	if err := l.open(); err != nil {
		return Usage{}, err
	}
	dev, ret := l.nvml.DeviceGetHandleByUUID(uuid)
	if err := nvmlError("looking for card "+uuid, ret); err != nil {
		return Usage{}, err
	}
	u := Usage{Time: time.Now()}
	memory, ret := dev.GetMemoryInfo()
	if err := nvmlError("reading the memory of card "+uuid, ret); err != nil {
		return u, err
	}
	u.Used, u.Free = memory.Used, memory.Free
	if rates := known(l, "nvmlDeviceGetUtilizationRates", dev.GetUtilizationRates); rates != nil {
		u.GPU, u.Memory = number(&rates.Gpu, 1), number(&rates.Memory, 1)
	}
	u.Encoder = number(known(l, "nvmlDeviceGetEncoderUtilization", withoutPeriod(dev.GetEncoderUtilization)), 1)
	u.Decoder = number(known(l, "nvmlDeviceGetDecoderUtilization", withoutPeriod(dev.GetDecoderUtilization)), 1)
	u.TemperatureC = number(known(l, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) { return dev.GetTemperature(nvml.TEMPERATURE_GPU) }), 1)
	u.PowerW = number(known(l, "nvmlDeviceGetPowerUsage", dev.GetPowerUsage), 1000)
	if bar1 := known(l, "nvmlDeviceGetBAR1MemoryInfo", dev.GetBAR1MemoryInfo); bar1 != nil {
		u.BAR1MiB = number(&bar1.Bar1Used, MiB)
	}
	corrected := func(in nvml.MemoryLocation) *int64 {
		return number(known(l, "nvmlDeviceGetMemoryErrorCounter", func() (uint64, nvml.Return) {
			return dev.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC, in)
		}), 1)
	}
	u.ECCL1, u.ECCL2, u.ECCMemory = corrected(nvml.MEMORY_LOCATION_L1_CACHE), corrected(nvml.MEMORY_LOCATION_L2_CACHE), corrected(nvml.MEMORY_LOCATION_DEVICE_MEMORY)
	if !l.hasFunction("nvmlDeviceGetComputeRunningProcesses") {
		return u, nil
	}
	if all, ret := dev.GetComputeRunningProcesses(); ret == nvml.SUCCESS {
		u.ProcessesKnown = true
		for _, p := range all {
			process := Process{PID: int(p.Pid), Used: p.UsedGpuMemory}
			if p.UsedGpuMemory == ^uint64(0) { // NVML_VALUE_NOT_AVAILABLE
				process.Used = 0
			}
			u.Processes = append(u.Processes, process)
		}
		l.countBusy(uuid, dev, u.Processes)
	}
	return u, nil
}
