package httpsink_test

import (
	"compress/gzip"
	"encoding/base64"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/outboxrelay/relay/internal/testkit"
	"github.com/outboxrelay/relay/sink"
	"github.com/outboxrelay/relay/sink/httpsink"
)

func TestAuthorization(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
		w.WriteHeader(http.StatusForbidden)
		_, credentials, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		_, password, _ := r.BasicAuth()
		write(t, w, "forbidden: "+credentials+" "+password)
	})
	for want, c := range map[string]httpsink.Config{
		"Bearer s3cret-token":        {Bearer: "s3cret-token"},
		"Basic YXBwOnMzY3JldDpwdw==": {Basic: httpsink.Basic{User: "app", Password: "s3cret:pw"}},
		"Basic YXBwOg==":             {Basic: httpsink.Basic{User: "app"}},
		"":                           {},
	} {
		c.URL = url
		err := open(t, c).Send(testContext(t), batch("a"))
		expectOutage(t, err)
		if sent := <-got; sent != want {
			t.Errorf("sent %q, want %q", sent, want)
		}
		if text := err.Error(); strings.Contains(text, "s3cret") || strings.Contains(text, "YXBwOnMz") {
			t.Errorf("a secret shows in %q", text)
		}
	}
}

func TestNew_ContradictoryAccess(t *testing.T) {
	t.Parallel()
	const key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	oauth2 := httpsink.OAuth2{TokenURL: "https://auth.example/token", ClientID: "relay", ClientSecret: "litS3cret"}
	for want, c := range map[string]httpsink.Config{
		"bearer, basic and oauth2":                  {Bearer: "litS3cret", Basic: httpsink.Basic{User: "u", Password: "litS3cret"}},
		"all set Authorization":                     {Bearer: "litS3cret", OAuth2: oauth2},
		"headers and oauth2 both set Authorization": {OAuth2: oauth2, Headers: map[string]string{"authorization": "litS3cret"}},
		"the user in url":                           {Bearer: "litS3cret", URL: "http://litS3cret@h/{topic}"},
		"bearer contains a line break":              {Bearer: "litS3cret\r\nX: y"},
		"basic.user is missing":                     {Basic: httpsink.Basic{Password: "litS3cret"}},
		"oauth2.token_url is not an HTTP URL":       {OAuth2: httpsink.OAuth2{TokenURL: "ftp://litS3cret", ClientID: "relay", ClientSecret: "litS3cret"}},
		"oauth2.client_secret is missing":           {OAuth2: httpsink.OAuth2{TokenURL: "https://auth.example/token", ClientID: "relay"}},
		"rate is 0 per 1s":                          {Rate: sink.Rate{Per: time.Second}},
		"rate is 1 per 0s":                          {Rate: sink.Rate{Requests: 1}},
		"rate is -1 per 1s":                         {Rate: sink.Rate{Requests: -1, Per: time.Second}},
		"max_in_flight is -1":                       {MaxInFlight: -1},
		"sign is not a signing secret":              {Sign: []string{key[:20]}},
		"24 to 64 bytes in base64":                  {Sign: []string{key, "litS3cret"}},
		"sign is used with format ndjson":           {Sign: []string{key}, Format: httpsink.NDJSON},
		"proxy is not the URL":                      {Proxy: "socks5://u:litS3cret@h"},
		"or https://host:port":                      {Proxy: "http://u:litS3cret%@h"},
	} {
		if c.URL == "" {
			c.URL = "http://h/"
		}
		_, err := httpsink.New(c)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "litS3cret") {
			t.Errorf("got %v, want one that says %q", err, want)
		}
	}
}

