package redact

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// TestMaskPath_Words shows the words of a literal path, and no token.
func TestMaskPath_Words(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://crm.example/api/v1/contacts/batch":                                          "",
		"https://api.hubapi.com/crm/v3/objects/contacts/batch/upsert":                        "",
		"https://api.example/v1/orderItems/bulk-import":                                      "",
		"https://api.example/sales_orders.json":                                              "",
		"https://api.example/warranties/prospects":                                           "",
		"https://api.example/v1/{topic}/by-key/{key}":                                        "",
		"https://api.example":                                                                "",
		"https://api.example/":                                                               "",
		"https://api.example?key=abcd":                                                       "https://api.example?***",
		"https://api.example/v1/customers/3f2504e0-4f89-41d3-9a0c-0305e82c3301/contacts?a=b": "https://api.example/v1/customers/***/contacts?***",
		"https://api.example/contacts/0123456789abcdef/{key}":                                "https://api.example/contacts/***/{key}",
		"https://api.example/contacts/***/{key}":                                             "https://api.example/contacts/***/{key}",
		"https://api.example/qWeRtYuIoP/T0KEN12345/AbcDefGhi":                                "https://api.example/***/***/***",
		"https://api.example/in-qwzxkvpj":                                                    "https://api.example/***",
		"https://api.example/correct-horse-battery-staple-again":                             "https://api.example/***",
		"https://hooks.slack.com/services/T01ABCDEF/B02GHIJKL/Zq8vWx3yTn5bMk7":               "https://hooks.slack.com/services/***/***/***",
		"https://discord.com/api/webhooks/987654321098765432/aB-cD_eF1gH2iJ3k":               "https://discord.com/api/webhooks/***/***",
		// The token of a webhook may look like a word.
		"https://outlook.example.com/hook/warranties": "https://outlook.example.com/hook/***",
		"https://ntfy.sh/warranties":                  "https://ntfy.sh/***",
	} {
		if want == "" {
			want = url
		}
		if got := MaskPath(url); got != want {
			t.Errorf("%s: got %s, want %s", url, got, want)
		}
	}
}

// Random tokens are masked, whichever alphabet they have.
func TestMaskPath_RandomTokens(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for alphabet, most := range map[string]int{
		"abcdefghijklmnopqrstuvwxyz":                                     20, // letters only, and few: rare, and easy to guess
		"abcdefghijklmnopqrstuvwxyz0123456789":                           2,
		"0123456789abcdef":                                               90, // a short number is an id
		"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567":                               0,
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789": 2,
	} {
		for length, share := range map[int]int{8: 1, 16: 0, 24: 0} {
			shown := 0
			for range 2_000 {
				token := make([]byte, length)
				for i := range token {
					token[i] = alphabet[random.IntN(len(alphabet))]
				}
				if !strings.HasSuffix(MaskPath("https://api.example/contacts/"+string(token)), "/***") {
					shown++
				}
			}
			if shown > most*share {
				t.Errorf("%d of 2,000 tokens of %d of %s are shown", shown, length, alphabet)
			}
		}
	}
}

// A path that was expanded shows no word but common ones: only what was written in the file is known to be no secret.
func TestPathSecrets_Expanded(t *testing.T) {
	t.Parallel()
	const template = "https://api.example/in/ledgers/warranties/tenants"
	for written, want := range map[string]string{
		template: "/in/ledgers/warranties/tenants",
		"https://api.example/in/***/warranties/tenants":      "***",
		"https://api.example/in/ledgers/warr***/tenants":     "***",
		"https://api.example/***/ledgers/warranties/tenants": "/in/ledgers/warranties/tenants",
		"https://api.example/***":                            "***",
		"":                                                   "***",
	} {
		if got := New(PathSecrets(template, written), nil).Text("refused: /in/ledgers/warranties/tenants, /warranties"); got != "refused: "+want+", /warranties" {
			t.Errorf("%s: got %q, want %q", written, got, want)
		}
	}
}
