package diagnosis

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestShareFindings: what several pipelines of a server find, in words that differ by an age, is there once.
func TestShareFindings(t *testing.T) {
	t.Parallel()
	blocker := func(age, about string) Finding { return Finding{"warning", "vacuum horizon", age, "terminate", about} }
	ok := Finding{Level: "ok", Subject: "server"}
	var got []string
	for _, block := range shareFindings([]Block{
		{Head: []string{"a"}, source: "one", Findings: []Finding{ok, blocker("12m 3s", "pid 1"), blocker("7s", "pid 2")}},
		{Head: []string{"b"}, source: "one", Findings: []Finding{ok, blocker("12m 4s", "pid 1")}},
		{Head: []string{"c"}, source: "two", Findings: []Finding{ok, blocker("12m 5s", "pid 1"), blocker("12m 3s", "pid 3")}},
	}, func(at []int) string { return fmt.Sprint(at) }) {
		var texts []string
		for _, f := range block.Findings {
			texts = append(texts, strings.TrimSpace(f.Text+" "+f.about))
		}
		got = append(got, block.Head[0]+": "+strings.Join(texts, ", "))
	}
	if diff := cmp.Diff([]string{"[0 1]: , 12m 3s pid 1", "a: 7s pid 2", "b: ", "c: , 12m 3s pid 3"}, got); diff != "" {
		t.Error(diff)
	}
}
