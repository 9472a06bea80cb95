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

// withoutLiterals returns a projection with its string literals emptied, or as it is if one of these functions may run a literal, or if it has dollar quotes, or backslashes
// that may escape quotes. A literal that is not run names at most an object, as in 'app.orders'::regclass.
func withoutLiterals(project string) string {
	if runsText.MatchString(project) {
		return project
	}
	var kept strings.Builder
	end := 0
	for _, at := range delimited.FindAllStringIndex(project, -1) {
		token := project[at[0]:at[1]]
		switch {
		case strings.Contains(token, projection.Events): // it is expanded to several lines, with quotes
			return project
		case token[0] == '$', token == "'", token == `"`, token == "/*":
			return project
		case token[0] == '/' && strings.Contains(token[2:], "/*"): // comments in comments
			return project
		case token[0] == '\'':
			if strings.Contains(token, `\`) {
				return project
			}
			kept.WriteString(project[end:at[0]] + "''")
			end = at[1]
		}
	}
	return kept.String() + project[end:]
}
