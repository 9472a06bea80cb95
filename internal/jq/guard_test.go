package jq

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/itchyny/gojq"
)

// TestGuards_LikeGojq compares the guarded functions with those that they hide.
func TestGuards_LikeGojq(t *testing.T) {
	t.Parallel()
	for _, program := range []string{
		`[(1, 2) * (3, 4)]`, `"ab" * 3`, `3 * "ab"`, `"x" * 0`, `"x" * -1`, `{a: {b: 1}} * {a: {c: 2}}`, `. * .`, `6 * null`, `.n *= 2`, `.n *= (2, 3)`,
		`12345678901234567890 * 3`, `"12" | tonumber`, `"x" | tonumber`, `[1, "2"] | map(tonumber)`, `"[1, 2.50]" | fromjson`, `"{" | fromjson`,
		`[1, "a", null, {b: 2}] | tojson, tostring, @json, @text, "\(.)", @html "<\(.)>"`, `"a" | tostring`,
		`setpath((["a"], ["b"]); (1, 2))`, `.a[.n] = 1`, `.a[.n] |= 1`, `.a[.n:] = [1]`, `.[("a", "b")] = 1`, `.["a"] += 1`,
		`[match("a"; "g").offset]`, `[.s | match("(?<x>é)|(b)"; "g")]`, `[.s | match(""; "g").offset]`, `[.s | match("a*"; "g") | [.offset, .length]]`,
		`.s | test("É"; "i")`, `.s | test(["B", "i"])`, `.s | capture("(?<x>.)é(?<y>.)")`, `[.s | scan("[ab]")]`, `[.s | scan("(a)(b)?")]`, `[.s | scan("A"; "i")]`,
		`[.s | splits("é")]`, `.s | split("b"; null)`, `.s | split("b")`, `.s | sub("(?<x>a)"; "<\(.x)>")`, `.s | gsub("(?<x>[ab])"; "<\(.x)>")`, `.s | gsub(""; "-")`,
		`.s | gsub("^"; ">")`, `.s | gsub("B"; "x"; "i")`, `[.s | gsub("a"; "1", "2")]`, `.s | match("(")`, `.s | test("a"; "q")`, `1 | test("a")`, `.s | test(1)`,
		`[.s | match(["é", "g"]).string]`, `.s | ascii_downcase | ltrimstr("a")`, `[.s | match("(a)|(z)").captures[].offset]`, `"\n" | test("."; "m")`,
	} {
		input := func() any {
			return map[string]any{"n": 2, "s": "abéab éa", "a": []any{1, 2, 3, 4}}
		}
		query, err := gojq.Parse(program)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := gojq.Compile(query)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := Compile(program, nil)
		if err != nil {
			t.Errorf("%s: %v", program, err)
			continue
		}
		if got, want := drain(ours.code.Run(input())), drain(theirs.Run(input())); got != want {
			t.Errorf("%s: got %s; want %s", program, got, want)
		}
	}
}

// drain lists the results of a program, and the error without its text.
func drain(results gojq.Iter) string {
	var all []string
	for {
		v, ok := results.Next()
		if !ok {
			return strings.Join(all, " ")
		}
		if _, failed := v.(error); failed {
			return strings.Join(append(all, "error"), " ")
		}
		all = append(all, string(Encode(v)))
	}
}

