// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// What is shared with other processes or other interfaces cannot be checkpointed: the process is
// not evictable from then on, and the gate is told.

#include "preload.h"

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
