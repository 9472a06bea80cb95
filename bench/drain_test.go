package bench

import (
	"testing"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// BenchmarkDrain lets the loop and the relay in turn drain 300,000 waiting events of
// 300 bytes, in batches of 1000, and reports what each reached and what an event
// cost. Everything is on this machine, PostgreSQL with fsync and synchronous_commit
// on.
func BenchmarkDrain(b *testing.B) {
	db := newDatabase(b)
	events := scaled(300_000)
	b.Run("Redis", func(b *testing.B) {
		db.race(b, redisStream(b), db.all(buffer.ClaimRange, buffer.ClaimStamp, buffer.ClaimOptimistic), events)
	})
	b.Run("JetStream", func(b *testing.B) {
		db.race(b, jetStream(b), db.all(buffer.ClaimRange, buffer.ClaimStamp), events)
	})
}

// BenchmarkStrategies is the drain without a sink: what each claim mode can do with
// SQL alone, which bounds what it does with a sink.
func BenchmarkStrategies(b *testing.B) {
	db := newDatabase(b)
	db.race(b, nowhere(), db.all(buffer.ClaimRange, buffer.ClaimStamp, buffer.ClaimOptimistic), scaled(300_000))
}

// all are the loop and the relay in the modes that -only lets run.
func (db *database) all(modes ...buffer.ClaimMode) (all []contender) {
	for _, c := range db.loops() {
		if wanted(c.name) {
			all = append(all, c)
		}
	}
	return append(all, db.relays(modes...)...)
}
