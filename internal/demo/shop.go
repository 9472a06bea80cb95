package demo

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/sqlite"
)

// shop is the demo's application. It places orders in its database.
type shop struct{ db *sql.DB }

func openShop(ctx context.Context, file string) (*shop, error) {
	name := url.URL{Scheme: "file", Path: file, RawQuery: url.Values{
		"_txlock": {"immediate"}, "_pragma": {"busy_timeout(5000)", "synchronous(NORMAL)"},
	}.Encode()}
	db, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx, "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL)"); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &shop{db}, nil
}

func (s *shop) close() error { return s.db.Close() }

// pauseEvery is the number of orders between pauses without a rate limit.
const pauseEvery = 50

// run places orders until events of them are committed (0 for no limit) or ctx ends,
// at a rate per second (0 for no limit).
func (s *shop) run(ctx context.Context, a *audit, events, rate int) error {
	start := time.Now()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for order, committed := int64(1), 0; events == 0 || committed < events; order++ {
		if ctx.Err() != nil {
			return nil
		}
		ok, err := s.place(context.WithoutCancel(ctx), order)
		if err != nil {
			return fmt.Errorf("placing order %d: %w", order, err)
		}
		if ok {
			committed++
			a.committed(order, time.Now())
		} else {
			a.rolledBack()
		}
		var ahead time.Duration
		switch {
		case rate > 0:
			ahead = time.Duration(order)*time.Second/time.Duration(rate) - time.Since(start)
		case order%pauseEvery == 0: // let the relay write: SQLite has one writer at a time
			ahead = time.Millisecond
		}
		if ahead > 0 {
			pause.Reset(ahead)
			select {
			case <-ctx.Done():
			case <-pause.C:
			}
		}
	}
	return nil
}

// place inserts an order and its event in one transaction. It rolls back one in ten, as
// for a declined card, and reports whether it committed.
func (s *shop) place(ctx context.Context, order int64) (committed bool, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return false, err
	}
	defer func() {
		if !committed {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	customer, cents := "customer-"+strconv.Itoa(rand.IntN(1000)), 100+rand.IntN(100_000) //nolint:gosec // not secret
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id, customer, cents) VALUES (?, ?, ?)", order, customer, cents); err != nil {
		return false, err
	}
	if err := sqlite.Insert(ctx, tx, outbox.Event{
		Topic: subject, Key: &customer,
		Payload: fmt.Appendf(nil, `{"order": %d, "customer": %q, "cents": %d}`, order, customer, cents),
	}); err != nil {
		return false, err
	}
	if rand.IntN(10) == 0 { //nolint:gosec // not secret
		return false, nil
	}
	if err := tx.Commit(); err != nil {
		return false, err
	}
	return true, nil
}

// check compares the orders in the database with the events that arrived.
func (s *shop) check(ctx context.Context, a *audit) (_ *Result, err error) {
	rows, err := s.db.QueryContext(ctx, "SELECT id FROM orders")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	result := a.result()
	for rows.Next() {
		var order int64
		if err := rows.Scan(&order); err != nil {
			return nil, err
		}
		result.addOrder(order)
	}
	return result, rows.Err()
}
