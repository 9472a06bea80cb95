package httpsink

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestOAuth2_RenewsTokenBeforeItExpires(t *testing.T) {
	t.Parallel()
	for expires, c := range map[string]struct {
		kept, renewed time.Duration // 0: for ever
	}{
		`3600`:   {3569 * time.Second, 3571 * time.Second},
		`"3600"`: {3569 * time.Second, 3571 * time.Second},
		`100`:    {89 * time.Second, 91 * time.Second},
		`1`:      {800 * time.Millisecond, 950 * time.Millisecond},
		`0`:      {1000 * time.Hour, 0},
		`null`:   {1000 * time.Hour, 0},
	} {
		t.Run(expires, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				fetched := 0
				s, done := newBubbleSink(t, Config{OAuth2: OAuth2{TokenURL: "http://auth.example/token", ClientID: "relay", ClientSecret: "s3cret"}},
					func(w http.ResponseWriter, r *http.Request) {
						if r.URL.Path == "/token" {
							fetched++
							w.Header().Set("Content-Type", "application/json")
							if _, err := fmt.Fprintf(w, `{"access_token": "t0ken-%d", "expires_in": %s}`, fetched, expires); err != nil {
								t.Error(err)
							}
						} else if got := r.Header.Get("Authorization"); !strings.HasSuffix(got, fmt.Sprintf(" t0ken-%d", fetched)) {
							t.Errorf("%q came, and token %d is the last", got, fetched)
						}
					})
				defer done()
				began := time.Now()
				send := func(at time.Duration, want int) {
					<-time.After(at - time.Since(began))
					if err := s.Send(t.Context(), oneEvent()); err != nil {
						t.Error(err)
					}
					if fetched != want {
						t.Errorf("%d tokens were fetched by %v, want %d", fetched, at, want)
					}
				}
				send(0, 1)
				send(c.kept, 1)
				if c.renewed > 0 {
					send(c.renewed, 2)
				}
			})
		})
	}
}
