package diagnosis

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// forgottenArchive warns of an archive that other relays have, and this configuration has not. It returns nothing if that cannot be read: the buffer's own
// findings say why.
func forgottenArchive(ctx context.Context, b buffer.Buffer) []buffer.Finding {
	memory, ok := b.(buffer.ArchiveMemory)
	if !ok {
		return nil
	}
	table, err := memory.ForgottenArchive(ctx)
	if err != nil || table == "" {
		return nil
	}
	text, fix := buffer.ForgottenArchiveText(table)
	return []buffer.Finding{{Level: buffer.LevelWarning, Subject: "archive", Text: text, Fix: fix}}
}
