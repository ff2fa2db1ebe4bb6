// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package top

import (
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
)

// Ended is a task that has ended, beside its twin, as the driver's event says.
type Ended struct {
	Namespace string        `json:"namespace"`
	Job       string        `json:"job"`
	Task      string        `json:"task"`
	Alloc     string        `json:"alloc"`
	Node      string        `json:"node"` // its name
	Time      time.Time     `json:"time"`
	TookS     status.Number `json:"took_s"`
	FairS     status.Number `json:"fair_s"` // what it would have taken with its fair share
	Why       string        `json:"why"`    // it took longer; "" if it did not
}
