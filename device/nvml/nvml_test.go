// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/shoenig/test/must"
)

// machine has two cards, of which the second comes first on the bus.
func machine(change ...func(*mock.Device)) *Library { return old("", change...) }

// old is machine with a library that lacks a function.
func old(unknown string, change ...func(*mock.Device)) *Library {
	device := func(uuid, bus string, minor int) *mock.Device {
		d := &mock.Device{
			GetUUIDFunc:        func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
			GetNameFunc:        func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
			GetMinorNumberFunc: func() (int, nvml.Return) { return minor, nvml.SUCCESS },
			GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
				return nvml.Memory{Total: 100 * MiB, Used: 30 * MiB, Free: 70 * MiB}, nvml.SUCCESS
			},
			GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
				return nvml.Memory_v2{Total: 100 * MiB, Reserved: 6 * MiB, Used: 24 * MiB, Free: 70 * MiB}, nvml.SUCCESS
			},
			GetPciInfoFunc: func() (info nvml.PciInfo, _ nvml.Return) {
				for i, c := range []byte(bus) {
					info.BusId[i] = uint8(c)
				}
				return info, nvml.SUCCESS
			},
			GetComputeModeFunc:               func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_DEFAULT, nvml.SUCCESS },
			GetMigModeFunc:                   func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
			GetRemappedRowsFunc:              func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, nvml.SUCCESS },
			GetRetiredPagesPendingStatusFunc: func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_DISABLED, nvml.ERROR_NOT_SUPPORTED },
			RegisterEventsFunc:               func(uint64, nvml.EventSet) nvml.Return { return nvml.ERROR_NOT_SUPPORTED },
			GetFieldValuesFunc:               func([]nvml.FieldValue) nvml.Return { return nvml.ERROR_NOT_SUPPORTED },
			GetUtilizationRatesFunc:          func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 50, Memory: 10}, nvml.SUCCESS },
			GetTemperatureFunc:               func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 40, nvml.SUCCESS },
			GetPowerUsageFunc:                func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED },
			GetPowerManagementLimitFunc:      func() (uint32, nvml.Return) { return 700_000, nvml.SUCCESS },
			GetBAR1MemoryInfoFunc: func() (nvml.BAR1Memory, nvml.Return) {
				return nvml.BAR1Memory{Bar1Total: 64 * MiB, Bar1Used: 3 * MiB}, nvml.SUCCESS
			},
			GetMemoryErrorCounterFunc: func(kind nvml.MemoryErrorType, since nvml.EccCounterType, in nvml.MemoryLocation) (uint64, nvml.Return) {
				if kind != nvml.MEMORY_ERROR_TYPE_CORRECTED || since != nvml.VOLATILE_ECC || in == nvml.MEMORY_LOCATION_L1_CACHE {
					return 0, nvml.ERROR_NOT_SUPPORTED
				}
				return 10 + uint64(in), nvml.SUCCESS
			},
			GetMaxClockInfoFunc: func(of nvml.ClockType) (uint32, nvml.Return) {
				return map[nvml.ClockType]uint32{nvml.CLOCK_SM: 1980, nvml.CLOCK_MEM: 3201}[of], nvml.SUCCESS
			},
			GetMaxPcieLinkGenerationFunc: func() (int, nvml.Return) { return 5, nvml.SUCCESS },
			GetMaxPcieLinkWidthFunc:      func() (int, nvml.Return) { return 16, nvml.SUCCESS },
			GetDisplayModeFunc:           func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_DISABLED, nvml.SUCCESS },
			GetPersistenceModeFunc:       func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS },
			GetEncoderUtilizationFunc:    func() (uint32, uint32, nvml.Return) { return 7, 1000, nvml.SUCCESS },
			GetDecoderUtilizationFunc:    func() (uint32, uint32, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
			GetProcessUtilizationFunc:    func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED },
			GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
				return []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 5 * MiB}, {Pid: 8, UsedGpuMemory: ^uint64(0)}}, nvml.SUCCESS
			},
		}
		return d
	}
	all := []*mock.Device{device("GPU-2", "0000:02:00.0", 1), device("GPU-1", "0000:01:00.0", 0)}
	for _, f := range change {
		f(all[0])
	}
	return newLibrary(&mock.Interface{
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
				if name == unknown {
					return errors.New("undefined symbol")
				}
				return nil
			}}
		},
		EventSetCreateFunc: func() (nvml.EventSet, nvml.Return) {
			return &mock.EventSet{WaitFunc: silent, FreeFunc: freed}, nvml.SUCCESS
		},
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return "570.1", nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return len(all), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) { return all[i], nvml.SUCCESS },
		DeviceGetHandleByUUIDFunc: func(uuid string) (nvml.Device, nvml.Return) {
			for _, d := range all {
				if id, _ := d.GetUUID(); id == uuid {
					return d, nvml.SUCCESS
				}
			}
			return nil, nvml.ERROR_NOT_FOUND
		},
	})
}

func freed() nvml.Return { return nvml.SUCCESS }

func silent(uint32) (nvml.EventData, nvml.Return) { return nvml.EventData{}, nvml.ERROR_TIMEOUT }

