package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// printers are the ways in which a value gets into output and logs.
var printers = []func(any) string{
	func(v any) string { return fmt.Sprint(v) },
	func(v any) string { return fmt.Sprintf("%v %+v %#v %s %q %x %X %d", v, v, v, v, v, v, v, v) },
	func(v any) string { text, err := json.Marshal(v); return fmt.Sprint(string(text), err) },
	func(v any) string {
		var out bytes.Buffer
		log := slog.New(slog.NewJSONHandler(&out, nil))
		log.Info("x", slog.Any("v", v), slog.Group("g", slog.Any("v", v)))
		return out.String()
	},
	func(v any) string {
		var out bytes.Buffer
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", slog.Any("v", v))
		return out.String()
	},
	func(v any) string { return fmt.Errorf("wrapped: %v", v).Error() },
}

func TestSecret_IsNeverPrinted(t *testing.T) {
	t.Parallel()
	c, err := parseFile(t, "testdata/full.good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	type unexported struct{ s Secret }
	for _, v := range []any{
		c, *c, c.Admin, c.Admin.Token, &c.Admin.Token, c.Pipelines,
		unexported{c.Admin.Token},
		&unexported{c.Admin.Token},
		c.Pipelines[0].Source, c.Pipelines[0].Sink, c.Pipelines[0].DeadLetter, c.Pipelines[0].DeadLetter.Hook, c.Pipelines[5].Sink, c.Pipelines[5].Sink.HTTP.Headers, c.Pipelines[6].Sink.URL,
	} {
		for _, show := range printers {
			showsNoSecret(t, show(v))
		}
	}
	// The test can see one.
	if !strings.Contains(printers[0](c.Admin.Token.Reveal()), "S3cret") {
		t.Error("the planted secret is not found where it is shown on purpose")
	}
	for _, want := range []string{"db.example:5433/shop", "hooks.example", "cache.example:6380/3"} {
		if !strings.Contains(printers[1](c), want) {
			t.Errorf("%s is masked, and it is not a secret", want)
		}
	}
}

func TestSecret_MasksURL(t *testing.T) {
	t.Parallel()
	for written, want := range map[string]string{
		"postgres://app:l1teralS3cret@db/app":              "postgres://***@db/app",
		"postgres://app:${PGPASSWORD}@db/app":              "postgres://***@db/app",
		"postgres://db/app?user=a&password=l1teralS3cret":  "postgres://db/app?***",
		"postgres://app:12?S3cret@db/app":                  "postgres://***@db/app",
		"postgres://${USER_NAME:-app}@${HOST:-db}/app":     "postgres://***@***/app",
		"${DATABASE_URL}":                                  "postgres://***@db.example:5433/shop?***",
		"${NO_URL:-postgres://app:defaultS3cret@db/other}": "postgres://***@db/other",
	} {
		c := parseGood(t, pipelineWith(fmt.Sprintf("source: {url: '%s'}", written)))
		if got := c.Pipelines[0].Source.URL.String(); got != want {
			t.Errorf("%s is masked as %s, want %s", written, got, want)
		}
	}
}

func TestSecret_MasksHTTPPathAndQuery(t *testing.T) {
	t.Parallel()
	for written, want := range map[string]string{
		"https://u:l1teralS3cret@api.example/v1/{topic}?k=l1teralS3cret": "https://***@api.example/v1/{topic}?***",
		"https://api.example/api/v1/contacts/batch":                      "https://api.example/api/v1/contacts/batch",
		"https://api.example/${NO_PATH:-contacts}/batch":                 "https://api.example/***/batch",
		"${NO_URL:-https://api.example/contacts/batch}":                  "https://api.example/***",
		"https://api.example/in/l1teralS3cretl1teral/{key}":              "https://api.example/in/***/{key}",
		"https://api.example/in/${RELAY_ADMIN_TOKEN}/more":               "https://api.example/in/***/more",
		"https://api.example?k=l1teralS3cret":                            "https://api.example?***",
		"https://api.example/":                                           "https://api.example/",
	} {
		c := parseGood(t, pipelineWith(fmt.Sprintf("sink: {url: '%s'}", written)))
		if got := c.Pipelines[0].Sink.URL.String(); got != want {
			t.Errorf("%s is masked as %s, want %s", written, got, want)
		}
		if got := c.Redactor()("refused: " + written); got != "refused: "+want && strings.Contains(got, "S3cret") {
			t.Errorf("in a text %s becomes %s, want %s", written, got, want)
		}
		if got := c.Redactor()("l1teralS3cretl1teral is unknown"); strings.Contains(written, "/l1teral") && got != "*** is unknown" {
			t.Errorf("the token in a text becomes %s", got)
		}
	}
}

func TestErrors_HideExpandedValues(t *testing.T) {
	t.Parallel()
	var count int
	for _, row := range documented() {
		for _, text := range []string{"${RELAY_ADMIN_TOKEN}", "a${RELAY_ADMIN_TOKEN} b", "redis://${PGPASSWORD}/${RELAY_ADMIN_TOKEN}", "${ODD_SCHEME}"} {
			_, err := Parse("relay.yaml", []byte(row.file("'"+text+"'")), lookup)
			if err == nil {
				continue
			}
			count++
			showsNoSecret(t, err.Error())
			if !errors.As(err, new(Errors)) {
				t.Errorf("%v is not an Errors", err)
			}
		}
	}
	if count < 100 {
		t.Errorf("only %d files had errors: the test does not see messages", count)
	}
}
