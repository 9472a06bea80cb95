package jq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/outboxrelay/relay/internal/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(parentVariable) != "" {
		parent()
		return
	}
	goleak.VerifyTestMain(m)
}

// parentVariable makes the test binary a parent that prints its child's process id and runs a program without end.
const parentVariable = "RELAY_JQ_TEST_PARENT"

func parent() {
	p, err := Compile(`until(false; .)`, nil)
	if err != nil {
		panic(err)
	}
	p.TimeLimit = time.Hour
	child, err := start(context.Background())
	if err != nil {
		panic(err)
	}
	fmt.Println(child.cmd.Process.Pid)
	_, _ = child.run(context.Background(), p, &job{input: []byte("1"), limit: maxResult}, false)
}

func compiled(t *testing.T, program string) *Program {
	t.Helper()
	p, err := Compile(program, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.TimeLimit = time.Minute // the machine may be slow
	t.Cleanup(p.Close)
	return p
}

func TestRequest(t *testing.T) {
	t.Parallel()
	const input = `{"n": 12345678901234567890, "f": 1.10, "e": 1e400}`
	for program, want := range map[string]string{
		`[.n, .n == 12345678901234567890, .n + 1, .f]`: `[12345678901234567890,true,12345678901234567891,1.10]`,
		`{b: 1, a: .e}`:         `{"a":1e400,"b":1}`,
		`[nan, infinite, 1e21]`: `[null,1.7976931348623157e+308,1e+21]`,
		`"<\u00e9>"`:            `<é>`,
		`.`:                     `{"e":1e400,"f":1.10,"n":12345678901234567890}`,
		`now | type`:            `number`,
	} {
		got, err := compiled(t, program).Request(t.Context(), []byte(input), JSON)
		if err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v; want %s", program, got, err, want)
		}
	}
}

func TestRequest_Shapes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		program string
		shape   Shape
		want    string
	}{
		{`[{b: 1}, 2, "x"]`, Lines, "{\"b\":1}\n2\n\"x\"\n"},
		{`{b: 1}`, Lines, "{\"b\":1}\n"},
		{`{b: [1, {c: "d e"}]}`, Form, "b[0]=1&b[1][c]=d+e"},
		{`"a=1"`, Form, "a=1"},
	} {
		got, err := compiled(t, c.program).Request(t.Context(), []byte("null"), c.shape)
		if err != nil || string(got) != c.want {
			t.Errorf("%s: got %q, %v; want %q", c.program, got, err, c.want)
		}
	}
}

func TestResults_Body(t *testing.T) {
	t.Parallel()
	p := compiled(t, `[.status, .body]`)
	for body, want := range map[string]string{`{"a":1.10}`: `[200,{"a":1.10}]`, "no\xff": "[200,\"no\uFFFD\"]", "": `[200,""]`} {
		got, err := p.Results(t.Context(), []byte(`{"status":200}`), []byte(body))
		if err != nil || string(got) != want {
			t.Errorf("%q: got %s, %v; want %s", body, got, err, want)
		}
	}
}

func TestRequest_Failures(t *testing.T) {
	t.Parallel()
	for program, c := range map[string]struct {
		text string
		kind error
	}{
		`error("no")`:      {text: "error: no"},
		`.[]`:              {text: "cannot iterate over: null"},
		`empty`:            {"the program made no result", ErrResults},
		`1, 2`:             {"the program made more than one result", ErrResults},
		`1, error("late")`: {text: "error: late"},
		`"0123456789" * 1000 | reduce range(20) as $i (.; [., .])`: {text: "the result is larger than 64 MiB"},
		`reduce range(60) as $i (1; [., .])`:                       {text: "the result is larger than 64 MiB"},
		`reduce range(20000) as $i (1; [.])`:                       {text: "the result is nested deeper than 10000"},
	} {
		_, err := compiled(t, program).Request(t.Context(), []byte("null"), JSON)
		if err == nil || !strings.Contains(err.Error(), c.text) || c.kind != nil && !errors.Is(err, c.kind) || errors.Is(err, ErrLimit) {
			t.Errorf("%s: got %v; want one that says %q", program, err, c.text)
		}
	}
	if _, err := compiled(t, ".").Request(t.Context(), []byte("{"), JSON); !errors.Is(err, ErrInput) {
		t.Errorf("input that is not JSON: got %v", err)
	}
}

