package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/outboxrelay/relay/outbox/buffer"
	"github.com/outboxrelay/relay/outbox/postgres/internal/pg"
)

// explain adds what was being done, and what Check finds if the database reports that something is missing, and
// names an UPDATE that left events as they were.
func (b *Buffer) explain(ctx context.Context, doing string, err error) error {
	if err == nil {
		return nil
	}
	switch pg.Code(err) {
	case pg.CodeNoTable, pg.CodeNoColumn, pg.CodeNoPrivilege, pg.CodeNoSchema:
		if checkErr := b.Check(ctx); errors.Is(checkErr, buffer.ErrNotReady) {
			err = checkErr
		}
	case pg.CodeNotNull, pg.CodeResultChanged:
		if t := b.table.Load(); t != nil {
			err = t.Unstamped(ctx, b.db, err)
		}
	}
	return fmt.Errorf("%s: %w", doing, b.db.ConnectError(err))
}
