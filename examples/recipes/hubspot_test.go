package recipes_test

import (
	"fmt"
	"strconv"
	"testing"
)

// hubspot has a thousand activities, of which a few have leads whose address HubSpot
// does not take, one a lead that is gone, and some the same lead.
func hubspot(t *testing.T, program string) {
	server := newHubspot(t)
	r := cook(t, program, "hubspot", "HUBSPOT_URL="+server.URL+"/crm/v3/objects/contacts/batch/upsert", "HUBSPOT_TOKEN="+hubspotToken)
	r.ownTable("contact_activity_events")

	happens := func(lead int64, kind string) string {
		activity := r.id("INSERT INTO contact_activities (lead_id, kind) VALUES ($1, $2) RETURNING id", lead, kind)
		return strconv.FormatInt(r.id("INSERT INTO contact_activity_events (contact_activity_id) VALUES ($1) RETURNING id", activity), 10)
	}
	lead := func(email string) int64 {
		return r.id("INSERT INTO leads (email, first_name) VALUES ($1, 'Ada') RETURNING id", email)
	}
	var good []string
	bad := map[string]string{}
	for i := range 1000 {
		if i%97 == 50 {
			email := fmt.Sprintf("lead %d", i)
			bad[happens(lead(email), "visit")] = "Email address " + email + " is invalid"
			continue
		}
		good = append(good, happens(lead(fmt.Sprintf("lead%d@example.com", i)), "visit"))
	}
	gone := lead("gone@example.com")
	bad[happens(gone, "visit")] = "not projected"
	r.exec("DELETE FROM leads WHERE id = $1", gone)
	// Three activities of one lead are in one batch, and one input may be of it.
	often := lead("often@example.com")
	happens(often, "visit")
	happens(often, "download")
	good = append(good, happens(often, "call"))
	// The newest of a lead is one that HubSpot does not know: the one before goes out.
	late := lead("late@example.com")
	good = append(good, happens(late, "visit"))
	bad[happens(late, "fax")] = "fax was not one of the allowed options"
	// A lead's address is wrong, so is every activity of it.
	wrong := lead("nobody")
	for range 2 {
		bad[happens(wrong, "visit")] = "Email address nobody is invalid"
	}

	r.deliver()
	server.want(good, bad, r.dead())
	if got := server.contacts["often@example.com"]["last_activity"]; got != "call" {
		t.Errorf("the last activity of who has three is %q", got)
	}
}
