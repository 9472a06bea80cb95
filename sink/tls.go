package sink

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
)

// TLS says which servers to trust and which certificate to present. Zero trusts the system's authorities and
// presents none.
type TLS struct {
	// CA is a PEM file with the authorities to trust; "" means the system's.
	CA string
	// Cert and Key are PEM files with the client's certificate; "" means none.
	Cert, Key string
	// ServerName must be in the server's certificate; "" means the host of the URL.
	ServerName string
	// InsecureSkipVerify trusts every server.
	InsecureSkipVerify bool
}

// Client reads the files and returns a client's configuration. The error names the key of the setting and
// contains no file name: that may be the private key itself, given in place of a file.
func (t TLS) Client() (*tls.Config, error) {
	c := &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: t.ServerName,
		InsecureSkipVerify: t.InsecureSkipVerify,
	}
	if t.CA != "" {
		text, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("tls.ca cannot be read: %w", withoutPath(err))
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, errors.New("tls.ca contains no certificate; expected a PEM file with certificates")
		}
	}
	if (t.Cert == "") != (t.Key == "") {
		return nil, errors.New("tls.cert or tls.key is missing; expected both or none")
	}
	if t.Cert != "" {
		certificate, err := t.certificate()
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{certificate}
	}
	return c, nil
}

func (t TLS) certificate() (none tls.Certificate, err error) {
	cert, err := os.ReadFile(t.Cert)
	if err != nil {
		return none, fmt.Errorf("tls.cert cannot be read: %w", withoutPath(err))
	}
	key, err := os.ReadFile(t.Key)
	if err != nil {
		return none, fmt.Errorf("tls.key cannot be read: %w", withoutPath(err))
	}
	certificate, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return none, fmt.Errorf("tls.cert and tls.key are not a certificate and its key: %w", err)
	}
	return certificate, nil
}

func withoutPath(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%w; expected the name of a file", pathErr.Err)
	}
	return err
}

// ExplainTLS adds to the error of a failed connection which key of the settings may be wrong. Other errors are
// returned unchanged.
func ExplainTLS(err error) error {
	var (
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
		remote  *net.OpError
	)
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("%w; tls.ca must have the authority that issued the server's certificate", err)
	case errors.As(err, &host):
		return fmt.Errorf("%w; tls.server_name must be a name in the server's certificate", err)
	case errors.As(err, &remote) && remote.Op == "remote error": // crypto/tls names the server's alerts so
		return fmt.Errorf("%w; the server refused the connection: check tls.cert and tls.key", err)
	}
	return err
}
