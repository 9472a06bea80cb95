package recipes_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// slackServer is a Slack app's incoming webhook: JSON with a text, answered in plain
// text. It accepts about one message a second, and answers others with Retry-After.
//
// https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks (answers and errors)
// https://docs.slack.dev/apis/web-api/rate-limits (429)
type slackServer struct {
	*api
	texts []string
}

// The path is the secret.
const slackPath = "/services/T00000000/B00000000/s3cret24characters000000"

func newSlack(t *testing.T) *slackServer {
	s := &slackServer{}
	s.api = newAPI(t, []fault{busy}, s.post, map[fault]func(http.ResponseWriter){
		busy: func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "1")
			slackSays(w, http.StatusTooManyRequests, "rate_limited")
		},
	})
	return s
}

func slackSays(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/html")
	w.WriteHeader(status)
	if _, err := io.WriteString(w, text); err != nil {
		panic(err)
	}
}

func (s *slackServer) post(w http.ResponseWriter, r *http.Request, body []byte) {
	var message map[string]string
	switch {
	case r.URL.Path != slackPath:
		slackSays(w, http.StatusNotFound, "no_service")
	case r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || decode(body, &message) != nil || len(message) != 1:
		s.t.Errorf("Slack cannot read %s", body)
		slackSays(w, http.StatusBadRequest, "invalid_payload")
	case strings.TrimSpace(message["text"]) == "":
		s.t.Errorf("Slack finds no text in %s", body)
		slackSays(w, http.StatusBadRequest, "no_text")
	default:
		s.texts = append(s.texts, message["text"])
		slackSays(w, http.StatusOK, "ok")
	}
}

// said returns the lines of all messages.
func (s *slackServer) said() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Split(strings.Join(s.texts, "\n"), "\n")
}
