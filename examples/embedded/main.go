// Command embedded is a service that moves its own events: it places an order for each POST /orders, with the order's event in
// the same transaction, and runs the relay in the same process.
//
// DATABASE_URL names a PostgreSQL database with the tables of shop.sql, which has one customer: curl -d customer=customer-7 localhost:8080/orders
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/outboxrelay/relay"
	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/pgoutbox"
)

//go:embed relay.yaml
var configuration []byte

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, "127.0.0.1:8080"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run serves and relays until ctx ends. Then it finishes the requests and the batches in flight.
func run(ctx context.Context, address string) (err error) {
	r, err := relay.Open("relay.yaml", relay.Options{Text: configuration})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if _, err := r.Migrate(ctx); err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()

	mux := http.NewServeMux()
	mux.Handle("POST /orders", placeOrder(pool))
	mux.Handle("/relay/", http.StripPrefix("/relay", r.Handler())) // /relay/readyz, /relay/metrics, ...
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.Run(ctx) })
	group.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return server.Shutdown(context.WithoutCancel(ctx))
	})
	return group.Wait()
}

func placeOrder(pool *pgxpool.Pool) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		customer := req.FormValue("customer")
		err := pgx.BeginFunc(req.Context(), pool, func(tx pgx.Tx) error {
			var order int64
			err := tx.QueryRow(req.Context(), "INSERT INTO orders (customer_id, cents) VALUES ($1, 4200) RETURNING id", customer).Scan(&order)
			if err != nil {
				return err
			}
			return pgoutbox.Insert(req.Context(), tx, outbox.Event{
				Topic: "orders.created", Key: &customer, Payload: fmt.Appendf(nil, `{"order": %d}`, order),
			})
		})
		if err != nil {
			slog.ErrorContext(req.Context(), "placing an order failed", "error", err)
			http.Error(w, "the order was not placed", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
}
