// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Calls that only submit work: see submit.def.

#include "hooks.h"

#define SUBMIT(n, P, A) \
	EXPORT CUresult n P \
	{ \
		NEED(n, real); \
		if (!eb_active()) \
			return real A; \
		eb_enter(); \
		CUresult r = real A; \
		eb_leave(); \
		return r; \
	}
#include "submit.def"
