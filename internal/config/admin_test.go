package config

import (
	"fmt"
	"strings"
	"testing"
)

// TestAdmin_AllTokens: admin.token is one of them, and one is enough to listen beyond loopback. None is shown.
func TestAdmin_AllTokens(t *testing.T) {
	t.Parallel()
	for admin, want := range map[string]string{
		"{}":                  "",
		"{token: ''}":         "",
		"{token: m4inS3cret}": "admin m4inS3cret false",
		"{token: m4inS3cret, tokens: [{name: alice, token: 4liceS3cret}]}":                      "admin m4inS3cret false, alice 4liceS3cret false",
		"{listen: '0.0.0.0:7070', tokens: [{name: admin, token: m4inS3cret, read_only: true}]}": "admin m4inS3cret true",
	} {
		c, err := Parse("relay.yaml", []byte("admin: "+admin+"\npipelines: [{name: a, source: {url: 'sqlite:///a.db'}, sink: {url: 'stdout:'}}]"), lookup)
		if err != nil {
			t.Errorf("%s: %v", admin, err)
			continue
		}
		var got []string
		for _, one := range c.Admin.AllTokens() {
			got = append(got, fmt.Sprint(one.Name, " ", one.Token.Reveal(), " ", one.ReadOnly))
			showsNoSecret(t, c.Redactor()("a server says "+one.Token.Reveal()))
		}
		if all := strings.Join(got, ", "); all != want {
			t.Errorf("%s: the tokens are %s, want %s", admin, all, want)
		}
		showsNoSecret(t, fmt.Sprintf("%v %+v %#v", c, c, c))
	}
}
