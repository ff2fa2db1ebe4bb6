// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package model

import (
	"math"

	"github.com/ebbtide/ebbtide/e2e/trainer/nn"
)

const (
	vaeLatent = 10
	vaeBlobs  = 3
)

// vae is a variational autoencoder (Kingma and Welling, "Auto-encoding variational Bayes",
// 2014) with normal latent variables and a Bernoulli decoder, on small grey pictures of soft
// blobs. The loss is the negative evidence lower bound, in nats per picture.
type vae struct {
	dim, side, hidden                int
	seed                             uint64
	wEncode, bEncode, wCode, bCode   block // dim → hidden → means and log variances
	wDecode, bDecode, wPaint, bPaint block // latent → hidden → dim
	layout                           layout
}

func vaeSpec() Spec {
	return Spec{
		Name: "vae", About: "variational autoencoder of small pictures, 10 latent variables", HasHidden: true, Square: true,
		Dim: 324, Hidden: 128, Batch: 64, Size: 32768, Steps: 5120, Every: 40, HeldOut: 512, Rate: 0.0003, HalfSteps: 8000, Rule: nn.Adam,
		build: func(s Spec, seed uint64) Model { return newVAE(s, seed) },
	}
}

func newVAE(s Spec, seed uint64) *vae {
	m := &vae{dim: s.Dim, hidden: s.Hidden, seed: seed, side: int(math.Round(math.Sqrt(float64(s.Dim))))}
	m.wEncode, m.bEncode = m.layout.block(m.dim, m.hidden), m.layout.block(1, m.hidden)
	m.wCode, m.bCode = m.layout.block(m.hidden, 2*vaeLatent), m.layout.block(1, 2*vaeLatent)
	m.wDecode, m.bDecode = m.layout.block(vaeLatent, m.hidden), m.layout.block(1, m.hidden)
	m.wPaint, m.bPaint = m.layout.block(m.hidden, m.dim), m.layout.block(1, m.dim)
	return m
}

func (m *vae) Len() int     { return m.layout.n }
func (m *vae) Targets() int { return 1 }
func (m *vae) Classes() int { return 0 }

func (m *vae) Init(params []float64) {
	clear(params)
	r := nn.NewRandom(m.seed, streamInit)
	for _, w := range []block{m.wEncode, m.wCode, m.wDecode, m.wPaint} {
		w.glorot(params, r)
	}
}

func (m *vae) NewBatch(rows int) Batch {
	of := func(n int) []float64 { return make([]float64, rows*n) }
	return &vaeBatch{
		model: m, random: nn.NewRandom(), wide: make([]float64, 2*m.side),
		x: of(m.dim), noise: of(vaeLatent), h: of(m.hidden), code: of(2 * vaeLatent), z: of(vaeLatent), g: of(m.hidden),
		paint: of(m.dim), dh: of(m.hidden), dcode: of(2 * vaeLatent), dz: of(vaeLatent), dg: of(m.hidden),
	}
}

type vaeBatch struct {
	model                *vae
	random               *nn.Random
	wide                 []float64 // horizontal and vertical profile of a blob
	x, noise             []float64
	h, code, z, g, paint []float64
	dh, dcode, dz, dg    []float64
}

func (b *vaeBatch) Load(row int, index, draw uint64) {
	m := b.model
	b.random.Seek(m.seed, streamSample, index)
	x := b.x[row*m.dim : (row+1)*m.dim]
	clear(x)
	side := float64(m.side)
	across, down := b.wide[:m.side], b.wide[m.side:]
	for range vaeBlobs {
		cx, cy := side*(0.15+0.7*b.random.Float64()), side*(0.15+0.7*b.random.Float64())
		sx, sy := side*(0.06+0.1*b.random.Float64()), side*(0.06+0.1*b.random.Float64())
		for i := range m.side {
			dx, dy := (float64(i)+0.5-cx)/sx, (float64(i)+0.5-cy)/sy
			across[i], down[i] = math.Exp(-dx*dx/2), math.Exp(-dy*dy/2)
		}
		for i, d := range down {
			line := x[i*m.side : (i+1)*m.side]
			for j, a := range across {
				line[j] = max(line[j], a*d)
			}
		}
	}
	b.random.Seek(m.seed, streamNoise, index, draw)
	b.random.Normal(b.noise[row*vaeLatent:(row+1)*vaeLatent], 1)
}