// TestRun_HostileSteps has single steps that nothing can interrupt, and that would take minutes or gigabytes.
func TestRun_HostileSteps(t *testing.T) {
	t.Parallel()
	numbers := func(from int) string {
		var all strings.Builder
		for i := range 400_000 {
			fmt.Fprintf(&all, ",%d", from+i)
		}
		return "[" + all.String()[1:] + "]"
	}
	input := []byte(`{"n":300000000,"a":` + numbers(0) + `,"b":` + numbers(400_000) + `,"s":"` + strings.Repeat("a", 20_000) + `"}`)
	p := compiled(t, ".")
	p.TimeLimit = time.Minute // the machine may be slow
	// Linux lets one allocation exceed the limit of memory (limitMemory). If nothing else is mapped before the result is
	// measured, its size is what ends the run.
	const array = "memory|the result is larger than 64 MiB"
	for _, c := range []struct{ program, want string }{
		{`.a - .b`, "did not end"},
		{`.a | contains(.[200000:])`, "did not end"},
		{`.a as $a | $a | indices(.[:200000])`, ""},
		{`(.s * 50) | [scan("a.*b|a")] | length`, "did not end"},
		{`until(false; .)`, "did not end"},
		{`last(repeat(1))`, "did not end"},
		{`pick(.x[$in.n])`, array},
		{`getpath(["x", 1e8]) = 1`, array},
		{`setpath(["x", $in.n]; 1)`, array},
		{`[fromstream([["x", 1e8], 1], [["x"]])]`, array},
		{`"x" * 1e6 as $m | [range(3000) | $m] | join(",")`, "memory"},
		{`.a as $a | [range(200) | $a] | flatten | length`, "memory"},
		{`.a as $a | [range(200) | $a] | add | length`, "memory"},
		{`[limit(1e9; repeat(1))]`, ""},
		{`def f: 1 + f; f`, "memory"},
		{`reduce range(60) as $i (1; [., .]) | tojson | length`, "memory"},
		{`reduce range(31) as $i ("x"; . + .) | length`, ""},
		{`reduce range(60) as $i (1; [., .]) | . == (. | .)`, ""},
		{`"x" * .n`, ""}, // 300 MB
		{`"7" * 1e6 | tonumber | . * . * .`, ""},
	} {
		t.Run(c.program, func(t *testing.T) {
			t.Parallel()
			hostile := compiled(t, ". as $in | "+c.program)
			if hostile.TimeLimit = time.Second; strings.HasPrefix(c.want, "memory") {
				hostile.TimeLimit = time.Minute // it must not end the program first
			}
			began := time.Now()
			_, err := hostile.Request(t.Context(), input, JSON)
			took := time.Since(began)
			t.Logf("%v after %v", err, took)
			tooLarge := c.want == array && err != nil && err.Error() == "the result is larger than 64 MiB"
			limited := errors.Is(err, ErrLimit) && regexp.MustCompile(c.want).MatchString(err.Error())
			if !tooLarge && !limited && (c.want != "" || err != nil) {
				t.Errorf("got %v; want a limit of %q", err, c.want)
			}
			if got, err := p.Request(t.Context(), []byte("1"), JSON); string(got) != "1" || err != nil {
				t.Errorf("another program, afterwards: %s, %v", got, err)
			}
		})
	}
}

// TestRun_TimeLimit has a program that never ends. Without its own limit it would take all of its context's time.
func TestRun_TimeLimit(t *testing.T) {
	t.Parallel()
	p := compiled(t, `until(false; .)`)
	p.TimeLimit = 100 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := p.Request(ctx, []byte("1"), JSON); !errors.Is(err, ErrLimit) {
		t.Errorf("got %v", err)
	}
}

func TestRun_MemoryLimit(t *testing.T) {
	t.Parallel()
	for program, limited := range map[string]bool{`"x" * 5e7 | length`: false, `"x" * 5e8 | length`: true} {
		p := compiled(t, program)
		if _, err := p.Request(t.Context(), []byte("null"), JSON); limited != errors.Is(err, errMemory) || !limited && err != nil {
			t.Errorf("%s: got %v", program, err)
		}
	}
}

// TestRun_NotShort has a run that gets the child for short runs, because the others are taken, and is not short. It begins again
// when another child is free.
func TestRun_NotShort(t *testing.T) { //nolint:paralleltest // it takes the children of all tests
	other := &share{}
	var taken []turn
	for range children.runs.free {
		begun, ok := children.runs.enter(t.Context(), other, true)
		if !ok {
			t.Fatal(t.Context().Err())
		}
		taken = append(taken, begun)
	}
	p := compiled(t, `last(range(1e7))`)
	result := make(chan string)
	go func() {
		text, err := p.Request(t.Context(), []byte("null"), JSON)
		result <- fmt.Sprint(string(text), err)
	}()
	testkit.Eventually(t, func() error {
		children.runs.mu.Lock()
		defer children.runs.mu.Unlock()
		if w := children.runs.waiting; len(w) != 1 || !w[0].long || children.runs.reserved != 1 {
			return fmt.Errorf("%d runs wait; want one", len(w))
		}
		return nil
	})
	for _, begun := range taken {
		children.runs.leave(begun, 0)
	}
	if got, want := <-result, "9999999<nil>"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
