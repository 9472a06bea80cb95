package recipes_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// hubspotServer is HubSpot's batch upsert of contacts: at most 100 inputs of different
// contacts, 100 requests in 10 seconds. If every input has an objectWriteTraceId, it
// answers 207 with the errors of some.
//
// https://developers.hubspot.com/docs/api-reference/legacy/crm/objects/contacts/batch/upsert-contacts
// https://developers.hubspot.com/docs/api-reference/error-handling (429, 207, context)
// https://developers.hubspot.com/docs/developer-tooling/platform/usage-guidelines (limits and headers)
type hubspotServer struct {
	*api
	contacts map[string]map[string]string // properties by e-mail address
	requests []time.Time
}

const hubspotToken = "pat-eu1-s3cret"

func newHubspot(t *testing.T) *hubspotServer {
	h := &hubspotServer{contacts: map[string]map[string]string{}}
	limit := hubspotError("RATE_LIMITS", "You have reached your ten_secondly_rolling limit.")
	limit["policyName"] = "TEN_SECONDLY_ROLLING"
	h.api = newAPI(t, slowDay, h.upsert, map[fault]func(http.ResponseWriter){
		busy: func(w http.ResponseWriter) {
			w.Header().Set("X-HubSpot-RateLimit-Remaining", "0")
			later(http.StatusTooManyRequests, limit)(w)
		},
		down: func(w http.ResponseWriter) {
			say(w, http.StatusServiceUnavailable, hubspotError("INTERNAL_ERROR", "There was a problem with the request."))
		},
	})
	return h
}

func hubspotError(category, message string) map[string]any {
	return map[string]any{
		"status": "error", "category": category, "message": message,
		"correlationId": "aeb5f871-7f07-4993-9211-075dc63e7cbf",
	}
}

func (h *hubspotServer) upsert(w http.ResponseWriter, r *http.Request, body []byte) {
	var batch struct {
		Inputs []struct {
			ID, IDProperty, ObjectWriteTraceID string
			Properties                         map[string]string
		}
	}
	invalid := func(message string) map[string]any { return hubspotError("VALIDATION_ERROR", message) }
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/crm/v3/objects/contacts/batch/upsert":
		http.NotFound(w, r)
		return
	case r.Header.Get("Authorization") != "Bearer "+hubspotToken:
		say(w, http.StatusUnauthorized, hubspotError("INVALID_AUTHENTICATION", "Authentication credentials not found."))
		return
	case h.limited(w):
		return
	case decode(body, &batch) != nil:
		say(w, http.StatusBadRequest, invalid("Invalid input JSON"))
		return
	case len(batch.Inputs) == 0 || len(batch.Inputs) > 100:
		say(w, http.StatusBadRequest, invalid(fmt.Sprintf("%d inputs, at most 100 are allowed", len(batch.Inputs))))
		return
	}

	seen, traced := map[string]bool{}, map[string]bool{}
	for _, in := range batch.Inputs {
		if seen[in.ID] {
			duplicates := invalid("Duplicate IDs found in batch input: [" + in.ID + "]. IDs must be unique")
			duplicates["context"] = map[string]any{"ids": []string{in.ID}}
			say(w, http.StatusBadRequest, duplicates)
			return
		}
		seen[in.ID], traced[in.ObjectWriteTraceID] = true, true
	}
	multi := len(traced) == len(batch.Inputs) && !traced[""]

	results, errors := []any{}, []any{}
	for _, in := range batch.Inputs {
		if wrong := wrongProperty(in.Properties, in.IDProperty); wrong != "" {
			e := invalid("Property values were not valid: " + wrong)
			if !multi {
				say(w, http.StatusBadRequest, e)
				return
			}
			delete(e, "correlationId")
			e["context"] = map[string]any{"objectWriteTraceId": []string{in.ObjectWriteTraceID}}
			errors = append(errors, e)
			continue
		}
		_, known := h.contacts[in.ID]
		h.contacts[in.ID] = in.Properties
		h.accept(r, in.ObjectWriteTraceID)
		results = append(results, map[string]any{
			"id": fmt.Sprint(len(h.contacts)), "properties": in.Properties, "new": !known, "archived": false,
			"objectWriteTraceId": in.ObjectWriteTraceID,
		})
	}
	answer, status := map[string]any{"status": "COMPLETE", "results": results}, http.StatusOK
	if len(errors) > 0 {
		answer["errors"], answer["numErrors"], status = errors, len(errors), http.StatusMultiStatus
	}
	say(w, status, answer)
}

// limited reports whether there were a hundred requests in the last ten seconds.
func (h *hubspotServer) limited(w http.ResponseWriter) bool {
	now := time.Now()
	h.requests = append(h.requests, now)
	for now.Sub(h.requests[0]) > 10*time.Second {
		h.requests = h.requests[1:]
	}
	w.Header().Set("X-HubSpot-RateLimit-Max", "100")
	w.Header().Set("X-HubSpot-RateLimit-Interval-Milliseconds", "10000")
	w.Header().Set("X-HubSpot-RateLimit-Remaining", fmt.Sprint(max(0, 100-len(h.requests))))
	if len(h.requests) <= 100 {
		return false
	}
	h.says[busy](w)
	return true
}

// activities are the values of the property last_activity.
var activities = []string{"call", "download", "visit"}

// wrongProperty returns HubSpot's error about a contact's properties, "" for none.
func wrongProperty(properties map[string]string, id string) string {
	if id != "email" {
		return fmt.Sprintf("Unable to perform update/upsert by non-unique 0-1 property %s", id)
	}
	if at := strings.Index(properties["email"], "@"); at < 1 || !strings.Contains(properties["email"][at:], ".") {
		return fmt.Sprintf(`[{"isValid":false,"message":"Email address %s is invalid","error":"INVALID_EMAIL","name":"email"}]`, properties["email"])
	}
	if kind := properties["last_activity"]; !slices.Contains(activities, kind) {
		return fmt.Sprintf(`[{"isValid":false,"message":"%s was not one of the allowed options: %v","error":"INVALID_OPTION","name":"last_activity"}]`, kind, activities)
	}
	for name := range properties {
		switch name {
		case "email", "firstname", "last_activity", "last_activity_at":
		default:
			return fmt.Sprintf(`[{"isValid":false,"message":"Property \"%s\" does not exist","error":"PROPERTY_DOESNT_EXIST","name":"%[1]s"}]`, name)
		}
	}
	return ""
}
