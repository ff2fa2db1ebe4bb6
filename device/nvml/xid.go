// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nvml

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// harmless are the Xid errors after which a card continues. The first are application errors, as
// in NVIDIA's plugin for Kubernetes; memoryFault covers memory errors.
var harmless = []uint64{13, 31, 43, 45, 68, 109, 48, 63, 64, 92, 94}

const maxEvents = 1000

// listen subscribes to a card's Xid errors, if it supports that.
func (l *Library) listen(uuid string, dev nvml.Device) {
	if l.listening[uuid] || !l.hasFunction("nvmlEventSetWait_v2") {
		return
	}
	if l.events == nil {
		set, ret := l.nvml.EventSetCreate()
		if ret != nvml.SUCCESS {
			return
		}
		l.events = set
	}
	if dev.RegisterEvents(nvml.EventTypeXidCriticalError, l.events) == nvml.SUCCESS {
		l.listening[uuid] = true
	}
}

func (l *Library) readXids() {
	for range maxEvents {
		if l.events == nil {
			return
		}
		e, ret := l.events.Wait(0)
		if ret != nvml.SUCCESS {
			return
		}
		if e.EventType != nvml.EventTypeXidCriticalError || slices.Contains(harmless, e.EventData) {
			continue
		}
		if uuid, ret := e.Device.GetUUID(); ret == nvml.SUCCESS {
			l.xids[uuid] = e.EventData
		}
	}
}

// fault returns why a card cannot continue until it is reset. The driver's recovery action (since
// 570) is preferred: it covers earlier errors, and resets.
func (l *Library) fault(uuid string, dev nvml.Device) string {
	xid := ""
	if code, heard := l.xids[uuid]; heard {
		xid = fmt.Sprintf("Xid error %d", code)
	}
	action, known := l.recovery(dev)
	switch {
	case !known && xid != "":
		return xid + ": after it the card has to be reset (nvidia-smi -r), with this plugin stopped"
	case !known || action == nvml.GPU_RECOVERY_ACTION_NONE:
		return ""
	case xid != "":
		xid = ", after " + xid
	}
	asked := map[nvml.DeviceGpuRecoveryAction]string{
		nvml.GPU_RECOVERY_ACTION_GPU_RESET: "the card is reset", nvml.GPU_RECOVERY_ACTION_NODE_REBOOT: "the node is rebooted",
		nvml.GPU_RECOVERY_ACTION_DRAIN_P2P: "its peer-to-peer traffic ends", nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "it is drained and reset",
	}[action]
	if asked == "" {
		return fmt.Sprintf("the driver requests recovery action %d", action) + xid
	}
	return "the driver asks that " + asked + xid
}

func (l *Library) recovery(dev nvml.Device) (action nvml.DeviceGpuRecoveryAction, known bool) {
	if !l.hasFunction("nvmlDeviceGetFieldValues") {
		return 0, false
	}
	value := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if dev.GetFieldValues(value) != nvml.SUCCESS || nvml.Return(value[0].NvmlReturn) != nvml.SUCCESS {
		return 0, false
	}
	return nvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(value[0].Value[:])), true
}
