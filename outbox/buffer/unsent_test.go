package buffer_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxrelay/relay/outbox/buffer"
)

func TestCustomTable_Unsent(t *testing.T) {
	t.Parallel()
	columns := []string{"id", "user_id", "subject", "unitPrice", "inserted_at", "updated_at", "otp", "group_id"}
	for name, try := range map[string]struct {
		project string
		want    []string
	}{
		"None":          {"SELECT e.id, e.user_id, jsonb_build_object('s', e.subject, 'p', e.\"unitPrice\") AS payload FROM {events} e", nil},
		"Parent":        {"SELECT e.id, to_jsonb(p) AS payload FROM {events} e JOIN users p ON p.id = e.user_id", []string{"subject", "unitPrice"}},
		"OtherTable":    {"SELECT e.id, e.user_id, jsonb_build_object('subject', p.subject) AS payload FROM {events} AS e JOIN p ON true", []string{"subject", "unitPrice"}},
		"WithoutAlias":  {"SELECT e.id, jsonb_build_object('a', subject, 'b', \"unitPrice\") AS payload FROM {events} e", []string{"user_id"}},
		"UpperCase":     {"SELECT E.id, jsonb_build_object('a', E.Subject, 'b', E.\"unitPrice\", 'c', E.USER_ID) AS payload FROM {events} E", nil},
		"Comment":       {"SELECT e.id, e.user_id AS payload FROM {events} e -- it's not sent: subject, unitPrice", nil},
		"WholeRow":      {"SELECT e.id, to_jsonb(e) AS payload FROM {events} e", nil},
		"Cast":          {"SELECT e.id, row_to_json(e)::jsonb AS payload FROM {events} e", nil},
		"Star":          {"SELECT e.*, e.user_id AS payload FROM {events} e", nil},
		"AllColumns":    {"SELECT r.id, to_jsonb(r) AS payload FROM (SELECT * FROM {events} e) r", nil},
		"Count":         {"SELECT e.id, (SELECT count(*) * 2 FROM o WHERE o.user_id = e.user_id) AS payload FROM {events} e", []string{"subject", "unitPrice"}},
		"NoPlaceholder": {"SELECT e.id, e.user_id AS payload FROM events e WHERE e.group_id = $1", nil},
		"NoAlias":       {"SELECT id, user_id AS payload FROM {events}", nil},
		"Dollars":       {"SELECT e.id, e.user_id AS payload, $$x$$ AS topic FROM {events} e", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := buffer.CustomTable{ID: "id", CreatedAt: "inserted_at", Project: try.project}
			if diff := cmp.Diff(try.want, c.Unsent(columns)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLooksSecret(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"password", "password_digest", "encrypted_password", "passwordHash", "userpassword", "PASSWORD2", "api_token", "apiToken", "authtoken", "refresh_tokens",
		"client_secret", "SecretKey", "apikey", "api_key", "API-Key", "private_key", "salt", "otp_secret", "otp", "totp2", "ssn", "iban", "IBAN2", "cvv", "card_number",
		"reset_digest", "pin", "user_pass", "session_cookie", "recovery_codes",
	} {
		if !buffer.LooksSecret(name) {
			t.Errorf("%s does not look secret", name)
		}
	}
	for _, name := range []string{"id", "key", "subject", "email", "secretary_id", "pin_code", "passenger", "compass", "basalt", "hashtag", "shipping", "option", "unitPrice", "old_status", ""} {
		if buffer.LooksSecret(name) {
			t.Errorf("%s looks secret", name)
		}
	}
}
