// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package move

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// Nomad 1.11 has no plan for a workload identity; other errors are errors.
func TestAPI_Plan(t *testing.T) {
	for text, noPlan := range map[string]bool{
		"rpc error: acl token lookup failed: index error: UUID must be 36 characters": true,
		"No cluster leader": false,
	} {
		nomad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, text, http.StatusInternalServerError)
		}))
		client, err := api.NewClient(&api.Config{Address: nomad.URL})
		must.NoError(t, err)
		_, err = API{client}.Plan(t.Context(), &api.Job{ID: ptr("vae")})
		must.ErrorContains(t, err, text)
		if noPlan {
			must.ErrorIs(t, err, ErrNoPlan)
		} else {
			must.ErrorContains(t, err, "asking Nomad for its plan: ")
			must.False(t, identityRefused(err))
		}
		nomad.Close()
	}
}
