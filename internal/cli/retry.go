package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/outboxrelay/relay/internal/admin"
	"github.com/outboxrelay/relay/internal/config"
)

func (a *app) retryCommand() *cobra.Command {
	var (
		pipeline string
		now      bool
	)
	c := a.withoutSinks(&cobra.Command{
		Use:   "retry",
		Short: "Make waiting batches due at once",
		Long: `Retry makes every waiting batch due at once, whatever it waits for: an outage, a
Retry-After, the backoff after a refusal. A running relay notices it within a second
or two, ends its pause and tries them. A batch that is refused again has used up one
more of its attempts. On a terminal retry asks first, unless --now is given.

relay status shows what waits, until when and why.`,
		Example: "  relay retry -c relay.yaml\n  relay retry -c relay.yaml --pipeline orders --now",
	}, func(c *cobra.Command, cfg *config.Config) error {
		if err := cfg.CheckSources(); err != nil {
			return err
		}
		selected, err := selectPipelines(cfg, pipeline)
		if err != nil {
			return err
		}
		if !now {
			if err := a.confirmRetry(len(selected), selected[0].Name); err != nil {
				return err
			}
		}
		for _, p := range selected {
			retried, err := retry(c.Context(), p)
			if err != nil {
				a.fail(fmt.Errorf("%s: %w", p.Name, err))
				continue
			}
			if _, err := fmt.Fprintf(a.stdout, "%s: %s\n", p.Name, retried.Text()); err != nil {
				return err
			}
		}
		return nil
	})
	c.Flags().StringVar(&pipeline, "pipeline", "", "of this pipeline only (default all)")
	c.Flags().BoolVar(&now, "now", false, "do not ask for confirmation")
	return c
}

// confirmRetry asks for confirmation on a terminal.
func (a *app) confirmRetry(pipelines int, name string) error {
	if !isTerminal(os.Stdin) || !isTerminal(a.stderr) {
		return nil
	}
	of := name
	if pipelines > 1 {
		of = fmt.Sprintf("all %d pipelines", pipelines)
	}
	ok, err := a.newQuestions(os.Stdin).confirm(fmt.Sprintf("Try everything that waits of %s now?", of))
	if err == nil && !ok || errors.Is(err, errNoAnswer) {
		return errors.New("nothing was changed")
	}
	return err
}

// retry makes the batches of a pipeline due, and those of its dead-letter hook.
func retry(ctx context.Context, p *config.Pipeline) (retried admin.Retried, err error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	b, err := p.OpenBuffer("retry")
	if err != nil {
		return retried, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	return admin.RetryAll(ctx, b, p.SinkNames(), p.SinkHooks())
}
