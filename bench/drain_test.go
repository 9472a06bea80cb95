package bench

import (
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// BenchmarkDrain drains 300,000 waiting events of 300 bytes in batches of 1000, with
// the loop and the relay alternating, and reports rates and costs per event.
// Everything runs on this machine, PostgreSQL with fsync and synchronous_commit on.
// "cold" includes the start of each contender; before "warm" all of them run and are idle.
func BenchmarkDrain(b *testing.B) {
	db := newDatabase(b)
	relay := build(b, db)
	relay.migrate(b, settings{})
	events := scaled(300_000)
	contenders := append(db.all(buffer.ClaimRange, buffer.ClaimStamp), db.commands(relay)...)
	for _, from := range []start{cold, warm} {
		b.Run("Redis/"+string(from), func(b *testing.B) { db.race(b, redisStream(b), contenders, events, from) })
		b.Run("JetStream/"+string(from), func(b *testing.B) { db.race(b, jetStream(b, true), contenders, events, from) })
		b.Run("JetStreamPlain/"+string(from), func(b *testing.B) { db.race(b, jetStream(b, false), contenders, events, from) })
	}
}

// BenchmarkStrategies drains without a sink. The SQL of a claim mode limits its rate
// with a sink.
func BenchmarkStrategies(b *testing.B) {
	db := newDatabase(b)
	db.race(b, nowhere(), append(db.all(buffer.ClaimRange, buffer.ClaimStamp), db.optimistic()...), scaled(300_000), cold)
}

// all returns the loop, and the relay in the modes that -only selects.
func (db *database) all(modes ...buffer.ClaimMode) (all []contender) {
	for _, c := range db.loops() {
		if wanted(c.name) {
			all = append(all, c)
		}
	}
	return append(all, db.relays(modes...)...)
}
