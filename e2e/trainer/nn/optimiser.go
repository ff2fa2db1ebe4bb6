// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package nn

import "math"

// Rule computes a step from a gradient.
type Rule string

const (
	// Momentum is stochastic gradient descent with momentum 0.9. It follows the data's scales,
	// so small directions converge late.
	Momentum Rule = "momentum"
	// Adam is algorithm 1 of Kingma and Ba, "Adam: a method for stochastic optimization", 2015,
	// with its defaults.
	Adam Rule = "adam"
)

const (
	beta1   = 0.9
	beta2   = 0.999
	epsilon = 1e-8
)

// Optimiser is a rule's state. M and V are exported for checkpoints.
type Optimiser struct {
	Rule Rule
	M, V []float64 // first and second moment; V is empty for Momentum
}

func NewOptimiser(rule Rule, n int) *Optimiser {
	o := &Optimiser{Rule: rule, M: make([]float64, n)}
	if rule == Adam {
		o.V = make([]float64, n)
	}
	return o
}

// Update moves params[lo:hi] against gradient[lo:hi]; step counts from 1. Disjoint ranges can
// be updated concurrently.
func (o *Optimiser) Update(params, gradient []float64, lo, hi int, rate float64, step int) {
	p, g, m := params[lo:hi], gradient[lo:hi], o.M[lo:hi]
	if o.Rule == Momentum {
		for i, d := range g {
			m[i] = beta1*m[i] + d
			p[i] -= rate * m[i]
		}
		return
	}
	v := o.V[lo:hi]
	scale1 := 1 / (1 - math.Pow(beta1, float64(step)))
	scale2 := 1 / (1 - math.Pow(beta2, float64(step)))
	for i, d := range g {
		m[i] = beta1*m[i] + (1-beta1)*d
		v[i] = beta2*v[i] + (1-beta2)*d*d
		p[i] -= rate * m[i] * scale1 / (math.Sqrt(v[i]*scale2) + epsilon)
	}
}
