// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Memory shared with other processes or interfaces cannot be checkpointed: the process is
// pinned.

#include "hooks.h"

#define SHARE(name, reason, params, args) \
	EXPORT CUresult name params \
	{ \
		NEED(name, real); \
		CUresult r = real args; \
		if (r == CUDA_SUCCESS && eb_active()) \
			eb_pin(reason); \
		return r; \
	}
SHARE(cuIpcGetMemHandle, PIN_IPC, (CUipcMemHandle *h, CUdeviceptr p), (h, p))
SHARE(cuIpcOpenMemHandle, PIN_IPC, (CUdeviceptr_v1 *p, CUipcMemHandle h, unsigned flags), (p, h, flags))
SHARE(cuIpcOpenMemHandle_v2, PIN_IPC, (CUdeviceptr *p, CUipcMemHandle h, unsigned flags), (p, h, flags))
SHARE(cuIpcGetEventHandle, PIN_IPC, (CUipcEventHandle *h, CUevent e), (h, e))
SHARE(cuIpcOpenEventHandle, PIN_IPC, (CUevent *e, CUipcEventHandle h), (e, h))
SHARE(cuMemExportToShareableHandle, PIN_IPC, (void *out, CUmemGenericAllocationHandle h, int type, unsigned long long flags), (out, h, type, flags))
SHARE(cuMemImportFromShareableHandle, PIN_IPC, (CUmemGenericAllocationHandle *h, void *os, int type), (h, os, type))
SHARE(cuMemPoolExportToShareableHandle, PIN_IPC, (void *out, CUmemoryPool p, int type, unsigned long long flags), (out, p, type, flags))
SHARE(cuMemPoolImportFromShareableHandle, PIN_IPC, (CUmemoryPool *p, void *os, int type, unsigned long long flags), (p, os, type, flags))
SHARE(cuImportExternalMemory, PIN_EXTERNAL, (CUexternalMemory *m, const void *desc), (m, desc))
SHARE(cuMemGetHandleForAddressRange, PIN_EXTERNAL, (void *h, CUdeviceptr p, size_t n, int type, unsigned long long flags), (h, p, n, type, flags)) // DMA-BUF
SHARE(cuGraphicsEGLRegisterImage, PIN_EXTERNAL, (void **resource, void *image, unsigned flags), (resource, image, flags))
SHARE(cuGraphicsGLRegisterBuffer, PIN_EXTERNAL, (void **resource, unsigned buffer, unsigned flags), (resource, buffer, flags))
SHARE(cuGraphicsGLRegisterImage, PIN_EXTERNAL, (void **resource, unsigned image, unsigned target, unsigned flags), (resource, image, target, flags))
SHARE(cuGraphicsVDPAURegisterOutputSurface, PIN_EXTERNAL, (void **resource, unsigned surface, unsigned flags), (resource, surface, flags))
SHARE(cuGraphicsVDPAURegisterVideoSurface, PIN_EXTERNAL, (void **resource, unsigned surface, unsigned flags), (resource, surface, flags))
SHARE(cuEGLStreamConsumerConnect, PIN_EXTERNAL, (void **connection, void *stream), (connection, stream))
SHARE(cuEGLStreamConsumerConnectWithFlags, PIN_EXTERNAL, (void **connection, void *stream, unsigned flags), (connection, stream, flags))
SHARE(cuEGLStreamProducerConnect, PIN_EXTERNAL, (void **connection, void *stream, int width, int height), (connection, stream, width, height))
// With a multicast object (NCCL makes them on NVSwitch) the driver's checkpoint hangs
// (NVIDIA/nccl#2340).
SHARE(cuMulticastCreate, PIN_MULTICAST, (CUmemGenericAllocationHandle *m, const void *prop), (m, prop))
SHARE(cuMulticastAddDevice, PIN_MULTICAST, (CUmemGenericAllocationHandle m, CUdevice dev), (m, dev))
SHARE(cuMulticastBindMem, PIN_MULTICAST, (CUmemGenericAllocationHandle m, size_t o, CUmemGenericAllocationHandle h, size_t q, size_t n, unsigned long long flags), (m, o, h, q, n, flags))
SHARE(cuMulticastBindMem_v2, PIN_MULTICAST, (CUmemGenericAllocationHandle m, CUdevice dev, size_t o, CUmemGenericAllocationHandle h, size_t q, size_t n, unsigned long long flags), (m, dev, o, h, q, n, flags))
SHARE(cuMulticastBindAddr, PIN_MULTICAST, (CUmemGenericAllocationHandle m, size_t o, CUdeviceptr p, size_t n, unsigned long long flags), (m, o, p, n, flags))
SHARE(cuMulticastBindAddr_v2, PIN_MULTICAST, (CUmemGenericAllocationHandle m, CUdevice dev, size_t o, CUdeviceptr p, size_t n, unsigned long long flags), (m, dev, o, p, n, flags))
