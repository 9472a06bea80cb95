package custom

import "testing"

// TestNames: a name with its schema can mean one object only; one without is resolved by the search path.
func TestNames(t *testing.T) {
	t.Parallel()
	for project, want := range map[string]bool{
		"SELECT shop.label(e) FROM t":                          true,
		`SELECT "shop"."label"(e) FROM t`:                      true,
		"SELECT Shop . LABEL (e) FROM t":                       true,
		"SELECT shop.label(e),shop.label(f) FROM t":            true,
		"SELECT shop.label(shop.label(e)) FROM t":              true,
		"SELECT shop.label(e) AS a, e.label FROM t":            true,
		"SELECT shop.label(e), my_label(e), label2(e) FROM t":  true,
		"SELECT * FROM shop.label":                             true,
		"SELECT e.name::shop.label":                            true,
		"SELECT label(e) FROM t":                               false,
		`SELECT "label"(e) FROM t`:                             false,
		"SELECT LABEL (e) FROM t":                              false,
		"SELECT shop.label(e), label(f) FROM t":                false,
		"SELECT shop.label(label(e)) FROM t":                   false,
		"SELECT shop.label(e),label(f) FROM t":                 false,
		`SELECT shop.label(e), "label"(f) FROM t`:              false,
		"SELECT shop.label(e), e.name::label FROM t":           false,
		"SELECT shop.label(e) FROM label":                      false,
		"SELECT other.label(e) FROM t":                         false,
		"SELECT workshop.label(e) FROM t":                      false,
		"SELECT shop.labels(e) FROM t":                         false,
		`SELECT e.name OPERATOR(shop.+) e.name FROM t WHERE 1`: false,
	} {
		if got := names(project, "shop", "label"); got != want {
			t.Errorf("%s: %v, want %v", project, got, want)
		}
	}
	for _, name := range []struct{ project, schema, name string }{
		{"SELECT s.f$1(e) FROM t", "s", "f$1"},
		{`SELECT "a.b".f(e) FROM t`, "a.b", "f"},
		{"SELECT läden.größe(e) FROM t", "läden", "größe"},
	} {
		if !names(name.project, name.schema, name.name) {
			t.Errorf("%s does not name %s.%s", name.project, name.schema, name.name)
		}
	}
	if names("SELECT a OPERATOR(shop.+) b", "shop", "") {
		t.Error("an operator is named")
	}
}
