package recipes_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// salesforceServer is Salesforce's upsert of sObject collections, at most 200 records of
// one type by an external id, answered in order; and its token endpoint. Tokens do not
// say when they expire: a session ends, and the answer is 401.
//
// https://developer.salesforce.com/docs/atlas.en-us.api_rest.meta/api_rest/resources_composite_sobjects_collections_upsert.htm
// https://developer.salesforce.com/docs/atlas.en-us.api_rest.meta/api_rest/errorcodes.htm
// https://help.salesforce.com/s/articleView?id=xcloud.remoteaccess_oauth_client_credentials_flow.htm
type salesforceServer struct {
	*api
	leads  map[string]bool // by their external id
	locked map[string]bool // e-mail addresses whose rows are locked, for the first time
	// tokens counts tokens; the last one is valid for a number of requests.
	tokens, left int
}

const (
	salesforceID     = "3MVG9lKcPoNINVB"
	salesforceSecret = "1955279925675241571-s3cret" //nolint:gosec // made up
	salesforcePath   = "/services/data/v62.0/composite/sobjects/Lead/Relay_Event__c"
)

func newSalesforce(t *testing.T) *salesforceServer {
	s := &salesforceServer{leads: map[string]bool{}, locked: map[string]bool{}}
	s.api = newAPI(t, append([]fault{empty}, slowDay...), s.serve, map[fault]func(http.ResponseWriter){
		empty: func(w http.ResponseWriter) { say(w, http.StatusOK, []any{}) },
		// The daily limit is a 403, not a 429.
		busy: func(w http.ResponseWriter) {
			salesforceFailed(w, http.StatusForbidden, "REQUEST_LIMIT_EXCEEDED", "TotalRequests Limit exceeded.")
		},
		down: func(w http.ResponseWriter) {
			salesforceFailed(w, http.StatusServiceUnavailable, "SERVER_UNAVAILABLE", "We are down for maintenance.")
		},
	})
	return s
}

func salesforceFailed(w http.ResponseWriter, status int, code, message string) {
	say(w, status, []any{map[string]string{"errorCode": code, "message": message}})
}

func (s *salesforceServer) serve(w http.ResponseWriter, r *http.Request, body []byte) {
	switch r.URL.Path {
	case "/services/oauth2/token":
		s.token(w, r, body)
	case salesforcePath:
		s.upsert(w, r, body)
	default:
		salesforceFailed(w, http.StatusNotFound, "NOT_FOUND", "The requested resource does not exist")
	}
}

func (s *salesforceServer) token(w http.ResponseWriter, r *http.Request, body []byte) {
	form, err := url.ParseQuery(string(body))
	id, secret, basic := r.BasicAuth()
	if !basic {
		id, secret = form.Get("client_id"), form.Get("client_secret")
	}
	switch {
	case err != nil || form.Get("grant_type") != "client_credentials":
		say(w, http.StatusBadRequest, map[string]string{"error": "unsupported_grant_type", "error_description": "grant type not supported"})
	case id != salesforceID || secret != salesforceSecret:
		say(w, http.StatusBadRequest, map[string]string{"error": "invalid_client", "error_description": "invalid client credentials"})
	default:
		s.tokens++
		s.left = 8
		say(w, http.StatusOK, map[string]string{
			"access_token": s.accessToken(), "token_type": "Bearer", "scope": "api", "instance_url": s.URL,
			"id": s.URL + "/id/00Dxx/005xx", "issued_at": "1732222222222", "signature": "c2lnbmF0dXJl",
		})
	}
}

func (s *salesforceServer) accessToken() string { return fmt.Sprintf("00Dxx!s3cret%d", s.tokens) }

func (s *salesforceServer) upsert(w http.ResponseWriter, r *http.Request, body []byte) {
	var batch struct {
		AllOrNone bool
		Records   []struct {
			Attributes                          struct{ Type string }
			Event                               string `json:"Relay_Event__c"`
			FirstName, LastName, Company, Email *string
		}
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer "+s.accessToken() || s.left == 0:
		salesforceFailed(w, http.StatusUnauthorized, "INVALID_SESSION_ID", "Session expired or invalid")
		return
	case r.Method != http.MethodPatch:
		salesforceFailed(w, http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED", "HTTP Method '"+r.Method+"' not allowed. Allowed are PATCH")
		return
	case decode(body, &batch) != nil:
		salesforceFailed(w, http.StatusBadRequest, "JSON_PARSER_ERROR", "The HTTP entity body is required")
		return
	case len(batch.Records) > 200 || batch.AllOrNone:
		salesforceFailed(w, http.StatusBadRequest, "LIMIT_EXCEEDED", "record limit reached. cannot submit more than 200 records into this call")
		return
	}
	s.left--
	answers := make([]map[string]any, len(batch.Records))
	for i, record := range batch.Records {
		failed := func(code, message string, fields ...string) {
			answers[i] = map[string]any{"success": false, "errors": []any{map[string]any{"statusCode": code, "message": message, "fields": fields}}}
		}
		switch {
		case record.Attributes.Type != "Lead" || record.Event == "":
			failed("INVALID_TYPE", "the attributes name no Lead, or there is no Relay_Event__c")
		case record.LastName == nil || record.Company == nil:
			failed("REQUIRED_FIELD_MISSING", "Required fields are missing: [LastName, Company]", "LastName", "Company")
		case record.Email != nil && !strings.Contains(*record.Email, "@"):
			failed("INVALID_EMAIL_ADDRESS", "Email: invalid email address: "+*record.Email, "Email")
		case record.Email != nil && s.locked[*record.Email]:
			delete(s.locked, *record.Email)
			failed("UNABLE_TO_LOCK_ROW", "unable to obtain exclusive access to this record")
		default:
			answers[i] = map[string]any{
				"id": fmt.Sprintf("00Q%012d", len(s.leads)), "success": true, "errors": []any{}, "created": !s.leads[record.Event],
			}
			s.leads[record.Event] = true
			s.accept(r, record.Event)
		}
	}
	say(w, http.StatusOK, answers)
}
