//go:build unix

package chaos

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// What a producer knows about an id.
const (
	committed  uint8 = 1 << iota // COMMIT was answered
	rolledBack                   // ROLLBACK was asked for, or the connection ended before
	unknown                      // COMMIT was not answered
)

// feed is a pipeline's table, with the sinks that are fed from it.
type feed struct {
	pipeline, table string
	sinks           []*account

	mu   sync.Mutex
	said []uint8 // by id
}

func (f *feed) say(ids []int64, what uint8) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		f.said = extend(f.said, id)
		f.said[id] |= what
	}
}

// account records the events of a sink: a byte per id, and the arrivals in a
// file, to explain a failure.
type account struct {
	*feed
	sink      string   // "" if it is the only one of its pipeline
	bit       int32    // of the sink among those of the pipeline
	match     []string // as in relay.yaml
	patterns  buffer.Patterns
	committed atomic.Int64 // as far as producers know
	arrived   atomic.Int64 // at the sink, twice where it came twice
	ends      atomic.Int64 // times that reading the Redis sink found nothing more

	mu       sync.Mutex
	seen     []uint8 // by id: how often it arrived
	arrivals *bufio.Writer
	file     *os.File
	failed   error // of the file
}

// newAccount adds a sink to a feed.
func (r *run) newAccount(f *feed, sink string, match ...string) *account {
	file, err := os.Create(filepath.Join(r.dir, f.pipeline+sink+".arrivals"))
	r.check(err)
	r.t.Cleanup(func() { r.check(file.Close()) })
	patterns, err := buffer.ParsePatterns(match)
	r.check(err)
	a := &account{
		feed: f, sink: sink, bit: 1 << len(f.sinks), match: match, patterns: patterns,
		file: file, arrivals: bufio.NewWriterSize(file, 1<<20),
	}
	f.sinks = append(f.sinks, a)
	return a
}

// name names the sink and its pipeline.
func (a *account) name() string { return strings.TrimSuffix(a.pipeline+" "+a.sink, " ") }

// extend extends the slice to an index.
func extend(s []uint8, id int64) []uint8 {
	if int64(len(s)) <= id {
		s = append(s, make([]uint8, id+1-int64(len(s))+int64(len(s))/4)...)
	}
	return s
}

// at returns s[id], 0 beyond its end.
func at(s []uint8, id int64) uint8 {
	if id < 0 || id >= int64(len(s)) {
		return 0
	}
	return s[id]
}

// arrival is one event at the sink.
type arrival struct {
	ID      int64
	GroupID uuid.UUID
	At      int64 // the sink's clock, in milliseconds
}

// arrive records an event in the sink. No id exceeds maxID.
func (a *account) arrive(v arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = extend(a.seen, v.ID)
	if a.seen[v.ID] < math.MaxUint8 {
		a.seen[v.ID]++
	}
	a.arrived.Add(1)
	if err := binary.Write(a.arrivals, binary.LittleEndian, v); err != nil && a.failed == nil {
		a.failed = err
	}
}

const maxID = 1 << 30

// history returns the arrivals of some ids.
func (a *account) history(ids map[int64]bool) ([]arrival, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := errors.Join(a.failed, a.arrivals.Flush()); err != nil {
		return nil, err
	}
	if _, err := a.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	var found []arrival
	in := bufio.NewReaderSize(a.file, 1<<20)
	for {
		var v arrival
		switch err := binary.Read(in, binary.LittleEndian, &v); {
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return nil, err
		}
		if ids[v.ID] {
			found = append(found, v)
		}
	}
}

func (v arrival) time() time.Time { return time.UnixMilli(v.At) }
