// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	// busyEvery is the least time between queries of a card: the driver samples each second or more
	// often, and a query between two samples finds none even of a busy process.
	busyEvery = time.Second
	// busyKept is how much of a longer time counts: the driver keeps samples only some seconds.
	busyKept = 10 * time.Second
)

// busy is how long processes have kept a card busy. NVML reports what part of the time since the
// last sample that was read a process had a kernel running; the sum of these times is kept here.
type busy struct {
	asked   time.Time       // at the last query
	newest  uint64          // time of the newest sample, in µs since 1970
	seconds map[int]float64 // by pid
}

// countBusy sets BusyS of the processes on a card, unless it is unknown.
func (l *Library) countBusy(uuid string, dev nvml.Device, processes []Process) {
	if !l.hasFunction("nvmlDeviceGetProcessUtilization") {
		return
	}
	b := l.busy[uuid]
	if b == nil {
		b = new(busy)
	}
	if time.Since(b.asked) >= busyEvery {
		samples, ret := dev.GetProcessUtilization(b.newest)
		switch {
		case ret == nvml.SUCCESS:
		case ret == nvml.ERROR_NOT_FOUND, ret == nvml.ERROR_INSUFFICIENT_SIZE && len(samples) == 0:
			samples = nil // none is newer
		default:
			return
		}
		b.count(time.Now(), samples, processes)
		l.busy[uuid] = b
	}
	for i := range processes {
		processes[i].BusyS = new(b.seconds[processes[i].PID])
	}
}

// count adds what the samples say of the time since the last query; the first begins at 0. What has
// left the card is forgotten.
func (b *busy) count(now time.Time, samples []nvml.ProcessUtilizationSample, processes []Process) {
	var elapsed time.Duration
	if !b.asked.IsZero() {
		elapsed = min(now.Sub(b.asked), busyKept)
	}
	percent, n := make(map[int]float64), make(map[int]float64)
	// Not older than this: else the first sample after a rest would be an average over all of it.
	newest := uint64(now.Add(-busyEvery).UnixMicro())
	for _, s := range samples {
		// Some drivers fill the list with rubbish.
		if s.TimeStamp > b.newest && s.SmUtil <= 100 {
			percent[int(s.Pid)] += float64(s.SmUtil)
			n[int(s.Pid)]++
			newest = max(newest, s.TimeStamp)
		}
	}
	seconds := make(map[int]float64, len(processes))
	for _, p := range processes {
		seconds[p.PID] = b.seconds[p.PID]
		if n[p.PID] > 0 {
			seconds[p.PID] += percent[p.PID] / n[p.PID] / 100 * elapsed.Seconds()
		}
	}
	// Not in the future, should the clock be set back.
	b.asked, b.newest, b.seconds = now, min(newest, uint64(now.UnixMicro())), seconds
}