// TestSign verifies the signature with the library of the Standard Webhooks project, over the decompressed
// body.
func TestSign(t *testing.T) {
	t.Parallel()
	key := base64.StdEncoding.EncodeToString([]byte("a key of twenty-four byte"))
	type signed struct {
		header http.Header
		body   []byte
	}
	got := make(chan signed, 1)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			unzipped, err := gzip.NewReader(r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			body = unzipped
		}
		text, err := io.ReadAll(body)
		if err != nil {
			t.Error(err)
		}
		got <- signed{r.Header, text}
		w.WriteHeader(http.StatusUnauthorized)
		write(t, w, "not by whsec_"+key)
	})
	verifier, err := standardwebhooks.NewWebhook("whsec_" + key)
	testkit.NoError(t, err)
	other, err := standardwebhooks.NewWebhook("whsec_" + base64.StdEncoding.EncodeToString([]byte("another key of that length")))
	testkit.NoError(t, err)
	for name, c := range map[string]httpsink.Config{
		"json": {}, "gzip": {Gzip: true}, "cloudevents": {Format: httpsink.CloudEvents},
		"set by hand": {Headers: map[string]string{"webhook-id": "mine", "Webhook-Signature": "mine"}},
	} {
		c.URL, c.Sign = url, []string{"whsec_" + key}
		s := open(t, c)
		var first signed
		for try := range 2 {
			err := s.Send(testContext(t), batch("a", "b"))
			expectOutage(t, err)
			if strings.Contains(err.Error(), key) {
				t.Errorf("%s: the key shows in %v", name, err)
			}
			r := <-got
			if err := verifier.Verify(r.body, r.header); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if other.Verify(r.body, r.header) == nil || verifier.Verify(append(r.body, ' '), r.header) == nil {
				t.Errorf("%s: anything goes", name)
			}
			if id := r.header.Get("Webhook-Id"); id != groupID.String() {
				t.Errorf("%s: webhook-id is %q, want the group_id", name, id)
			}
			if at, err := strconv.ParseInt(r.header.Get("Webhook-Timestamp"), 10, 64); err != nil || time.Since(time.Unix(at, 0)) > time.Minute {
				t.Errorf("%s: webhook-timestamp is %q", name, r.header.Get("Webhook-Timestamp"))
			}
			if try == 0 {
				first = r
			} else if r.header.Get("Webhook-Id") != first.header.Get("Webhook-Id") {
				t.Errorf("%s: sent again under another id", name)
			}
		}
	}
	s := open(t, httpsink.Config{URL: url})
	expectOutage(t, s.Send(testContext(t), batch("a")))
	if r := <-got; r.header.Get("Webhook-Signature") != "" {
		t.Error("signed without a key")
	}
}

// While a secret is rotated, receivers that know the old one and receivers that know the new one accept each request.
func TestSign_SeveralSecrets(t *testing.T) {
	t.Parallel()
	var secrets []string
	for _, key := range []string{"the new key of 24 bytes or", "the old key of 24 bytes or", "a key that nobody ever knew"} {
		secrets = append(secrets, "whsec_"+base64.StdEncoding.EncodeToString([]byte(key)))
	}
	type signed struct {
		header http.Header
		body   []byte
	}
	got := make(chan signed, 1)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- signed{r.Header, body}
		w.WriteHeader(http.StatusUnauthorized)
		write(t, w, secrets[0]+" or "+secrets[1])
	})
	s := open(t, httpsink.Config{URL: url, Sign: secrets[:2]})
	err := s.Send(testContext(t), batch("a", "b"))
	expectOutage(t, err)
	r := <-got
	for i, secret := range secrets {
		verifier, wrong := standardwebhooks.NewWebhook(secret)
		testkit.NoError(t, wrong)
		if err := verifier.Verify(r.body, r.header); (err == nil) != (i < 2) {
			t.Errorf("secret %d: %v", i, err)
		}
		if strings.Contains(err.Error(), strings.TrimPrefix(secret, "whsec_")) {
			t.Errorf("secret %d shows in %v", i, err)
		}
	}
	if n := len(strings.Split(r.header.Get("Webhook-Signature"), " v1,")); n != 2 {
		t.Errorf("%d signatures in %q", n, r.header.Get("Webhook-Signature"))
	}
}
