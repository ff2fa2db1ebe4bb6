// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/shoenig/test/must"
)

func TestBusy(t *testing.T) {
	begun := time.Now()
	sample := func(pid int, at time.Duration, percent uint32) nvml.ProcessUtilizationSample {
		return nvml.ProcessUtilizationSample{Pid: uint32(pid), TimeStamp: uint64(begun.Add(at).UnixMicro()), SmUtil: percent}
	}
	b := new(busy)
	for i, step := range []struct {
		at      time.Duration
		samples []nvml.ProcessUtilizationSample
		pids    []int
		want    map[int]float64
	}{
		{0, []nvml.ProcessUtilizationSample{sample(7, 0, 100)}, []int{7, 8}, map[int]float64{7: 0, 8: 0}},
		{ // several of a process; and those that do not count: read before, of no process, rubbish
			2 * time.Second,
			[]nvml.ProcessUtilizationSample{
				sample(7, 0, 100), sample(7, time.Second, 20), sample(7, 2*time.Second, 40), sample(8, 2*time.Second, 100), sample(9, time.Second, 50),
				sample(8, time.Second, 101), {Pid: 8},
			},
			[]int{7, 8}, map[int]float64{7: 0.6, 8: 2},
		},
		{3 * time.Second, nil, []int{7, 8}, map[int]float64{7: 0.6, 8: 2}},
		{ // only since the last query; a new process
			4 * time.Second, []nvml.ProcessUtilizationSample{sample(7, 4*time.Second, 40), sample(10, 4*time.Second, 50)},
			[]int{7, 8, 10}, map[int]float64{7: 1, 8: 2, 10: 0.5},
		},
		{time.Minute, []nvml.ProcessUtilizationSample{sample(7, time.Minute, 50)}, []int{7, 10}, map[int]float64{7: 6, 10: 0.5}},
		{61 * time.Second, nil, []int{7, 8}, map[int]float64{7: 6, 8: 0}}, // 8 is another one
	} {
		var on []Process
		for _, pid := range step.pids {
			on = append(on, Process{PID: pid})
		}
		b.count(begun.Add(step.at), step.samples, on)
		must.MapLen(t, len(step.want), b.seconds)
		for pid, want := range step.want {
			must.InDelta(t, want, b.seconds[pid], 1e-6, must.Sprintf("step %d, process %d", i, pid))
		}
	}

	// After a rest, samples are averages since a second before the last query, not since the rest.
	must.Eq(t, uint64(begun.Add(time.Minute).UnixMicro()), b.newest)
	// The clock was set back.
	b.count(begun, []nvml.ProcessUtilizationSample{sample(7, time.Hour, 50)}, nil)
	must.Eq(t, uint64(begun.UnixMicro()), b.newest)
}

func TestUsage_busy(t *testing.T) {
	var samples []nvml.ProcessUtilizationSample
	var seen []uint64
	ret := nvml.ERROR_UNKNOWN
	l := machine(func(d *mock.Device) {
		d.GetProcessUtilizationFunc = func(since uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			seen = append(seen, since)
			return samples, ret
		}
	})
	of := func() []Process {
		u, err := l.Usage("GPU-2")
		must.NoError(t, err)
		must.Len(t, 2, u.Processes)
		return u.Processes
	}
	rewind := func() { l.busy["GPU-2"].asked = l.busy["GPU-2"].asked.Add(-2 * time.Second) }

	must.Nil(t, of()[0].BusyS)
	ret = nvml.ERROR_NOT_FOUND
	must.Zero(t, *of()[0].BusyS)
	must.Eq(t, []uint64{0, 0}, seen)
	must.Zero(t, *of()[0].BusyS)
	must.Len(t, 2, seen, must.Sprint("it is not asked again so soon"))

	rewind()
	now := uint64(time.Now().UnixMicro())
	samples, ret = []nvml.ProcessUtilizationSample{{Pid: 7, TimeStamp: now, SmUtil: 50}}, nvml.SUCCESS
	p := of()
	must.Between(t, 1, *p[0].BusyS, 10)
	must.Zero(t, *p[1].BusyS)
	must.Between(t, now-60e6, seen[2], now)

	rewind()
	for _, ret = range []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INSUFFICIENT_SIZE} {
		must.Nil(t, of()[0].BusyS)
	}
	samples = nil // no sample, and room for none
	must.Eq(t, *p[0].BusyS, *of()[0].BusyS)

	u, err := old("nvmlDeviceGetProcessUtilization").Usage("GPU-2")
	must.NoError(t, err)
	must.Nil(t, u.Processes[0].BusyS)
}