// TestGuards_HostileData has events that make one step of a harmless program take minutes, or gigabytes. The bounds are
// generous: without the guards, each takes a hundred times as much.
func TestGuards_HostileData(t *testing.T) {
	const mebibyte = 1 << 20
	event := map[string]any{
		"n": 2_000_000_000, "f": 100_000_000.5, "letters": strings.Repeat("a", 100_000), "digits": strings.Repeat("7", 1<<20),
		"numbers": "[" + strings.Repeat("1", 1<<20) + "]", "long": strings.Repeat("é", 16<<20),
	}
	for program, want := range map[string]string{
		`"x" * .n`:                               "larger than 64 MiB",
		`.n * "x"`:                               "larger than 64 MiB",
		`"x" * .f`:                               "larger than 64 MiB",
		`.a = "x" | .a *= .n`:                    "larger than 64 MiB",
		`.a[.n] = 1`:                             "larger than 4194304",
		`.list[.n] |= 1`:                         "larger than 4194304",
		`setpath(["list", .n]; 1)`:               "larger than 4194304",
		`.digits | tonumber`:                     "more than 10000 digits",
		`.numbers | fromjson | .[0] + 1`:         "more than 10000 digits",
		`reduce range(40) as $i (7; . * .)`:      "more than 65536 bits",
		`.letters | gsub("[^0-9]"; "") | length`: "",
		`[.letters | match("a"; "g")] | length`:  "",
		`.long | [scan(".")] | length`:           "more than 1048576 matches",
		`.long | [splits("")] | length`:          "more than 1048576 matches",
		`reduce range(60) as $i (1; [., .]) | tojson | length`:       "larger than 128 MiB",
		`reduce range(60) as $i (1; [., .]) | "\(.)" | length`:       "larger than 128 MiB",
		`reduce range(60) as $i (1; [., .]) | @json | length`:        "larger than 128 MiB",
		`reduce range(60) as $i ({}; {a: ., b: .}) | . * . | length`: "larger than 128 MiB",
	} {
		p, err := Compile(program, nil)
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		_, err = p.Run(t.Context(), event)
		took := time.Since(began)
		runtime.ReadMemStats(&after)
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) || want == "" && err != nil && !errors.Is(err, ErrLimit) {
			t.Errorf("%s: got %v; want %q", program, err, want)
		}
		t.Logf("%s: %v", program, took)
		if allocated := (after.Sys - before.Sys) / mebibyte; took > time.Minute || allocated > 2048 {
			t.Errorf("%s: it took %v and %d MiB", program, took, allocated)
		}
	}
}

// TestRun_HostilePrograms has the programs of a security review, and others whose values double. A generous bound on
// memory: a step can double what a program has when the memory is looked at.
func TestRun_HostilePrograms(t *testing.T) {
	input := map[string]any{"events": []any{map[string]any{"payload": map[string]any{"s": "0123456789abcdef"}}}}
	for _, program := range []string{
		`reduce range(31) as $i (.events[0].payload.s; . + .)`,
		`"x" * 1e9`,
		`[limit(1e9; repeat(1))]`,
		`[range(1e9)]`,
		`def f: [., .] | f; f`,
		`reduce range(1e9) as $i ("x"; ltrimstr("y") + "x")`,
		`reduce range(90) as $i (.events[0].payload.s; @base64)`,
		`reduce range(40) as $i (.events[0].payload.s; [., .] | tojson)`,
		`reduce range(40) as $i ([1]; . + .)`,
		`until(false; . )`,
		`"a" * 50000 | [match("(a*)*b"; "g")] | length | until(false; .)`,
	} {
		p, err := Compile(program, nil)
		if err != nil {
			t.Fatal(err)
		}
		p.limits.time = time.Second
		peak := watchHeap(t)
		began := time.Now()
		if _, err := p.Run(t.Context(), input); err == nil {
			t.Errorf("%s: it has a result", program)
		}
		took := time.Since(began)
		if grown := peak(); took > time.Minute || grown > 3<<30 {
			t.Errorf("%s: it took %v and %d MiB", program, took, grown>>20)
		}
		t.Logf("%s: %v", program, took)
		for p.runaways.Load() != 0 { // the last step ends too
			runtime.Gosched()
		}
	}
}

// watchHeap returns a function that says by how much the heap has grown at most.
func watchHeap(t *testing.T) func() uint64 {
	t.Helper()
	runtime.GC()
	before, most := heapBytes(), make(chan uint64)
	done := make(chan struct{})
	go func() {
		peak := before
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				peak = max(peak, heapBytes())
			case <-done:
				most <- peak - before
				return
			}
		}
	}()
	return func() uint64 { close(done); return <-most }
}

func ExampleSecrets() {
	fmt.Println(Secrets(`{key: $secret.API_KEY, events: .events}`))
	// Output: [API_KEY] <nil>
}
