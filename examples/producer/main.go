// Command producer is a busy shop: it places orders, each with its event in the same transaction, and ships most of
// them. Some customers are unknown; the database rejects their orders at COMMIT, with the events.
//
// DATABASE_URL names a database with the tables of shop.sql, outbox_events, and a
// second buffer outbox_shipments.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

func main() {
	every := flag.Duration("every", 100*time.Millisecond, "time between two orders")
	orders := flag.Int("orders", 0, "stop after this many; 0 runs until a signal")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL"), *every, *orders); err != nil {
		fmt.Fprintln(os.Stderr, "producer:", err)
		os.Exit(1)
	}
}

// sales counts the orders by result.
type sales struct{ placed, shipped, refused int }

func (s sales) String() string {
	return fmt.Sprintf("committed: %d orders placed, %d shipped; rolled back: %d", s.placed, s.shipped, s.refused)
}

// run places orders until ctx ends or the limit is reached. It prints the counts every ten seconds and at the end.
func run(ctx context.Context, databaseURL string, every time.Duration, orders int) error {
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	next, report := time.NewTicker(every), time.NewTicker(10*time.Second)
	defer next.Stop()
	defer report.Stop()

	var sum sales
	for n := 1; orders == 0 || n <= orders; {
		select {
		case <-ctx.Done():
			fmt.Println(sum)
			return nil
		case <-report.C:
			fmt.Println(sum)
		case <-next.C:
			if err := sum.sell(ctx, pool, n); err != nil && ctx.Err() == nil {
				return err
			}
			n++
		}
	}
	fmt.Println(sum)
	return nil
}

// sell places the nth order. Every fifth customer is unknown; every other order ships.
func (s *sales) sell(ctx context.Context, pool *pgxpool.Pool, n int) error {
	customer := "customer-7"
	if n%5 == 0 {
		customer = "unknown"
	}
	order, err := placeOrder(ctx, pool, customer, 100+n)
	if refused(err) {
		s.refused++
		return nil
	}
	if err != nil {
		return err
	}
	s.placed++
	if n%2 == 0 {
		if err := ship(ctx, pool, order); err != nil {
			return err
		}
		s.shipped++
	}
	return nil
}

// refused reports whether the customer does not exist.
func refused(err error) bool {
	const foreignKeyViolation = "23503"
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == foreignKeyViolation
}
