package recipes_test

import (
	"fmt"
	"strconv"
	"testing"
)

// hubspot has a thousand activities. A few belong to leads whose address HubSpot
// rejects, one to a deleted lead, and some share a lead.
func hubspot(t *testing.T, program string) {
	server := newHubspot(t)
	r := cook(t, program, "hubspot", "HUBSPOT_URL="+server.URL+"/crm/v3/objects/contacts/batch/upsert", "HUBSPOT_TOKEN="+hubspotToken)
	r.customTable("contact_activity_events")

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
	// Three activities of one lead are in one batch, with one input for it.
	often := lead("often@example.com")
	happens(often, "visit")
	happens(often, "download")
	good = append(good, happens(often, "call"))
	// HubSpot rejects the newest activity of a lead: the one before it is sent.
	late := lead("late@example.com")
	good = append(good, happens(late, "visit"))
	bad[happens(late, "fax")] = "fax was not one of the allowed options"
	// With a wrong address every activity of a lead is rejected.
	wrong := lead("nobody")
	for range 2 {
		bad[happens(wrong, "visit")] = "Email address nobody is invalid"
	}

	r.deliver()
	server.want(good, bad, r.dead())
	if got := server.contacts["often@example.com"]["last_activity"]; got != "call" {
		t.Errorf("the last activity of the lead with three is %q", got)
	}
}
