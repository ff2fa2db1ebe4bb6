// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/ebbtide/ebbtide/shim/migration"
)

func TestParse(t *testing.T) {
	c, err := Parse(nil, "empty.hcl")
	must.NoError(t, err)
	must.Eq(t, Default(), c)

	c, err = Parse([]byte(`
interval  = "1m"
dry_run   = true
log_level = "debug"
nomad {
  address         = "https://nomad.example:4646"
  region          = "eu"
  token_file      = "/secrets/token"
  ca_file         = "ca.pem"
  cert_file       = "cert.pem"
  key_file        = "key.pem"
  tls_server_name = "server.eu.nomad"
}
leader {
  namespace = "ops"
  path      = "a/b"
  ttl       = "20s"
  delay     = "5s"
}
web {
  address = ""
}
relocation {
  enabled  = false
  interval = "2m"
  margin   = 0.1
}
placement {
  enabled        = true
  capacity_aware = false
  window         = "5s"
  margin         = 0.5
  hold_timeout   = "7s"
}
migration {
  enabled = true
  weights {
    PC = 3
  }
}
rebalance {
  enabled  = true
  interval = "2m"
}
queue {
  enabled = false
  cost    = "2m"
  probe   = "5m"
  patience = "1h"
  owner "vision" {
    weight = 2.5
  }
}
limits {
  moves_per_minute = 1
  in_flight        = 1
  per_node         = 1
  cooldown         = "0s"
  backoff          = "2s"
}
window "night" {
  cron      = "0 22 * * *"
  duration  = "8h"
  time_zone = "Europe/Berlin"
}
`), "all.hcl")
	must.NoError(t, err)
	must.Eq(t, Config{
		Interval: time.Minute, DryRun: true, LogLevel: "debug",
		Nomad: Nomad{
			Address: "https://nomad.example:4646", Region: "eu", TokenFile: "/secrets/token",
			CAFile: "ca.pem", CertFile: "cert.pem", KeyFile: "key.pem", TLSServerName: "server.eu.nomad",
		},
		Leader:     Leader{Namespace: "ops", Path: "a/b", TTL: 20 * time.Second, Delay: 5 * time.Second},
		Relocation: Relocation{Interval: 2 * time.Minute, Margin: 0.1},
		Placement:  Placement{Enabled: true, Window: 5 * time.Second, Margin: 0.5, HoldTimeout: 7 * time.Second},
		Migration:  Migration{Enabled: true, Weights: migration.Weights{PC: 3, WC: 1.5, CC: 1}},
		Rebalance:  Rebalance{Enabled: true, Interval: 2 * time.Minute},
		Queue:      Queue{Cost: 2 * time.Minute, Probe: 5 * time.Minute, Patience: time.Hour, Weights: map[string]float64{"vision": 2.5}},
		Limits:     Limits{MovesPerMinute: 1, InFlight: 1, PerNode: 1, Backoff: 2 * time.Second},
		Windows:    []Window{{Name: "night", Cron: "0 22 * * *", Duration: 8 * time.Hour, TimeZone: "Europe/Berlin"}},
	}, c)
}

// A preset replaces defaults, not what is set.
func TestParse_preset(t *testing.T) {
	c, err := Parse([]byte("preset = \"specon\"\nrebalance {\n interval = \"1m\"\n}"), "x.hcl")
	must.NoError(t, err)
	must.False(t, c.Relocation.Enabled || c.Queue.Enabled || c.Placement.Enabled)
	must.True(t, c.Migration.Enabled && c.Rebalance.Enabled)
	must.Eq(t, time.Minute, c.Rebalance.Interval)
	c, err = Parse([]byte("preset = \"flowcon-2022\"\nqueue {\n enabled = true\n}"), "x.hcl")
	must.NoError(t, err)
	must.True(t, c.Placement.Enabled && c.Queue.Enabled)
	must.False(t, c.Placement.CapacityAware)
	_, err = Parse([]byte(`preset = "tradl"`), "x.hcl")
	must.EqError(t, err, `preset: must be one of flowcon-2022, specon, got "tradl"`)
}