func (b *vaeBatch) Loss(params, gradient []float64, rows int) Sums {
	m := b.model
	x, h := nn.View(b.x, rows, m.dim), nn.View(b.h, rows, m.hidden)
	code, z := nn.View(b.code, rows, 2*vaeLatent), nn.View(b.z, rows, vaeLatent)
	g, paint := nn.View(b.g, rows, m.hidden), nn.View(b.paint, rows, m.dim)

	nn.Linear(x, m.wEncode.of(params), m.bEncode.vector(params), h)
	tanh(h)
	nn.Linear(h, m.wCode.of(params), m.bCode.vector(params), code)
	s := Sums{Targets: rows}
	for i := range rows {
		mean, logvar := b.codeOf(code, i)
		for j := range vaeLatent {
			k := i*vaeLatent + j
			z.Data[k] = mean[j] + math.Exp(logvar[j]/2)*b.noise[k]
			s.Loss += 0.5 * (mean[j]*mean[j] + math.Exp(logvar[j]) - 1 - logvar[j])
		}
	}
	nn.Linear(z, m.wDecode.of(params), m.bDecode.vector(params), g)
	tanh(g)
	nn.Linear(g, m.wPaint.of(params), m.bPaint.vector(params), paint)
	for i, l := range paint.Data {
		// −x·log σ(l) − (1−x)·log(1−σ(l)), without overflow
		e := math.Exp(-math.Abs(l))
		s.Loss += max(l, 0) - l*x.Data[i] + math.Log1p(e)
		if gradient != nil {
			p := 1 / (1 + e)
			if l < 0 {
				p = e / (1 + e)
			}
			paint.Data[i] = p - x.Data[i]
		}
	}
	if gradient == nil {
		return s
	}

	dg, dz := nn.View(b.dg, rows, m.hidden), nn.View(b.dz, rows, vaeLatent)
	dcode, dh := nn.View(b.dcode, rows, 2*vaeLatent), nn.View(b.dh, rows, m.hidden)
	nn.LinearGradient(g, m.wPaint.of(params), paint, m.wPaint.of(gradient), m.bPaint.vector(gradient), dg)
	tanhGradient(g, dg)
	nn.LinearGradient(z, m.wDecode.of(params), dg, m.wDecode.of(gradient), m.bDecode.vector(gradient), dz)
	for i := range rows {
		mean, logvar := b.codeOf(code, i)
		dmean, dlogvar := b.codeOf(dcode, i)
		for j := range vaeLatent {
			k := i*vaeLatent + j
			dmean[j] = dz.Data[k] + mean[j]
			dlogvar[j] = dz.Data[k]*b.noise[k]*math.Exp(logvar[j]/2)/2 + (math.Exp(logvar[j])-1)/2
		}
	}
	nn.LinearGradient(h, m.wCode.of(params), dcode, m.wCode.of(gradient), m.bCode.vector(gradient), dh)
	tanhGradient(h, dh)
	nn.LinearGradient(x, m.wEncode.of(params), dh, m.wEncode.of(gradient), m.bEncode.vector(gradient), nn.Matrix{})
	return s
}

func (b *vaeBatch) codeOf(code nn.Matrix, row int) (mean, logvar []float64) {
	c := code.Data[row*code.Stride:]
	return c[:vaeLatent], c[vaeLatent : 2*vaeLatent]
}

func (b *vaeBatch) Logits(rows int) nn.Matrix { return nn.Matrix{Rows: rows} }
