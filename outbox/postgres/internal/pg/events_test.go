package pg

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// rowOf is a row as pgx hands it out: its bytes are good until the next one.
func rowOf(id int, key, payload, headers []byte) [][]byte {
	row := [][]byte{binary.BigEndian.AppendUint64(nil, uint64(id)), []byte("orders"), key, nil, nil, make([]byte, 8)} //nolint:gosec // small
	row[3] = append([]byte{1}, payload...)
	if headers != nil {
		row[4] = append([]byte{1}, headers...)
	}
	return row
}

// Decoded rows do not change when pgx reuses its buffer or reads more rows.
func TestDecodedRowsAreTheirOwn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := EventDecoder{PayloadOID: OIDJSONB}
		d.Reserve(rapid.SampledFrom([]int{0, 1, 10, 1000, 10_000}).Draw(t, "limit"))
		most := rapid.SampledFrom([]int{10, 3000, 100_000}).Draw(t, "bytes")
		n := rapid.IntRange(0, 200).Draw(t, "events")
		for i := range n {
			c := byte(i)
			row := rowOf(i, bytes.Repeat([]byte{c}, i%7), bytes.Repeat([]byte{c}, 1+i*7919%most), bytes.Repeat([]byte{c}, 1+i%100))
			if err := d.Append(row); errors.Is(err, buffer.ErrTooLarge) {
				n = i
				break
			} else if err != nil {
				t.Fatal(err)
			}
			for _, v := range row {
				clear(v)
			}
		}
		if len(d.Events) != n {
			t.Fatalf("%d events of %d", len(d.Events), n)
		}
		for i, e := range d.Events {
			c := byte(i)
			if e.ID != int64(i) || e.Topic != "orders" || *e.Key != string(bytes.Repeat([]byte{c}, i%7)) ||
				!bytes.Equal(e.Payload, bytes.Repeat([]byte{c}, 1+i*7919%most)) || !bytes.Equal(e.Headers, bytes.Repeat([]byte{c}, 1+i%100)) {
				t.Fatalf("event %d is %+v", i, e)
			}
			if cap(e.Payload) != len(e.Payload) {
				t.Fatal("appending to a payload would write into the next")
			}
		}
	})
}

// A claim allocates memory for the events that it returns, not for its limit: not much more than their
// bytes.
func TestDecodingTakesAsMuchMemoryAsThereIs(t *testing.T) {
	for _, c := range []struct{ limit, events, most int }{{10_000, 1, 16 << 10}, {1000, 1000, 500 << 10}, {10_000, 10_000, 5 << 20}} {
		row := rowOf(1, nil, bytes.Repeat([]byte("x"), 300), nil)
		got := testing.Benchmark(func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				decode(c.limit, c.events, row)
			}
		}).AllocedBytesPerOp()
		if got > int64(c.most) {
			t.Errorf("%d events of %d took %d bytes; want at most %d", c.events, c.limit, got, c.most)
		}
	}
}

func decode(limit, events int, row [][]byte) {
	d := EventDecoder{PayloadOID: OIDJSONB}
	d.Reserve(limit)
	for range events {
		if err := d.Append(row); err != nil {
			panic(err)
		}
	}
}

// BenchmarkDecode decodes batches of events of 300 bytes that may have had 1000.
func BenchmarkDecode(b *testing.B) {
	row := rowOf(1, nil, bytes.Repeat([]byte("x"), 300), nil)
	for _, events := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(events), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				decode(1000, events, row)
			}
		})
	}
}
