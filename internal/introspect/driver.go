//go:build !slim

package introspect

import _ "modernc.org/sqlite" // the driver
