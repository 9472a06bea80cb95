package db

import (
	"crypto/sha256"
	"database/sql/driver"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	sqlite "modernc.org/sqlite"
)

// RowVersion is a function of every connection that is opened here: the values of a row as one integer. Other values give another integer.
const RowVersion = "relay_row_version"

// maxArguments is how many arguments RowVersion gets at once. SQLite allows a function 127.
const maxArguments = 100

// relayDriver has the function; the driver that is registered as "sqlite" is the application's too.
var relayDriver = func() *sqlite.Driver {
	d := &sqlite.Driver{}
	d.MustRegisterDeterministicScalarFunction(RowVersion, -1, func(_ *sqlite.FunctionContext, values []driver.Value) (driver.Value, error) {
		return rowVersion(values)
	})
	return d
}()

// VersionOf returns the call of RowVersion for expressions.
func VersionOf(values []string) string {
	call := ""
	for len(values) > 0 || call == "" {
		n := min(len(values), maxArguments)
		arguments := values[:n:n]
		if call != "" {
			arguments = append([]string{call}, arguments...)
		}
		call, values = join(arguments), values[n:]
	}
	return call
}

func join(arguments []string) string {
	return RowVersion + "(" + strings.Join(arguments, ", ") + ")"
}

// rowVersion hashes each value with its type and length, so that a value cannot look like two.
func rowVersion(values []driver.Value) (int64, error) {
	buf := make([]byte, 0, 512)
	for _, value := range values {
		switch v := value.(type) {
		case nil:
			buf = append(buf, 'n')
		case int64:
			buf = binary.LittleEndian.AppendUint64(append(buf, 'i'), uint64(v)) //nolint:gosec // its bits
		case float64:
			buf = binary.LittleEndian.AppendUint64(append(buf, 'r'), math.Float64bits(v))
		case string:
			buf = append(binary.LittleEndian.AppendUint64(append(buf, 't'), uint64(len(v))), v...)
		case []byte:
			buf = append(binary.LittleEndian.AppendUint64(append(buf, 'b'), uint64(len(v))), v...)
		default:
			return 0, fmt.Errorf("%s: a value is a %T; expected a type of SQLite", RowVersion, value)
		}
	}
	sum := sha256.Sum256(buf)
	return int64(binary.LittleEndian.Uint64(sum[:])), nil //nolint:gosec // its bits
}
