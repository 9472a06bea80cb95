package pg

import (
	"encoding/binary"
	"math"
	"time"
)

// Results are in PostgreSQL's binary form, big-endian.

// Types, by pg_type.dat.
const (
	OIDBytea       = 17
	OIDName        = 19
	OIDInt8        = 20
	OIDInt2        = 21
	OIDInt4        = 23
	OIDText        = 25
	OIDJSON        = 114
	OIDJSONArray   = 199
	OIDUnknown     = 705
	OIDBpchar      = 1042
	OIDVarchar     = 1043
	OIDTimestamp   = 1114
	OIDTimestamptz = 1184
	OIDUUID        = 2950
	OIDUUIDArray   = 2951
	OIDInt8Array   = 1016
	OIDJSONB       = 3802
	// FirstUserOID is the first of types that are not PostgreSQL's own.
	FirstUserOID = 16384
)

// IsJSON reports whether a type is json or jsonb.
func IsJSON(oid uint32) bool { return oid == OIDJSONB || oid == OIDJSON }

// ReadInt8 reads a bigint; NULL is 0.
func ReadInt8(v []byte) int64 {
	if len(v) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(v)) //nolint:gosec // two's complement on the wire
}

// ReadInt4 reads an integer; NULL is 0.
func ReadInt4(v []byte) int {
	if len(v) != 4 {
		return 0
	}
	return int(int32(binary.BigEndian.Uint32(v))) //nolint:gosec // two's complement on the wire
}

// ReadBool reads a boolean; NULL is false.
func ReadBool(v []byte) bool { return len(v) == 1 && v[0] == 1 }

// epoch2000 is where timestamptz counts from, in Unix microseconds.
const epoch2000 = 946684800000000

// Earliest and Latest stand for -infinity and infinity, and for the times in years that JSON and Go's formats do not have: those before the
// year 1, and after 9999. Timestamp writes them as infinite. Earliest is not the zero time, which stands for none.
var (
	Earliest = time.Date(1, 1, 1, 0, 0, 0, int(time.Microsecond), time.UTC)
	Latest   = time.Date(10000, 1, 1, 0, 0, 0, -int(time.Microsecond), time.UTC)
)

// ReadTime reads a timestamptz.
func ReadTime(v []byte) time.Time {
	switch micros := ReadInt8(v); {
	case micros <= Earliest.UnixMicro()-epoch2000:
		return Earliest
	case micros >= Latest.UnixMicro()-epoch2000:
		return Latest
	default:
		return time.UnixMicro(micros + epoch2000).UTC()
	}
}

// ReadAge reads a bigint of microseconds. A clock that was set back makes it negative,
// which counts as 0, and so does NULL. An age of centuries is the longest duration that there is.
func ReadAge(v []byte) time.Duration {
	return time.Duration(min(max(0, ReadInt8(v)), math.MaxInt64/int64(time.Microsecond))) * time.Microsecond
}

// ReadArray calls each with the elements of a one-dimensional array without NULLs.
func ReadArray(v []byte, each func([]byte)) {
	if len(v) < 20 { // no dimension: empty
		return
	}
	v = v[20:]
	for len(v) >= 4 {
		n := int(binary.BigEndian.Uint32(v))
		v = v[4:]
		if n > len(v) {
			return
		}
		each(v[:n])
		v = v[n:]
	}
}

// ReadJSON reads a json or jsonb value as text, which is valid as long as v is. (Binary
// jsonb begins with its version, a byte that no JSON text begins with.)
func ReadJSON(v []byte) []byte {
	if len(v) > 0 && v[0] == 1 {
		return v[1:]
	}
	return v
}
