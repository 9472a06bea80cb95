package recipes_test

import (
	"crypto/sha256"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
)

// stripeServer is Stripe's payment intents: form fields, and Idempotency-Keys whose
// answers are stored, including rejections. The same key with other parameters is an
// error. Requests that did not begin (a limit, a conflict, wrong parameters) are not stored.
//
// https://docs.stripe.com/api/idempotent_requests
// https://docs.stripe.com/api/errors
// https://docs.stripe.com/api/payment_intents/create
// https://docs.stripe.com/rate-limits
type stripeServer struct {
	*api
	kept map[string]stripeAnswer // by Idempotency-Key
	// conflicts are keys that are in use at their first request.
	conflicts int
	intents   int
}

type stripeAnswer struct {
	parameters [sha256.Size]byte
	*httptest.ResponseRecorder
}

const stripeKey = "sk_test_s3cret"

func newStripe(t *testing.T, faults []fault) *stripeServer {
	s := &stripeServer{kept: map[string]stripeAnswer{}, conflicts: 2}
	s.api = newAPI(t, faults, s.create, map[fault]func(http.ResponseWriter){
		busy: func(w http.ResponseWriter) {
			w.Header().Set("Stripe-Rate-Limited-Reason", "global-rate")
			stripeFailed(w, http.StatusTooManyRequests, "invalid_request_error", "rate_limit", "Request rate limit exceeded.")
		},
		down: func(w http.ResponseWriter) {
			stripeFailed(w, http.StatusServiceUnavailable, "api_error", "", "An unknown error occurred")
		},
	})
	return s
}

func stripeFailed(w http.ResponseWriter, status int, kind, code, message string) {
	e := map[string]string{"type": kind, "message": message}
	if code != "" {
		e["code"] = code
	}
	say(w, status, map[string]any{"error": e})
}

func (s *stripeServer) create(w http.ResponseWriter, r *http.Request, body []byte) {
	key, parameters := r.Header.Get("Idempotency-Key"), sha256.Sum256(body)
	kept, known := s.kept[key]
	form, err := url.ParseQuery(string(body))
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/v1/payment_intents":
		stripeFailed(w, http.StatusNotFound, "invalid_request_error", "", "Unrecognized request URL ("+r.Method+": "+r.URL.Path+").")
		return
	case r.Header.Get("Authorization") != "Bearer "+stripeKey:
		stripeFailed(w, http.StatusUnauthorized, "invalid_request_error", "", "Invalid API Key provided")
		return
	case len(key) > 255 || key == "":
		stripeFailed(w, http.StatusBadRequest, "invalid_request_error", "", "Idempotency-Key: 1 to 255 characters")
		return
	case known && kept.parameters != parameters:
		s.t.Errorf("the key %s was used with other parameters", key)
		stripeFailed(w, http.StatusBadRequest, "idempotency_error", "",
			"Keys for idempotent requests can only be used with the same parameters they were first used with.")
		return
	case known:
		w.Header().Set("Idempotent-Replayed", "true")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(kept.Code)
		if _, err := w.Write(kept.Body.Bytes()); err != nil {
			s.t.Log(err)
		}
		return
	case err != nil || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded"):
		stripeFailed(w, http.StatusBadRequest, "invalid_request_error", "", "Invalid request body")
		return
	case s.conflicts > 0:
		s.conflicts--
		stripeFailed(w, http.StatusConflict, "invalid_request_error", "idempotency_key_in_use",
			"There is currently another in-progress request using this Idempotent Key.")
		return
	case form.Get("currency") == "" || form.Get("confirm") != "true" || form.Get("off_session") != "true":
		stripeFailed(w, http.StatusBadRequest, "invalid_request_error", "parameter_missing", "Missing required param: currency.")
		return
	}
	if cents, err := strconv.Atoi(form.Get("amount")); err != nil || cents < 50 {
		stripeFailed(w, http.StatusBadRequest, "invalid_request_error", "amount_too_small", "Amount must be at least €0.50 eur")
		return
	}
	answer := httptest.NewRecorder()
	if form.Get("payment_method") == "pm_card_visa_chargeDeclined" {
		stripeFailed(answer, http.StatusPaymentRequired, "card_error", "card_declined", "Your card was declined.")
	} else {
		s.intents++
		s.accept(r, form.Get("metadata[event]"))
		say(answer, http.StatusOK, map[string]any{"id": "pi_" + strconv.Itoa(s.intents), "object": "payment_intent", "status": "succeeded"})
	}
	s.kept[key] = stripeAnswer{parameters, answer}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(answer.Code)
	if _, err := w.Write(answer.Body.Bytes()); err != nil {
		s.t.Log(err)
	}
}
