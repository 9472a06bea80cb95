package recipes_test

import (
	"fmt"
	"strconv"
	"testing"
)

// salesforce has two thousand leads. Some have no company, some an invalid e-mail
// address, and some meet a locked row. Sessions end in between.
func salesforce(t *testing.T, program string) {
	server := newSalesforce(t)
	r := cook(t, program, "salesforce", "SALESFORCE_URL="+server.URL+salesforcePath, "SALESFORCE_TOKEN_URL="+server.URL+"/services/oauth2/token",
		"SALESFORCE_CLIENT_ID="+salesforceID, "SALESFORCE_CLIENT_SECRET="+salesforceSecret)
	r.customTable("new_leads")

	var good []string
	bad := map[string]string{}
	for i := range 2000 {
		email, company := fmt.Sprintf("lead%d@example.com", i), new("Example Ltd")
		switch i % 50 {
		case 11:
			company = nil
		case 23:
			email = fmt.Sprintf("lead %d", i)
		case 42:
			server.locked[email] = true
		}
		id := strconv.FormatInt(r.id("INSERT INTO new_leads (first_name, last_name, company, email) VALUES ('Ada', 'Lovelace', $1, $2) RETURNING id", company, email), 10)
		switch i % 50 {
		case 11:
			bad[id] = "REQUIRED_FIELD_MISSING: Required fields are missing: [LastName, Company]"
		case 23:
			bad[id] = "INVALID_EMAIL_ADDRESS: Email: invalid email address: " + email
		default:
			good = append(good, id)
		}
	}
	r.deliver()
	server.want(good, bad, r.dead())
	if server.tokens < 2 {
		t.Errorf("%d token was requested: no session ended", server.tokens)
	}
}
