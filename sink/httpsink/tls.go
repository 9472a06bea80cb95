package httpsink

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// TLS says which servers to trust and which certificate to present.
type TLS struct {
	// CA is a PEM file with the authorities to trust; "" means the system's.
	CA string
	// Cert and Key are PEM files with the client's certificate; "" means none.
	Cert, Key string
	// ServerName must be in the server's certificate; "" means the URL's host.
	ServerName string
	// InsecureSkipVerify trusts every server.
	InsecureSkipVerify bool
}

func (t TLS) client() (*tls.Config, error) {
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
		certificate, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls.cert and tls.key cannot be read: %w", withoutPath(err))
		}
		c.Certificates = []tls.Certificate{certificate}
	}
	return c, nil
}

// withoutPath removes a file's name from an error: it may be the key itself, given instead of a file.
func withoutPath(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%w; expected the name of a file", pathErr.Err)
	}
	return err
}
