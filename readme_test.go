// Package relay_test keeps what users read true: it is run, compiled or compared.
package relay_test

import (
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

func TestWhatUsersRead(t *testing.T) {
	programs := build(t)
	for name, test := range map[string]func(t *testing.T, programs string){
		"every document":       everyDocument,
		"the demo":             demo,
		"five minutes":         fiveMinutes,
		"ten minutes":          tenMinutes,
		"mistakes":             mistakes,
		"grants, dead letters": grants,
		"tables of your own":   tables,
		"docker-compose.yml":   compose,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, programs)
		})
	}
}
