package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/certfile"
	"github.com/outboxrelay/relay/internal/config"
	"github.com/outboxrelay/relay/outbox/buffer"
)

const (
	// healthTimeout is shorter than the 5 s that process managers usually allow.
	healthTimeout = 4 * time.Second
	// healthLimit is how much of a response is read.
	healthLimit = 1 << 20
)

func (a *app) healthCommand() *cobra.Command {
	var ready bool
	c := a.withoutSinks(&cobra.Command{
		Use:   "health",
		Short: "Ask a running relay whether it works, for health checks of containers",
		Long: `Health asks the admin endpoint (admin.listen) of the relay that runs on this machine
with this configuration, and exits with 0 if it works. With --ready every pipeline must
also reach its database and its sink; what is not ready is printed, one a line, with
the reason if a token is configured. Do not restart a relay that is not ready: a
restart does not repair a sink.`,
		Example: "  relay health -c relay.yaml\n  relay health -c relay.yaml --ready",
	}, func(c *cobra.Command, cfg *config.Config) error {
		path := "/livez"
		if ready {
			path = "/readyz"
		}
		return a.health(c.Context(), cfg.Admin, path)
	})
	c.Flags().BoolVar(&ready, "ready", false, "fail also if a database or sink cannot be reached, or a pipeline stands still")
	return c
}

// health requests a path of the admin endpoint.
func (a *app) health(ctx context.Context, admin config.Admin, path string) error {
	if admin.Listen == "" {
		return usage(`admin.listen is ""; expected an address, because health asks the admin endpoint`)
	}
	status, body, err := askRelay(ctx, admin, path, healthTimeout)
	if err != nil {
		return err
	}
	if ready, known := readinessOf(body); known {
		a.failed = !ready.Ready
		_, err = io.WriteString(a.stdout, a.redact(ready.text()))
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("GET %s: %d %s: %s", adminURL(admin, path), status, http.StatusText(status), strings.TrimSpace(string(body)))
	}
	_, err = a.stdout.Write(body)
	return err
}

func adminURL(admin config.Admin, path string) string {
	return scheme(admin) + "://" + admin.Listen + path
}

// askRelay requests a path of the admin endpoint. A listen address without a host, or with
// 0.0.0.0, is dialled on this machine.
func askRelay(ctx context.Context, admin config.Admin, path string, timeout time.Duration) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	url := adminURL(admin, path)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	if tokens := admin.AllTokens(); len(tokens) > 0 {
		request.Header.Set("Authorization", "Bearer "+tokens[0].Token.Reveal())
	}
	transport := &http.Transport{DisableKeepAlives: true} // and no proxy
	if admin.TLS.Cert != "" {
		if transport.TLSClientConfig, err = certfile.Client(admin.TLS.Cert); err != nil {
			return 0, nil, fmt.Errorf("admin.tls.%w", err)
		}
	}
	client := http.Client{Transport: transport}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, fmt.Errorf("the relay does not answer at admin.listen; start it with relay run, or see its log: %w", err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode == http.StatusSwitchingProtocols { // its body is the connection, whose reads no context ends
		return 0, nil, fmt.Errorf("GET %s: %s: another program than the relay answers at admin.listen", url, response.Status)
	}
	body, err = io.ReadAll(io.LimitReader(response.Body, healthLimit))
	return response.StatusCode, body, err
}

// localTimeout is how long a relay on this machine may take to say what it does.
const localTimeout = time.Second

// localRelay returns what the relay that answers at admin.listen says of a pipeline whose database does not work for it, as far as it says; "" otherwise.
func localRelay(ctx context.Context, admin config.Admin, pipeline string) string {
	if admin.Listen == "" {
		return ""
	}
	_, body, err := askRelay(ctx, admin, "/readyz", localTimeout)
	if err != nil {
		return ""
	}
	r, _ := readinessOf(body)
	for _, p := range r.Pipelines {
		if p.Name != pipeline || p.Class != buffer.NotReadyDatabase {
			continue
		}
		says := strings.TrimSuffix(p.text(p.Name), "\n")
		return fmt.Sprintf("a relay answers at admin.listen (%s) and does not report to the database; it says of %s. > restart it, because it reads secrets at its start", admin.Listen, says)
	}
	return ""
}

// readiness is the answer of /readyz.
type readiness struct {
	Ready     bool
	Pipelines []struct {
		readyState
		Sinks []readyState
	}
}

type readyState struct {
	Name, Class, Reason string
	Ready               bool
}

// readinessOf reports false if the text is not an answer of /readyz.
func readinessOf(body []byte) (r readiness, known bool) {
	err := json.Unmarshal(body, &r)
	return r, err == nil && r.Pipelines != nil
}

// text has a line for each pipeline, and one for each of several sinks.
func (r readiness) text() string {
	var b strings.Builder
	for _, p := range r.Pipelines {
		b.WriteString(p.text(p.Name))
		for _, s := range p.Sinks {
			b.WriteString(s.text(p.Name + "/" + s.Name))
		}
	}
	return b.String()
}

func (s readyState) text(name string) string {
	switch {
	case s.Ready:
		return name + ": ready\n"
	case s.Reason == "":
		return name + ": not ready: " + s.Class + "\n"
	}
	return name + ": not ready: " + oneLine(s.Reason) + "\n" // it begins with the class
}
