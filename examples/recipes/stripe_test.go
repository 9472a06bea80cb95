package recipes_test

import (
	"maps"
	"slices"
	"strconv"
	"testing"
)

// stripe has two hundred invoices. Some cards are declined, and some amounts are too
// small to charge.
func stripe(t *testing.T, program string) {
	server := newStripe(t, append([]fault{hang}, slowDay...))
	r := cook(t, program, "stripe", "STRIPE_URL="+server.URL+"/v1/{topic}", "STRIPE_SECRET_KEY="+stripeKey, "STRIPE_TIMEOUT=2s")

	var good []string
	bad := map[string]string{}
	insert := func(i int, card string, cents int) (id string) {
		r.exec("INSERT INTO invoices (customer, payment_method, cents) VALUES ($1, $2, $3)", "cus_"+strconv.Itoa(i), card, cents)
		return strconv.FormatInt(r.id("SELECT max(id) FROM outbox_events"), 10)
	}
	for i := range 200 {
		card, cents := "pm_card_visa", 1000+i
		switch i % 20 {
		case 3:
			card = "pm_card_visa_chargeDeclined"
		case 9:
			cents = i % 50
		}
		id := insert(i, card, cents)
		switch i % 20 {
		case 3:
			bad[id] = "card_declined: Your card was declined."
		case 9:
			bad[id] = "amount_too_small: Amount must be at least €0.50 eur"
		default:
			good = append(good, id)
		}
	}
	run := r.start()
	// A bad event that is sent after the last good one waits for another one, which shows that Stripe accepts events.
	r.drainedWith(func() {
		if r.id("SELECT count(*) FROM outbox_events WHERE NOT id::text = ANY ($1)", slices.Collect(maps.Keys(bad))) == 0 {
			good = append(good, insert(200+len(good), "pm_card_visa", 1000))
		}
	})
	run.stop()
	server.want(good, bad, r.dead())
	if server.intents != len(good) {
		t.Errorf("%d payments were made; expected %d", server.intents, len(good))
	}
	if server.conflicts != 0 {
		t.Errorf("%d conflicts did not occur", server.conflicts)
	}
}
