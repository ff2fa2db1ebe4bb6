// Copyright (c) Ebbtide authors
// SPDX-License-Identifier: MPL-2.0

package harness

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/nomad/api"
)

// Agents require these names in certificates of the default region.
const (
	serverName = "server.global.nomad"
	clientName = "client.global.nomad"
)

type Authority struct {
	CAFile string

	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

type Certificate struct{ CAFile, CertFile, KeyFile string }

func NewAuthority(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the directory of certificates: %w", err)
	}
	a := &Authority{CAFile: filepath.Join(dir, "ca.pem"), dir: dir}
	a.cert = certificate("Ebbtide's tests")
	a.cert.IsCA, a.cert.BasicConstraintsValid = true, true
	a.cert.KeyUsage = x509.KeyUsageCertSign
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return a, a.sign(a.cert, a.key, a.CAFile)
}

// Issue creates a certificate for the loopback, for servers and clients. names are additional DNS
// names.
func (a *Authority) Issue(holder string, names ...string) (Certificate, error) {
	c := Certificate{
		CAFile:   a.CAFile,
		CertFile: filepath.Join(a.dir, holder+".pem"),
		KeyFile:  filepath.Join(a.dir, holder+"-key.pem"),
	}
	cert := certificate(holder)
	cert.KeyUsage = x509.KeyUsageDigitalSignature
	cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	cert.DNSNames = append([]string{"localhost"}, names...)
	cert.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, fmt.Errorf("making a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return c, fmt.Errorf("writing the key of %s: %w", holder, err)
	}
	return c, errors.Join(a.sign(cert, key, c.CertFile), writePEM(c.KeyFile, "PRIVATE KEY", der))
}

func (a *Authority) sign(cert *x509.Certificate, key *ecdsa.PrivateKey, file string) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return fmt.Errorf("signing the certificate of %s: %w", cert.Subject.CommonName, err)
	}
	return writePEM(file, "CERTIFICATE", der)
}

// certificate returns the common template, valid from an hour ago in case the clock is set back.
func certificate(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour),
	}
}

func writePEM(file, kind string, der []byte) error {
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	return nil
}

// secure copies ACL and TLS settings from the joined server, and creates a certificate.
func (a *Agent) secure() error {
	if join := a.cfg.Join; join != nil {
		a.cfg.ACL, a.cfg.TLS, a.token, a.authority = join.cfg.ACL, join.cfg.TLS, join.token, join.authority
	}
	if !a.cfg.TLS {
		return nil
	}
	var err error
	if a.authority == nil {
		if a.authority, err = NewAuthority(filepath.Join(a.Dir, "tls")); err != nil {
			return err
		}
	}
	names := []string{clientName}
	if a.cfg.Join == nil {
		names = append(names, serverName)
	}
	cert, err := a.authority.Issue(a.Name, names...)
	a.values["TLS"] = cert
	a.cert = cert
	return err
}

// client returns an API client with the management token.
func (a *Agent) client() (*api.Client, error) {
	client, err := api.NewClient(&api.Config{
		Address: a.Addr, SecretID: a.token,
		TLSConfig: &api.TLSConfig{CACert: a.cert.CAFile, ClientCert: a.cert.CertFile, ClientKey: a.cert.KeyFile},
	})
	if err != nil {
		return nil, fmt.Errorf("making a client of the API at %s: %w", a.Addr, err)
	}
	return client, nil
}

// bootstrap creates the management token.
func (a *Agent) bootstrap(ctx context.Context) error {
	if !a.cfg.ACL || a.token != "" {
		return nil
	}
	return a.poll(ctx, "there is a management token", func() error {
		token, _, err := a.API.ACLTokens().Bootstrap((&api.WriteOptions{}).WithContext(ctx))
		if err != nil {
			return err
		}
		a.token = token.SecretID
		a.API.SetSecretID(a.token)
		return nil
	})
}

// Certificate creates a certificate for an API client.
func (a *Agent) Certificate(holder string) (Certificate, error) { return a.authority.Issue(holder) }

// Token creates a policy and a token with it, which expires after ttl unless that is 0.
func (a *Agent) Token(ctx context.Context, name, rules string, ttl time.Duration) (secret string, err error) {
	w := (&api.WriteOptions{}).WithContext(ctx)
	if _, err := a.servers().ACLPolicies().Upsert(&api.ACLPolicy{Name: name, Rules: rules}, w); err != nil {
		return "", fmt.Errorf("making the policy %s: %w", name, err)
	}
	token, _, err := a.servers().ACLTokens().Create(&api.ACLToken{Name: name, Type: "client", Policies: []string{name}, ExpirationTTL: ttl}, w)
	if err != nil {
		return "", fmt.Errorf("making a token with the policy %s: %w", name, err)
	}
	return token.SecretID, nil
}

// Environ returns the environment of Nomad's tools for this agent. token "" is the management
// token.
func (a *Agent) Environ(token string) []string {
	if token == "" {
		token = a.token
	}
	env := append(a.h.environ(), "NOMAD_ADDR="+a.Addr, "NOMAD_TOKEN="+token)
	if a.cfg.TLS {
		env = append(env, "NOMAD_CACERT="+a.cert.CAFile, "NOMAD_CLIENT_CERT="+a.cert.CertFile, "NOMAD_CLIENT_KEY="+a.cert.KeyFile)
	}
	return env
}
