// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

// Package policies lists the GPU policies: how a card's memory is divided.
package policies

import (
	"github.com/ebbtide/ebbtide/device/fairshare"
	"github.com/ebbtide/ebbtide/driver/policy"
)

// Names of the policies on the command line.
const (
	FairShare      = "fairshare"
	FairShareAdapt = "fairshare-adapt"
)

// All returns the policies, in the order in which a job meets them.
func All() []policy.Query {
	return []policy.Query{
		policy.NewQuery(FairShare, "how a GPU's memory is divided (Adaptive Fair-Share, equation 1)",
			fairshare.Input{Params: fairshare.DefaultParams()}, fairshare.Example(), fairshare.Decide, departures()...),
		policy.NewQuery(FairShareAdapt, "how its coefficients move after a window (AdaptiveUpdate)",
			fairshare.AdaptInput{Params: fairshare.DefaultAdaptParams()}, fairshare.AdaptExample(), fairshare.Adapt),
	}
}
