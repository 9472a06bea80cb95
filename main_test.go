// Package relay_test runs, compiles or compares everything that the documents show.
package relay_test

import (
	"testing"

	"github.com/outboxrelay/relay/internal/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

func TestDocs(t *testing.T) {
	programs := build(t)
	for name, test := range map[string]func(t *testing.T, programs string){
		"Snippets":     testSnippets,
		"Demo":         testDemo,
		"QuickStart":   testQuickStart,
		"TenMinutes":   testTenMinutes,
		"ConfigErrors": testConfigErrors,
		"Privileges":   testPrivileges,
		"CustomTables": testCustomTables,
		"Compose":      testCompose,
		"Kubernetes":   testKubernetes,
		"Systemd":      testSystemd,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, programs)
		})
	}
}
