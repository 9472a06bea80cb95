package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestShareFindings: what several pipelines of a server find, in words that differ by an age, is there once.
func TestShareFindings(t *testing.T) {
	t.Parallel()
	blocker := func(age, about string) finding { return finding{"warning", "vacuum horizon", age, "terminate", about} }
	ok := finding{Level: "ok", Subject: "server"}
	var got []string
	for _, block := range shareFindings([]diagnosisBlock{
		{head: []string{"a"}, source: "one", findings: []finding{ok, blocker("12m 3s", "pid 1"), blocker("7s", "pid 2")}},
		{head: []string{"b"}, source: "one", findings: []finding{ok, blocker("12m 4s", "pid 1")}},
		{head: []string{"c"}, source: "two", findings: []finding{ok, blocker("12m 5s", "pid 1"), blocker("12m 3s", "pid 3")}},
	}, func(at []int) string { return fmt.Sprint(at) }) {
		var texts []string
		for _, f := range block.findings {
			texts = append(texts, strings.TrimSpace(f.Text+" "+f.about))
		}
		got = append(got, block.head[0]+": "+strings.Join(texts, ", "))
	}
	if diff := cmp.Diff([]string{"[0 1]: , 12m 3s pid 1", "a: 7s pid 2", "b: ", "c: , 12m 3s pid 3"}, got); diff != "" {
		t.Error(diff)
	}
}