// A harmful Xid error retires a card until the driver reports its recovery.
func TestCards_xid(t *testing.T) {
	for _, tc := range []struct {
		xids   []uint64
		action int // -1: not reported
		want   string
	}{
		{nil, -1, ""},
		{[]uint64{31, 13, 48}, -1, ""},
		{[]uint64{79, 45}, -1, "Xid error 79: after it the card has to be reset (nvidia-smi -r), with this plugin stopped"},
		{[]uint64{79}, 0, ""},
		{[]uint64{79}, 1, "the driver asks that the card is reset, after Xid error 79"},
		{nil, 2, "the driver asks that the node is rebooted"},
		{nil, 9, "the driver requests recovery action 9"},
	} {
		var broken *mock.Device
		l := machine(func(d *mock.Device) {
			broken = d
			d.RegisterEventsFunc = func(types uint64, _ nvml.EventSet) nvml.Return {
				must.Eq(t, nvml.EventTypeXidCriticalError, types)
				return nvml.SUCCESS
			}
			d.GetFieldValuesFunc = func(v []nvml.FieldValue) nvml.Return {
				if tc.action < 0 {
					v[0].NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
				}
				binary.NativeEndian.PutUint32(v[0].Value[:], uint32(tc.action))
				return nvml.SUCCESS
			}
		})
		left := tc.xids
		l.nvml.(*mock.Interface).EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
			return &mock.EventSet{FreeFunc: freed, WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				if len(left) == 0 {
					return silent(0)
				}
				xid := left[0]
				left = left[1:]
				return nvml.EventData{Device: broken, EventType: nvml.EventTypeXidCriticalError, EventData: xid}, nvml.SUCCESS
			}}, nvml.SUCCESS
		}
		_, err := l.Cards() // which subscribes to its events
		must.NoError(t, err)
		for range 2 {
			cards, err := l.Cards()
			must.NoError(t, err)
			must.Eq(t, []string{"", tc.want}, []string{cards[0].Unhealthy, cards[1].Unhealthy})
		}
		must.SliceEmpty(t, left)
		must.SliceLen(t, 1, broken.RegisterEventsCalls())
		must.NoError(t, l.Close())
	}
}

func TestCards(t *testing.T) {
	l := machine()
	cards, err := l.Cards()
	must.NoError(t, err)
	card := Card{
		UUID: "GPU-1", Name: "NVIDIA H200", PCIBusID: "0000:01:00.0", Driver: "570.1", ComputeMode: "default", Memory: 100 * MiB, Reserved: 6 * MiB,
		PowerW: new(int64(700)), BAR1MiB: new(int64(64)), CoresClockMHz: new(int64(1980)), MemoryClockMHz: new(int64(3201)), PCIeMBps: new(int64(63008)),
		Display: "Disabled", Persistence: "Enabled",
	}
	second := card
	second.UUID, second.PCIBusID, second.Minor = "GPU-2", "0000:02:00.0", 1
	must.Eq(t, []Card{card, second}, cards)
	must.NoError(t, l.Close())
	must.NoError(t, l.Close())

	for want, change := range map[string]func(*mock.Device){
		"its memory cannot be read: ": func(d *mock.Device) {
			d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
		},
		"could not be replaced (row remapping)": func(d *mock.Device) {
			d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 1, true, true, nvml.SUCCESS }
		},
		"(row remapping), and is replaced when the card is reset": func(d *mock.Device) {
			d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 1, true, false, nvml.SUCCESS }
		},
		"(retired pages), and is replaced when the card is reset": func(d *mock.Device) {
			d.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
		},
	} {
		cards, err := machine(change).Cards()
		must.NoError(t, err)
		must.Eq(t, "", cards[0].Unhealthy)
		must.StrContains(t, cards[1].Unhealthy, want)
	}
	cards, err = machine(func(d *mock.Device) {
		d.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS }
		d.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_PROHIBITED, nvml.SUCCESS }
	}).Cards()
	must.NoError(t, err)
	must.True(t, cards[1].MIG)
	must.Eq(t, "prohibited", cards[1].ComputeMode)
	cards, err = machine(func(d *mock.Device) {
		d.GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
	}).Cards()
	must.NoError(t, err)
	must.Len(t, 1, cards)
}

func TestUsage(t *testing.T) {
	l := machine()
	u, err := l.Usage("GPU-2")
	must.NoError(t, err)
	must.Eq(t, Usage{
		Time: u.Time, Used: 30 * MiB, Free: 70 * MiB, GPU: new(int64(50)), Memory: new(int64(10)), Encoder: new(int64(7)), TemperatureC: new(int64(40)), BAR1MiB: new(int64(3)),
		ECCL2: new(int64(11)), ECCMemory: new(int64(12)),
		Processes: []Process{{PID: 7, Used: 5 * MiB}, {PID: 8}}, ProcessesKnown: true,
	}, u)
	_, err = l.Usage("GPU-3")
	must.ErrorContains(t, err, "looking for card GPU-3: ")
}

// A function that the library lacks is not called: that would end the process.
func TestCards_old(t *testing.T) {
	cards, err := old("nvmlDeviceGetRemappedRows", func(d *mock.Device) {
		d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) {
			t.Error("it was called")
			return 0, 0, false, false, nvml.SUCCESS
		}
	}).Cards()
	must.NoError(t, err)
	must.Len(t, 2, cards)
	cards, err = old("nvmlDeviceGetMemoryInfo_v2").Cards()
	must.NoError(t, err)
	must.Eq(t, 0, cards[0].Reserved)
}

func TestNone(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED} {
		_, err := newLibrary(&mock.Interface{InitFunc: func() nvml.Return { return ret }}).Cards()
		must.ErrorIs(t, err, ErrNone)
	}
	_, err := newLibrary(&mock.Interface{InitFunc: func() nvml.Return { return nvml.ERROR_UNKNOWN }}).Usage("GPU-1")
	must.ErrorContains(t, err, "loading NVML: ")
	_, err = New("/nowhere/" + strings.Repeat("x", 8) + ".so").Cards()
	must.ErrorIs(t, err, ErrNone)
}
