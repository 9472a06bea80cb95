package sqlite

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// TestBlame: what some value is to blame for is told from what is the projection's own.
func TestBlame(t *testing.T) {
	t.Parallel()
	for what, data := range map[string]bool{
		"CASE id WHEN 2 THEN json('{no') ELSE payload END":                             true,
		"CASE id WHEN 5 THEN json_extract('{no', '$.a')\n\nELSE payload END":           true,
		"abs(CASE id WHEN 3 THEN -9223372036854775808 ELSE 1 END)":                     true,
		"CASE id WHEN 3 THEN length(zeroblob(2000000000 + id)) ELSE 1 END":             true,
		"(SELECT sum(v) FROM (SELECT 9223372036854775807 AS v UNION ALL SELECT e.id))": true,
		"nonsense":          false,
		"nonsense(payload)": false,
		"abs(payload, 1)":   false,
		"(SELECT":           false,
	} {
		for _, from := range []string{"t e", "main.t e"} { // in the shadow, and as it is
			b := theirTable(t, "SELECT id, "+what+" AS payload FROM "+from+" WHERE group_id = ?")
			batch, err := b.Claim(t.Context(), 4, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			if err := batch.ProjectErr; err == nil || errors.Is(err, buffer.ErrEventData) != data || errors.Is(err, buffer.ErrDatabaseUnavailable) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s of %s: %v, an event's doing: %t", what, from, err, data)
			}
		}
	}
}

// TestBlameTheDatabase: the file is away for a while, and nobody can do anything for it.
func TestBlameTheDatabase(t *testing.T) {
	t.Parallel()
	b := theirTable(t, "SELECT id, payload FROM t WHERE group_id = ?")
	batch, err := b.Claim(t.Context(), 4, time.Hour)
	if err != nil || batch.ProjectErr != nil {
		t.Fatal(batch, err)
	}
	b.own.reads.SetMaxIdleConns(0)
	if err := os.Rename(b.file, b.file+".away"); err != nil {
		t.Fatal(err)
	}
	b.project(t.Context(), batch, time.Hour)
	if !errors.Is(batch.ProjectErr, buffer.ErrDatabaseUnavailable) {
		t.Errorf("without its file: %v", batch.ProjectErr)
	}
}