func TestParse_bad(t *testing.T) {
	for text, want := range map[string]string{
		`interval = `:                                               `bad.hcl:1: Missing expression: `,
		`intervall = "1s"`:                                          `bad.hcl:1: Unsupported argument: An argument named "intervall" is not expected here`,
		`placment {}`:                                               `bad.hcl:1: Unsupported block type: Blocks of type "placment" are not expected here`,
		`dry_run = "perhaps"`:                                       `bad.hcl:1: Unsuitable value type: `,
		`interval = "10"`:                                           `interval: must be a duration like 30s, got "10"`,
		`interval = "10ms"`:                                         `interval: must be a duration from 1s to 1h0m0s, got 10ms`,
		`log_level = "loud"`:                                        `log_level: must be one of trace, debug, info, warn, error, got "loud"`,
		"nomad {\n address = \"nomad:4646\"\n}":                     `nomad.address: must be a URL like https://127.0.0.1:4646, got "nomad:4646"`,
		"nomad {\n cert_file = \"c\"\n}":                            `nomad: cert_file and key_file must be set together, got "c" and ""`,
		"leader {\n path = \"nomad/jobs\"\n}":                       `leader.path: must be the path of a Nomad variable, not beneath nomad/, got "nomad/jobs"`,
		"leader {\n namespace = \"\"\n}":                            `leader.namespace: must not be empty`,
		"leader {\n ttl = \"1s\"\n}":                                `leader.ttl: must be a duration from 10s to 24h0m0s, got 1s`,
		"web {\n address = \"9646\"\n}":                             `web.address: must be host:port, or empty, got "9646"`,
		"migration {\n weights {\n PC = 1\n WC = 2\n}\n}":           `migration.weights.WC: must be from 0 to that of PC, 1, got 2`,
		"relocation {\n margin = 1\n}":                              `relocation.margin: must be ≥ 0 and < 1, got 1`,
		"relocation {\n interval = \"1s\"\n}":                       `relocation.interval: must be a duration from 10s to 24h0m0s, got 1s`,
		"placement {\n margin = 1\n}":                               `placement.margin: must be ≥ 0 and < 1, got 1`,
		"placement {\n window = \"0s\"\n}":                          `placement.window: must be a duration from 1s to 1h0m0s, got 0s`,
		"rebalance {\n interval = \"1s\"\n}":                        `rebalance.interval: must be a duration from 10s to 24h0m0s, got 1s`,
		"limits {\n moves_per_minute = 0\n}":                        `limits.moves_per_minute: must be from 1 to 10000, got 0`,
		"window \"w\" {\n cron = \"always\"\n duration = \"1h\"\n}": `window "w": cron: must be an expression like "0 22 * * *", got "always"`,
		"window \"w\" {\n cron = \"@daily\"\n duration = \"1s\"\n}": `window "w": duration: must be from 1m to 168h, got 1s`,
		"window \"w\" {\n cron = \"@daily\"\n duration = \"1h\"\n time_zone = \"Berlin\"\n}": `window "w": time_zone: must be a name like Europe/Berlin, got "Berlin"`,
		"limits {\n in_flight = 1\n per_node = 2\n}":                                         `limits.per_node: must not be more than in_flight (1), got 2`,
	} {
		_, err := Parse([]byte(text), "bad.hcl")
		must.ErrorContains(t, err, want, must.Sprint(text))
	}
	// All errors at once.
	_, err := Parse([]byte("interval = \"x\"\nlog_level = \"y\"\nlimits {\n cooldown = \"z\"\n}"), "bad.hcl")
	must.EqError(t, err, `interval: must be a duration like 30s, got "x"
limits.cooldown: must be a duration like 30s, got "z"
log_level: must be one of trace, debug, info, warn, error, got "y"`)
}

// The command line wins over the file, the file over the environment.
func TestNomad_Over(t *testing.T) {
	file := Nomad{Address: "https://file:4646", Region: "eu", TokenFile: "/nowhere", CAFile: "ca.pem"}
	must.Eq(t, file, Nomad{}.Over(file))
	must.Eq(t, Nomad{Address: "https://line:4646", Region: "eu", Token: "secret", CAFile: "ca.pem"}, Nomad{Address: "https://line:4646", Token: "secret"}.Over(file))

	t.Setenv("NOMAD_ADDR", "nomad:4646")
	_, err := Nomad{}.Client()
	must.EqError(t, err, `the address of Nomad's API must be a URL like https://127.0.0.1:4646, got "nomad:4646"`)
	client, err := Nomad{Address: "http://line:4646"}.Client()
	must.NoError(t, err)
	must.Eq(t, "http://line:4646", client.Address())
}

func TestConfig_Suspended(t *testing.T) {
	at := func(text string) time.Time {
		tm, err := time.Parse(time.RFC3339, text)
		must.NoError(t, err)
		return tm
	}
	c := Default()
	must.Eq(t, "", c.Closed(time.Now()))
	c.Windows = []Window{{Name: "night", Cron: "0 22 * * *", Duration: 8 * time.Hour, TimeZone: "Europe/Berlin"}, {Name: "noon", Cron: "0 12 * * 6", Duration: time.Hour, TimeZone: "UTC"}}
	must.NoError(t, c.Validate())
	for text, want := range map[string]string{
		"2026-01-07T20:59:59Z": "the next window starts 2026-01-07T21:00:00Z",
		"2026-01-07T21:00:00Z": "",
		"2026-01-08T04:59:59Z": "",
		"2026-01-08T05:00:00Z": "the next window starts 2026-01-08T21:00:00Z",
		"2026-07-07T20:00:00Z": "", // summer time
		"2026-01-10T11:00:00Z": "the next window starts 2026-01-10T12:00:00Z",
		"2026-01-10T12:30:00Z": "",
	} {
		must.Eq(t, want, c.Closed(at(text)), must.Sprint(text))
	}
}

