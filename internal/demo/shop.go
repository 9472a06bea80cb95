package demo

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/sqliteoutbox"
)

// shop is the demo's application. It places orders in its database.
type shop struct {
	db    *sql.DB
	audit *audit

	mu    sync.Mutex
	order int64 // the last order's number
	good  int   // orders that were committed and are not poisoned
}

func openShop(ctx context.Context, file string, a *audit) (*shop, error) {
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
	return &shop{db: db, audit: a}, nil
}

func (s *shop) close() error { return s.db.Close() }

// pauseEvery is the number of orders between pauses without a rate limit.
const pauseEvery = 50

// run places orders until events of them are committed (0 for no limit), or ctx ends, at a rate per second
// (0 for no limit). Orders placed before count; those that the broker rejects do not.
func (s *shop) run(ctx context.Context, events int, rate float64) error {
	next := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for placed := 1; ctx.Err() == nil; placed++ {
		if enough, err := s.placeUpTo(ctx, events); enough || err != nil {
			return err
		}
		now := time.Now()
		switch {
		case rate > 0:
			next = next.Add(time.Duration(float64(time.Second) / rate))
			if now.Sub(next) > time.Second { // it was paused, or cannot keep up
				next = now
			}
		case placed%pauseEvery == 0: // let the relay write: SQLite has one writer at a time
			next = now.Add(time.Millisecond)
		}
		if next.After(now) {
			timer.Reset(next.Sub(now))
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
		}
	}
	return nil
}

func (s *shop) placeUpTo(ctx context.Context, events int) (enough bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if events > 0 && s.good >= events {
		return true, nil
	}
	kind := usual
	if rand.IntN(10) == 0 { //nolint:gosec // not secret
		kind = declined
	}
	_, err = s.place(ctx, kind)
	return false, err
}

// pause keeps the shop from placing orders until resume is called.
func (s *shop) pause() (resume func()) {
	s.mu.Lock()
	return s.mu.Unlock
}

// kind is what becomes of an order.
type kind int

const (
	usual    kind = iota
	declined      // rolled back, as for a declined card
	poisoned      // committed, and its message is larger than the stream takes
)

// row is a row of the table outbox_events.
type row struct {
	id                  int64
	topic, key, payload string
}

// placeOne places one order beside those of run.
func (s *shop) placeOne(ctx context.Context, k kind) (row, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.place(ctx, k)
}

// place inserts an order and its event in one transaction, and returns the event's row.
func (s *shop) place(ctx context.Context, k kind) (r row, err error) {
	ctx = context.WithoutCancel(ctx)
	s.order++
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return r, err
	}
	committed := false
	defer func() {
		if !committed {
			err = errors.Join(err, tx.Rollback())
		}
		if err != nil {
			err = fmt.Errorf("placing order %d: %w", s.order, err)
		}
	}()
	customer, cents := "customer-"+strconv.Itoa(rand.IntN(1000)), 100+rand.IntN(100_000) //nolint:gosec // not secret
	if _, err := tx.ExecContext(ctx, "INSERT INTO orders (id, customer, cents) VALUES (?, ?, ?)", s.order, customer, cents); err != nil {
		return r, err
	}
	payload := fmt.Sprintf(`{"order": %d, "customer": %q, "cents": %d}`, s.order, customer, cents)
	if k == poisoned {
		payload = fmt.Sprintf(`{"order": %d, "customer": %q, "note": %q}`, s.order, customer, strings.Repeat("Happy birthday! ", 2*maxMessage/16))
	}
	if err := sqliteoutbox.Insert(ctx, tx, outbox.Event{Topic: subject, Key: &customer, Payload: []byte(payload)}); err != nil {
		return r, err
	}
	if k == declined {
		s.audit.rolledBack()
		return r, nil
	}
	if k == poisoned || s.order == 1 {
		if err := tx.QueryRowContext(ctx, "SELECT id, topic, key, payload FROM outbox_events ORDER BY id DESC LIMIT 1").Scan(&r.id, &r.topic, &r.key, &r.payload); err != nil {
			return r, err
		}
	}
	if err := tx.Commit(); err != nil {
		return r, err
	}
	committed = true
	s.audit.committed(s.order, time.Now())
	if k == usual {
		s.good++
	}
	return r, nil
}

// claimed counts the batches that relays have claimed and not finished, and their events.
func (s *shop) claimed(ctx context.Context) (batches, events int, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT count(*), coalesce(sum(events), 0) FROM outbox_batches").Scan(&batches, &events)
	return batches, events, err
}

// watchDead reports dead letters to the audit until ctx ends.
func (s *shop) watchDead(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := s.countDead(context.WithoutCancel(ctx)); err != nil {
				return err
			}
		}
	}
}

func (s *shop) countDead(ctx context.Context) (err error) {
	rows, err := s.db.QueryContext(ctx, "SELECT payload FROM outbox_dead_letters")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var payload []byte
		if err := rows.Scan(&payload); err != nil {
			return err
		}
		var event struct{ Order int64 }
		if err := json.Unmarshal(payload, &event); err != nil {
			return fmt.Errorf("reading a dead letter: %w", err)
		}
		s.audit.died(event.Order)
	}
	return rows.Err()
}

// check compares the orders in the database with the events that arrived.
func (s *shop) check(ctx context.Context) (_ *Result, err error) {
	if err := s.countDead(ctx); err != nil {
		return nil, err
	}
	rows, err := s.db.QueryContext(ctx, "SELECT id FROM orders")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	result := s.audit.result()
	for rows.Next() {
		var order int64
		if err := rows.Scan(&order); err != nil {
			return nil, err
		}
		result.addOrder(order)
	}
	return result, rows.Err()
}
