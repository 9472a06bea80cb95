package postgres

import "time"

// SetStatementTimeout bounds each statement of a buffer that is not in use.
func SetStatementTimeout(b *Buffer, d time.Duration) { b.db.StatementTimeout = d }
