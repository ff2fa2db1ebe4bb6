// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"

	"github.com/shoenig/test/must"
)

func TestCertificates(t *testing.T) {
	ours, err := NewAuthority(t.TempDir())
	must.NoError(t, err)
	stranger, err := NewAuthority(t.TempDir())
	must.NoError(t, err)
	files, err := ours.Issue("agent", serverName)
	must.NoError(t, err)
	pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	must.NoError(t, err)
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	must.NoError(t, err)
	verify := func(caFile, name string) error {
		ca, err := os.ReadFile(caFile)
		must.NoError(t, err)
		pool := x509.NewCertPool()
		must.True(t, pool.AppendCertsFromPEM(ca))
		_, err = cert.Verify(x509.VerifyOptions{Roots: pool, DNSName: name})
		return err
	}
	for _, name := range []string{"127.0.0.1", "localhost", serverName} {
		must.NoError(t, verify(files.CAFile, name))
	}
	must.Error(t, verify(files.CAFile, clientName))
	must.Error(t, verify(stranger.CAFile, serverName))
}
