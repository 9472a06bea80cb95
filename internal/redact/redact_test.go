package redact

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"
)

func TestRedactor_Forms(t *testing.T) {
	t.Parallel()
	r := New([]string{`p@ss"w/rd é<&`}, nil)
	for _, form := range []string{
		`p@ss"w/rd é<&`, `p@ss\"w/rd é<&`, `p@ss\"w/rd é\u003c\u0026`, `p@ss\"w/rd \u00e9<&`, `p@ss"w\/rd é<&`,
		`p%40ss%22w%2Frd+%C3%A9%3C%26`, `p%40ss%22w%2Frd%20%C3%A9%3C%26`, `p%40ss%22w%2frd+%c3%a9%3c%26`, `p@ss%22w%2Frd%20%C3%A9%3C&`,
		`p@ss&#34;w/rd é&lt;&amp;`,
	} {
		if got := r.Text("it said " + form + "!"); got != "it said ***!" {
			t.Errorf("%s becomes %q", form, got)
		}
	}
}

func TestRedactor_Sense(t *testing.T) {
	t.Parallel()
	r := New(
		[]string{"events", "Relay", "abc", "shop", "1234", "12345678", "kwyxz", "S3cretValue", "app", "shopdata42"},
		[]string{"shop", "shopdata42_prod"},
	)
	for text, want := range map[string]string{
		// A common word, a public name and a short number are no secrets: their place in texts would be lost.
		"the relay delivered 1234 events from shop": "the relay delivered 1234 events from shop",
		// Short words are replaced only whole, and so is a part of a public name.
		"kwyxz, kwyxzs, (kwyxz) in shopdata42_prod, not shopdata42": "***, kwyxzs, (***) in shopdata42_prod, not ***",
		"event 12345678, not 123456789":                             "event ***, not 123456789",
		"xS3cretValuex":                                             "x***x",
	} {
		if got := r.Text(text); got != want {
			t.Errorf("%s becomes %q, want %q", text, got, want)
		}
	}
}

// TestRedactor_Base64 has secrets in base64, alone and within a longer text, of each length and at each place.
func TestRedactor_Base64(t *testing.T) {
	t.Parallel()
	const long = "Sk>Live?9f8e~7d6c~5b4a>>??"
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		for n := minEverywhere; n <= len(long); n++ {
			secret := long[:n]
			r := New([]string{secret, "kwyxzs"}, nil)
			text := "it said " + encoding.EncodeToString([]byte(secret)) + "!"
			if got := r.Text(text); got != "it said ***!" {
				t.Errorf("%s becomes %q", text, got)
			}
			for _, around := range [][2]string{{"user:", ""}, {"", ":"}, {"an", "y"}, {"a", "ny"}, {"Basic ", " of today"}} {
				encoded := encoding.EncodeToString([]byte(around[0] + secret + around[1]))
				got := r.Text("it said " + encoded + "!")
				// What is left are the characters around, and one at each end that has bits of the secret.
				left := len(got) - len("it said ***!")
				if most := (len(around[0])*8+5)/6 + (len(around[1])*8+5)/6 + 2 + len("=="); !strings.Contains(got, Hidden) || left > most {
					t.Errorf("%s within %q becomes %q", secret, around, got)
				}
			}
			for _, text := range []string{encoding.EncodeToString([]byte("it is harmless")), encoding.EncodeToString([]byte("kwyxzs"))} {
				if got := r.Text(text); got != text {
					t.Errorf("%s becomes %q", text, got)
				}
			}
		}
	}
}

