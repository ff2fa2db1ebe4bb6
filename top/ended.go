// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package top

import (
	"time"

	"github.com/ebbtide/ebbtide/driver/status"
)

// Ended compares an ended task with its twin, as reported by the driver's event.
type Ended struct {
	Namespace string        `json:"namespace"`
	Job       string        `json:"job"`
	Task      string        `json:"task"`
	Alloc     string        `json:"alloc"`
	Node      string        `json:"node"` // name
	Time      time.Time     `json:"time"`
	TookS     status.Number `json:"took_s"`
	FairS     status.Number `json:"fair_s"` // duration under fair sharing, in seconds
	Why       string        `json:"why"`    // why it took longer; "" if it did not
}
