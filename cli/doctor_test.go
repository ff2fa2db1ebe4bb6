// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func runDoctor(args ...string) (status int, out, err string) {
	var stdout, stderr strings.Builder
	status = Run(append([]string{"doctor"}, args...), strings.NewReader(""), &stdout, &stderr)
	return status, stdout.String(), stderr.String()
}

// A remote agent, so that the test does not depend on this machine.
func remoteAgent(t *testing.T, mode string) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/agent/self":
			_, _ = w.Write([]byte(`{"config": {"PluginDir": "/p", "Client": {"Enabled": true, "MaxKillTimeout": "5m"},
				"Telemetry": {"PublishAllocationMetrics": true}, "Version": {"Version": "1.11.2"},
				"Plugins": [{"Name": "ebbtide-driver", "Config": {"engine": "exec", "mode": "` + mode + `"}}]},
				"stats": {"client": {"node_id": "n"}}}`))
		case "/v1/node/n":
			_, _ = w.Write([]byte(`{"Attributes": {"unique.hostname": "elsewhere.example", "driver.ebbtide.version": "1"},
				"Drivers": {"ebbtide": {"Detected": true, "Healthy": true}}}`))
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestDoctor(t *testing.T) {
	t.Setenv("NOMAD_ADDR", "")
	t.Setenv("NOMAD_TOKEN", "")

	status, out, errs := runDoctor("-address", remoteAgent(t, "weight"))
	must.Eq(t, exitOK, status, must.Sprint(out))
	must.Eq(t, "", errs)
	must.StrContains(t, out, "ok    configuration ")
	must.StrContains(t, out, " 0 fail, ")

	status, out, _ = runDoctor("--json", "--address", remoteAgent(t, "hard"))
	must.Eq(t, exitError, status)
	var got struct {
		Checks []struct{ Name, Status, Seen, Do string }
		Counts map[string]int
	}
	must.NoError(t, json.Unmarshal([]byte(out), &got))
	must.Eq(t, 1, got.Counts["fail"])
	for _, c := range got.Checks {
		if c.Status == "fail" {
			must.Eq(t, "plugin options", c.Name)
			must.StrContains(t, c.Seen, `mode: must be one of weight, quota, got "hard"`)
			must.NotEq(t, "", c.Do)
		}
	}
}

func TestDoctor_usage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-conf", "x"}, "allowed are -address, -config, -json"},
		{[]string{"/etc/nomad.d"}, "-config"},
		{[]string{"-config", "testdata/none.hcl"}, "no such file"},
	} {
		status, out, errs := runDoctor(c.args...)
		must.Eq(t, exitUsage, status)
		must.Eq(t, "", out)
		must.StrContains(t, errs, c.want)
	}
	status, out, _ := runDoctor("-help")
	must.Eq(t, exitOK, status)
	must.StrContains(t, out, "Usage: ebbtide doctor")
}
