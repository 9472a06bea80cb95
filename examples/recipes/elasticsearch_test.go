package recipes_test

import (
	"fmt"
	"strconv"
	"testing"
)

// elasticsearch has three thousand products. Some have a price that is no number, some
// meet a full queue, one changes often, and one is older than the index.
func elasticsearch(t *testing.T, program string) {
	server := newElastic(t)
	r := cook(t, program, "elasticsearch", "ELASTIC_URL="+server.URL+"/_bulk", "ELASTIC_API_KEY="+elasticKey)

	var good []string
	bad := map[string]string{}
	for i := range 3000 {
		price := fmt.Sprintf("%d.50", i)
		if i%100 == 42 {
			price = "on request"
		}
		product := r.id("INSERT INTO products (name, price) VALUES ('A product with a name as long as names are', $1) RETURNING id", price)
		event := strconv.FormatInt(r.id("SELECT max(id) FROM outbox_events"), 10)
		if i%100 == 42 {
			bad[event] = fmt.Sprintf("document_parsing_exception: [1:20] failed to parse field [price] of type [float] in document with id '%d'.", product)
			continue
		}
		good = append(good, event)
		server.full[strconv.FormatInt(product, 10)] = i%100 == 7
	}
	often := r.id("INSERT INTO products (name, price) VALUES ('Changes often', '0') RETURNING id")
	for price := range 10 {
		r.exec("UPDATE products SET price = $2 WHERE id = $1", often, strconv.Itoa(price))
	}
	// The index has a newer version of one product, as after a restore of the database.
	ahead := r.id("INSERT INTO products (name, price) VALUES ('Behind the index', '1') RETURNING id")
	server.documents[strconv.FormatInt(ahead, 10)] = elasticDocument{version: 1 << 40, price: "2"}

	r.deliver()
	if got := server.documents[strconv.FormatInt(ahead, 10)].price; got != "2" {
		t.Errorf("the newer price changed to %q", got)
	}
	// Newer prices may have overtaken older ones; the newest must be there.
	id := strconv.FormatInt(often, 10)
	if got := server.documents[id].price; got != "9" {
		t.Errorf("the price that changed often is %q; the last was 9", got)
	}
	for i := range int64(11) {
		delete(server.accepted, strconv.FormatInt(server.documents[id].version-i, 10))
	}
	server.want(good, bad, r.dead())
	if server.tooLarge == 0 {
		t.Error("no body was too large")
	}
}
