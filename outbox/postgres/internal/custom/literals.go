package custom

import (
	"regexp"
	"strings"

	"github.com/outboxrelay/relay/outbox/internal/projection"
)

// runsText matches PostgreSQL's own functions that run what a text names: a query, a table, a schema of the search path, a type whose values are checked, or a
// function whose body is parsed.
var runsText = regexp.MustCompile(`(?i)to_xml|xmlschema|ts_stat|ts_rewrite|set_config|pg_input_|pg_restore_|(?:array|domain|range|record)_in\b|_validator`)

// delimited matches what may contain quotes: comments, quoted identifiers and string literals; and the beginning of one that does not end, or of a dollar quote.
// A doubled quote ends one literal and begins another.
var delimited = regexp.MustCompile(`--[^\r\n]*|/\*(?:[^*]|\*+[^*/])*\*+/|"[^"]*"|'[^']*'|['"]|/\*|\$(?:\D|$)`)

// qualifier matches what may be the name of a schema.
var qualifier = regexp.MustCompile(`("(?:[^"]|"")*"|[\w$\x80-\x{10FFFF}]+)[\s\v]*\.`)

// qualifiers returns the text that has the names of a projection's schemas: what is before a dot outside of string literals. The second text has its literals too,
// for functions that run them. A literal that is not run names at most an object, as in 'app.orders'::regclass.
func qualifiers(project string) (code, withLiterals string) {
	code, literals, plain := split(project)
	if !plain {
		return project, project
	}
	if !strings.Contains(code, "--") && !strings.Contains(code, "/*") { // a comment may be before the dot
		code = strings.Join(qualifier.FindAllString(code, -1), " ")
	}
	withLiterals = code + literals
	if runsText.MatchString(project) {
		code = withLiterals
	}
	return code, withLiterals
}

// split takes the string literals out of a projection. plain is false if their ends are not certain: it has dollar quotes, or backslashes that may escape quotes.
func split(project string) (code, literals string, plain bool) {
	var outside, inside strings.Builder
	end := 0
	for _, at := range delimited.FindAllStringIndex(project, -1) {
		token := project[at[0]:at[1]]
		switch {
		case strings.Contains(token, projection.Events): // it is expanded to several lines, with quotes
			return "", "", false
		case token[0] == '$', token == "'", token == `"`, token == "/*":
			return "", "", false
		case token[0] == '/' && strings.Contains(token[2:], "/*"): // comments in comments
			return "", "", false
		case token[0] == '\'':
			if strings.Contains(token, `\`) {
				return "", "", false
			}
			outside.WriteString(project[end:at[0]] + "''")
			inside.WriteString(token[:len(token)-1]) // a quote between two, so that doubled ones stay one
			end = at[1]
		}
	}
	return outside.String() + project[end:], inside.String(), true
}