// A node's agent answers at its own address, also to a client that uses a socket, and its certificate
// names its role.
func TestNomad_Agent(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(`"` + r.TLS.ServerName + `"`))
	}))
	defer server.Close()
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))
	n := Nomad{Address: "unix:///nowhere", Region: "eu", CAFile: ca, TLSServerName: "server.eu.nomad"}
	client, err := n.Agent(&api.Node{HTTPAddr: server.Listener.Addr().String(), TLSEnabled: true})
	must.NoError(t, err)
	_, err = client.Status().Leader()
	must.ErrorContains(t, err, "not client.eu.nomad")
	client, err = n.Agent(&api.Node{HTTPAddr: "10.0.0.1:4646"})
	must.NoError(t, err)
	must.Eq(t, "http://10.0.0.1:4646", client.Address())
}

// Changed credentials are re-read; unreadable ones keep the last good values.
func TestNomad_Client_credentials(t *testing.T) {
	got := make(chan string, 1)
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("X-Nomad-Token")
		_, _ = w.Write([]byte(`"10.0.0.1:4647"`))
	})
	server := httptest.NewTLSServer(answer)
	defer server.Close()
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.pem")
	write := func(name, text string) { must.NoError(t, os.WriteFile(name, []byte(text), 0o600)) }
	certificate := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))

	_, err := Nomad{Address: server.URL, TokenFile: token}.Client()
	must.ErrorContains(t, err, "nomad.token_file: open ")
	write(token, "one\n")
	t.Setenv("NOMAD_TOKEN", "another")
	write(ca, otherCA(t))
	client, err := Nomad{Address: server.URL, TokenFile: token, CAFile: ca}.Client()
	must.NoError(t, err)
	_, err = client.Status().Leader()
	must.ErrorContains(t, err, "certificate")
	write(ca, certificate)
	ask := func() string {
		_, err := client.Status().Leader()
		must.NoError(t, err)
		return <-got
	}
	must.Eq(t, "one", ask())
	write(token, "another one\n")
	must.Eq(t, "another one", ask())
	must.NoError(t, os.Remove(token))
	must.Eq(t, "another one", ask())
	write(token, "three")
	must.Eq(t, "three", ask())

	// Over a Unix socket, as from within a task.
	socket := filepath.Join(dir, "api.sock")
	l, err := net.Listen("unix", socket)
	must.NoError(t, err)
	agent := &http.Server{Handler: answer, ReadHeaderTimeout: time.Minute}
	go func() { _ = agent.Serve(l) }()
	defer agent.Close()
	client, err = Nomad{Address: "unix://" + socket, TokenFile: token}.Client()
	must.NoError(t, err)
	must.Eq(t, "three", ask())
}

// otherCA returns an unrelated certificate.
func otherCA(t *testing.T) string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// The page has a row for every option, with its default where the row gives one.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/shim.md")
	must.NoError(t, err)
	var options func(t reflect.Type) []string
	options = func(t reflect.Type) (names []string) {
		for i := range t.NumField() {
			name, kind, _ := strings.Cut(t.Field(i).Tag.Get("hcl"), ",")
			if kind == "block" {
				inner := t.Field(i).Type
				for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
					inner = inner.Elem()
				}
				names = append(names, options(inner)...)
			} else if kind != "label" {
				names = append(names, name)
			}
		}
		return names
	}
	names := options(reflect.TypeFor[file]())
	must.Greater(t, 30, len(names))
	for _, name := range names {
		must.RegexMatch(t, regexp.MustCompile("(?m)[`.]"+name+"`|^  "+name+" +="), string(page))
	}
	d := Default()
	for option, is := range map[string]time.Duration{
		"interval": d.Interval, "leader.ttl": d.Leader.TTL, "leader.delay": d.Leader.Delay, "relocation.interval": d.Relocation.Interval,
		"placement.window": d.Placement.Window, "placement.hold_timeout": d.Placement.HoldTimeout, "rebalance.interval": d.Rebalance.Interval,
		"limits.cooldown": d.Limits.Cooldown, "limits.backoff": d.Limits.Backoff,
	} {
		short := regexp.MustCompile("([hm])0[ms].*").ReplaceAllString(is.String(), "$1")
		must.StrContains(t, string(page), "| `"+option+"` | `\""+short+"\"` |")
	}
}