// TestRedactor_FirstPart has texts that a server, a program or a library cut within a secret.
func TestRedactor_FirstPart(t *testing.T) {
	t.Parallel()
	r := New([]string{"sk_live_9fQ7ZxLm2VbT4nRw8", `p"a\ss w/rd`, "kwyxzs", "relayed-to-me"}, nil)
	for text, want := range map[string]string{
		`cannot iterate over: string ("sk_live_9fQ7ZxLm ...")`:        `cannot iterate over: string ("*** ...")`,
		`cannot add: array (["sk_live_9fQ7Zx ...]) and number (1)`:    `cannot add: array (["*** ...]) and number (1)`,
		`cannot add: object ({"key":"sk_live_9fQ ...}) and null`:      `cannot add: object ({"key":"*** ...}) and null`,
		`string ("Bearer sk_l ...") and string ("sk_live_9fQ7 ...")`:  `string ("Bearer *** ...") and string ("*** ...")`,
		`string ("p\"a\\ss ...")`:                                     `string ("*** ...")`,
		`string ("p\"a\ ...")`:                                        `string ("*** ...")`,
		`"string (\"sk_live_9fQ7ZxLm ...\")"`:                         `"string (\"*** ...\")"`,
		"the key sk_live_9f… is unknown":                              "the key ***… is unknown",
		"the key sk_live_9fQ7ZxLm2VbT4nRw8...":                        "the key ***...",
		"sk_... sk_live_9f kwyx... akwyx... to the relay ... is live": "sk_... sk_live_9f ***... akwyx... to the relay ... is live",
	} {
		if got := r.Text(text); got != want {
			t.Errorf("%s becomes %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"the key sk_live_9f":            "the key ***",
		"sk_live_9fQ7ZxLm2VbT4nRw8 sk_": "*** sk_",
		"to the relay":                  "to the relay",
	} {
		if got := r.Beginning(text); got != want {
			t.Errorf("the beginning %s becomes %s, want %s", text, got, want)
		}
	}
}

func TestPathSecrets(t *testing.T) {
	t.Parallel()
	for template, want := range map[string][]string{
		"https://api.example":                                 nil,
		"https://api.example/":                                nil,
		"https://api.example/events":                          nil,
		"https://api.example/v1/events/12345":                 nil,
		"https://api.example/2024-10/v1beta1":                 nil,
		"https://api.example/oauth2?api=1.0&since=2016-06-01": nil,
		"https://api.example/v1/0123456789abcdef/{topic}/key": {
			"/v1/0123456789abcdef", "v1/0123456789abcdef", "/0123456789abcdef", "0123456789abcdef",
		},
		"https://hooks.example/catch/12345/abcde1": {
			"/catch/12345/abcde1", "catch/12345/abcde1", "/12345/abcde1", "12345/abcde1", "/abcde1", "abcde1",
		},
		"https://api.example/qWeRtYuIoP":                         {"/qWeRtYuIoP", "qWeRtYuIoP"},
		"https://api.example/qwzxkvpj":                           {"/qwzxkvpj"},
		"https://api.example/?T0KEN12345":                        {"T0KEN12345"},
		"https://api.example/{topic}?a=1&T0KEN1":                 {"T0KEN1"},
		"https://api.example/{topic}?for={key}&sig=a%2Fb%2Fc%20": {"a%2Fb%2Fc%20", "a/b/c "},
	} {
		if got := PathSecrets(template, template); !slices.Equal(got, want) {
			t.Errorf("%s: got %q; want %q", template, got, want)
		}
	}
}

// webhooks are URLs in the shape that these services hand out, and the parts that are secret.
var webhooks = map[string][]string{
	"https://hooks.slack.com/services/T01ABCDEF/B02GHIJKL/Zq8vWx3yTn5bMk7cLp2dRs4f":              {"Zq8vWx3yTn5bMk7cLp2dRs4f", "T01ABCDEF/B02GHIJKL", "/T01ABCDEF/B02GHIJKL/Zq8vWx3yTn5bMk7cLp2dRs4f"},
	"https://discord.com/api/webhooks/987654321098765432/aB-cD_eF1gH2iJ3kL4mN5oP6qR7sT8uV9wX0yZ": {"aB-cD_eF1gH2iJ3kL4mN5oP6qR7sT8uV9wX0yZ", "987654321098765432"},
	"https://acme.webhook.office.com/webhookb2/1f0c2d3e-aaaa-4bbb-8ccc-111122223333@9a1b2c3d-dddd-4eee-8fff-444455556666/IncomingWebhook/7d2e9f0a1b2c3d4e5f60718293a4b5c6/0a1b2c3d-1212-4343-8565-787878787878": {
		"1f0c2d3e-aaaa-4bbb-8ccc-111122223333", "9a1b2c3d-dddd-4eee-8fff-444455556666", "7d2e9f0a1b2c3d4e5f60718293a4b5c6", "0a1b2c3d-1212-4343-8565-787878787878",
	},
	"https://open.feishu.cn/open-apis/bot/v2/hook/3f2504e0-4f89-41d3-9a0c-0305e82c3301":      {"3f2504e0-4f89-41d3-9a0c-0305e82c3301"},
	"https://n8n.example.com/webhook/550e8400-e29b-41d4-a716-446655440000":                   {"550e8400-e29b-41d4-a716-446655440000"},
	"https://maker.ifttt.com/trigger/{topic}/with/key/dAbCdEfGhIjKlMnOpQrStU":                {"dAbCdEfGhIjKlMnOpQrStU"},
	"https://maker.ifttt.com/trigger/{topic}/with/key/dabcdefghijklmnopqrstu":                {"dabcdefghijklmnopqrstu"},
	"https://hooks.zapier.com/hooks/catch/1234567/b8k2xq/":                                   {"b8k2xq", "/1234567/b8k2xq"},
	"https://api.telegram.org/bot123456789:AAF-abcDEFghi_JKLmnoPQRstuVWXyz12345/sendMessage": {"AAF-abcDEFghi_JKLmnoPQRstuVWXyz12345", "bot123456789:AAF-abcDEFghi_JKLmnoPQRstuVWXyz12345"},
	"https://prod-12.westeurope.logic.azure.com:443/workflows/abcdef0123456789abcdef0123456789/triggers/manual/paths/invoke?api-version=2016-06-01&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig=Ab1_Cd2-Ef3Gh4Ij5Kl6Mn7Op8Qr9St0": {"abcdef0123456789abcdef0123456789", "Ab1_Cd2-Ef3Gh4Ij5Kl6Mn7Op8Qr9St0"},
	"https://outlook.example.com/hook/quietlowercase": {"/quietlowercase", "/hook/quietlowercase"},
}

func TestPathSecrets_Webhooks(t *testing.T) {
	t.Parallel()
	for url, secrets := range webhooks {
		r := New(PathSecrets(url, url), nil)
		for _, secret := range secrets {
			if got := r.Text("Cannot POST " + secret + " today"); strings.Contains(got, secret) || !strings.HasSuffix(got, "*** today") {
				t.Errorf("%s: %s becomes %q", url, secret, got)
			}
		}
		if got, harmless := r.Text("event 12345 of v2 was refused with 400, hook /v1/events"), "event 12345 of v2 was refused with 400, hook /v1/events"; got != harmless {
			t.Errorf("%s: the harmless text becomes %q", url, got)
		}
	}
}

func TestSplitURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][4]string{
		"https://u:p@api.example/a@b?c@d":     {"https", "u:p", "api.example", "/a@b?c@d"},
		"https://acme.office.com/x@y/z":       {"https", "", "acme.office.com", "/x@y/z"},
		"http://127.0.0.1:8080/x@y":           {"http", "", "127.0.0.1:8080", "/x@y"},
		"http://[::1]:8080/x@y":               {"http", "", "[::1]:8080", "/x@y"},
		"http://localhost:8080/x@y":           {"http", "", "localhost:8080", "/x@y"},
		"https://u:12/ss@api.example/x":       {"https", "u:12/ss", "api.example", "/x"},
		"postgres://app:12?S3cret@db/app?x=y": {"postgres", "app:12?S3cret", "db", "/app?x=y"},
		"nats://token@a,b":                    {"nats", "token", "a,b", ""},
		"stdout:":                             {"stdout:", "", "", ""},
	} {
		var got [4]string
		if got[0], got[1], got[2], got[3] = SplitURL(text); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// FuzzRedactor expects that no secret is left, and that texts without one stay as they are.
func FuzzRedactor(f *testing.F) {
	f.Add("S3cretValue", "it said S3cretValue.")
	f.Add("a%2Fb+c d\"e", "a%252Fb")
	f.Fuzz(func(t *testing.T, secret, text string) {
		r := New([]string{secret}, nil)
		got := r.Text(text + secret + text)
		if s := strings.TrimSpace(secret); len(s) >= 16 && strings.Contains(got, s) && !strings.Contains(s, "*") {
			t.Errorf("%q in %q becomes %q", secret, text+secret+text, got)
		}
		if r := New(nil, nil); r.Text(text) != text {
			t.Errorf("%q becomes %q without a secret", text, r.Text(text))
		}
	})
}
