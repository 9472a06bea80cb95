package diagnosis

import "testing"

func TestEncodedTwice(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]bool{
		`"{\"a\":1}"`: true, ` "[1]" `: true, `"{}"`: true,
		`{"a":1}`: false, `"text"`: false, `"17"`: false, `"{no json}"`: false, `""`: false, ``: false, `17`: false, `"cut`: false,
	} {
		if got := encodedTwice([]byte(payload)); got != want {
			t.Errorf("encodedTwice(%s) = %v", payload, got)
		}
	}
}
