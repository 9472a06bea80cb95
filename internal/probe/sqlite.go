//go:build !slim

package probe

import _ "modernc.org/sqlite" // the driver
