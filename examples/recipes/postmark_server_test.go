package recipes_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// postmarkServer is Postmark's batch endpoint: an array of at most 500 messages and
// 50 MB, answered by an array in the same order, each with an ErrorCode. It has no
// Idempotency-Key.
//
// https://postmarkapp.com/developer/user-guide/send-email-with-api/batch-emails
// https://postmarkapp.com/developer/api/email-api
// https://postmarkapp.com/developer/api/overview (statuses and error codes)
type postmarkServer struct {
	*api
	inactive map[string]bool // inactive recipients
	poor     map[string]bool // recipients at whose turn the account has run out of credits
	sent     int
}

const postmarkToken = "b1946ac9-s3cret"

func newPostmark(t *testing.T) *postmarkServer {
	p := &postmarkServer{inactive: map[string]bool{}, poor: map[string]bool{}}
	p.api = newAPI(t, append([]fault{empty}, slowDay...), p.batch, map[fault]func(http.ResponseWriter){
		empty: func(w http.ResponseWriter) { say(w, http.StatusOK, []any{}) },
		busy:  later(http.StatusTooManyRequests, postmarkError(429, "Rate limit exceeded.")),
		down: func(w http.ResponseWriter) {
			say(w, http.StatusServiceUnavailable, postmarkError(100, "We are undergoing maintenance."))
		},
	})
	return p
}

type postmarkAnswer struct {
	ErrorCode     int
	Message       string
	MessageID, To string `json:",omitempty"`
}

func postmarkError(code int, message string) postmarkAnswer {
	return postmarkAnswer{ErrorCode: code, Message: message}
}

func (p *postmarkServer) batch(w http.ResponseWriter, r *http.Request, body []byte) {
	var messages []struct {
		From, To, Subject, TextBody, HTMLBody, MessageStream string
		Metadata                                             map[string]string
	}
	switch err := decode(body, &messages); {
	case r.Method != http.MethodPost || r.URL.Path != "/email/batch":
		http.NotFound(w, r)
		return
	case r.Header.Get("X-Postmark-Server-Token") != postmarkToken:
		say(w, http.StatusUnauthorized, postmarkError(10, "The Server Token you provided in the X-Postmark-Server-Token request header was invalid."))
		return
	case r.Header.Get("Accept") != "application/json" || r.Header.Get("Content-Type") != "application/json":
		say(w, http.StatusUnsupportedMediaType, postmarkError(409, "JSON required"))
		return
	case len(body) > 50<<20:
		w.WriteHeader(http.StatusRequestEntityTooLarge)
		return
	case err != nil:
		say(w, http.StatusUnprocessableEntity, postmarkError(402, "Invalid JSON"))
		return
	case len(messages) > 500:
		say(w, http.StatusUnprocessableEntity, postmarkError(410, "Too many batch messages"))
		return
	}
	answers := make([]postmarkAnswer, len(messages))
	for i, m := range messages {
		switch {
		case !strings.Contains(m.To, "@") || m.From == "" || m.TextBody == "" && m.HTMLBody == "":
			answers[i] = postmarkError(300, fmt.Sprintf("Invalid 'To' address: '%s'.", m.To))
		case p.inactive[m.To]:
			answers[i] = postmarkError(406, "You tried to send to recipient(s) that have been marked as inactive. Found inactive addresses: "+m.To+".")
		case p.poor[m.To]: // for the first time only
			delete(p.poor, m.To)
			answers[i] = postmarkError(405, "Not allowed to send")
		default:
			p.sent++
			p.accept(r, m.Metadata["event"])
			answers[i] = postmarkAnswer{Message: "OK", To: m.To, MessageID: fmt.Sprintf("b7bc2f4a-e38e-4336-af7d-%012d", p.sent)}
		}
	}
	say(w, http.StatusOK, answers)
}
