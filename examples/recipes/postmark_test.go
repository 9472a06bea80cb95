package recipes_test

import (
	"fmt"
	"strconv"
	"testing"
)

// postmark has three thousand e-mails. Some recipients are inactive, and some e-mails
// meet an account without credits.
func postmark(t *testing.T, program string) {
	server := newPostmark(t)
	r := cook(t, program, "postmark", "POSTMARK_URL="+server.URL+"/email/batch", "POSTMARK_TOKEN="+postmarkToken)
	r.customTable("outgoing_emails")

	var good []string
	bad := map[string]string{}
	for i := range 3000 {
		to := fmt.Sprintf("customer%d@example.com", i)
		switch i % 100 {
		case 13:
			to = fmt.Sprintf("customer %d", i)
		case 57:
			server.inactive[to] = true
		case 80:
			server.poor[to] = true
		}
		id := strconv.FormatInt(r.id("INSERT INTO outgoing_emails (recipient, subject, body) VALUES ($1, 'Your order', 'It is on its way.') RETURNING id", to), 10)
		switch i % 100 {
		case 13:
			bad[id] = "300 Invalid 'To' address: '" + to + "'."
		case 57:
			bad[id] = "406 You tried to send to recipient(s) that have been marked as inactive. Found inactive addresses: " + to + "."
		default:
			good = append(good, id)
		}
	}
	r.deliver()
	server.want(good, bad, r.dead())
}
