// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"context"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// A job whose target is lost goes back to where its checkpoint is: at once, or when it was
// about to be set free there.
func TestMove_targetLost(t *testing.T) {
	const homeCall = `register "a"`
	for name, running := range map[string]bool{"before it runs": false, "while it is bound": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.placed = api.AllocClientStatusLost
			if running {
				w.placed = api.AllocClientStatusRunning
			}
			registered := 0
			w.registered = func() error {
				if registered++; registered == 2 {
					w.placed = api.AllocClientStatusPending
				}
				return nil
			}
			var bound []string
			opts := quick()
			opts.Binds = func(_ context.Context, b *Binding) error {
				if b == nil {
					b = &Binding{}
				}
				bound = append(bound, b.Node)
				return nil
			}
			var told string
			opts.Report = func(p Phase, text string) {
				if p == PhaseVerify { // it runs there
					w.mu.Lock()
					w.next.ClientStatus = api.AllocClientStatusLost
					w.mu.Unlock()
				}
				told = text
			}
			res, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, opts)
			must.ErrorContains(t, err, "lost")
			must.Eq(t, []string{saveCall, pinCall, homeCall, unpinCall}, w.calls)
			must.Eq(t, []string{"b", "a", ""}, bound)
			must.Eq(t, "it goes on where it was, from what it saved", told)
			must.False(t, res.Bound)
			g := w.job.TaskGroups[0]
			must.SliceEmpty(t, g.Constraints)
			must.Eq(t, oldID, g.Meta["ebbtide_adopt"])

			// The next move takes that back.
			pinned, err := pin(w.job, "train", "b")
			must.NoError(t, err)
			must.MapEmpty(t, pinned.TaskGroups[0].Meta)
		})
	}

	// Who finds its checkpoint everywhere may go anywhere.
	w := newWorld()
	w.job.TaskGroups[0].Tasks[0].Config["checkpoint"] = []any{map[string]any{"path": "/models/*", "shared": true}}
	w.placed = api.AllocClientStatusLost
	_, err := Move(t.Context(), w, Request{Alloc: oldID, Node: "b"}, quick())
	must.ErrorContains(t, err, "is lost")
	must.Eq(t, []string{saveCall, pinCall, unpinCall}, w.calls)
}
