package buffer

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Unsent returns the columns, of all those of the table, that the projection does not send, as far as its text says so for
// sure: their names are nowhere in it, and it names the rows only together with a column. A name in a comment of the
// projection counts, so that a column can be left out on purpose. Columns that are the relay's or name the event are no part
// of the result, nor those that [LooksSecret] or that say when a row was changed.
func (o CustomTable) Unsent(columns []string) (unsent []string) {
	if o.Mark != nil { // the row stays
		return nil
	}
	text := literals.ReplaceAllStringFunc(o.Project, func(part string) string {
		if strings.HasPrefix(part, "'") {
			return "''"
		}
		return part
	})
	alias := eventsAlias.FindStringSubmatch(text)
	if alias == nil || strings.Contains(o.Project, "$$") || strings.Contains(o.Project, `\'`) || star.MatchString(text) {
		return nil
	}
	text = strings.Replace(text, alias[0], " ", 1)
	mentions := mentions(text)
	if mentions.bare[strings.ToLower(strings.Trim(alias[1], `"`))] { // the whole row, as in to_jsonb(e)
		return nil
	}
	row := strings.ToLower(strings.Trim(alias[1], `"`))
	for _, c := range columns {
		name := strings.ToLower(c)
		switch {
		case mentions.bare[name], mentions.of[row+"."+name], LooksSecret(c), slices.Contains(bookkeeping, strings.ReplaceAll(name, "_", "")):
		case name == "group_id", name == "created_at", slices.ContainsFunc([]string{o.ID, o.Cursor, o.CreatedAt}, func(own string) bool { return strings.EqualFold(own, c) }):
		default:
			unsent = append(unsent, c)
		}
	}
	return unsent
}

// EventColumns are the columns of the relay's own table. Nothing is sent of other ones.
var EventColumns = []string{"id", "topic", "key", "payload", "headers", "created_at", "group_id", "available_at"}

// firstEventColumns are those that it had in the first version.
var firstEventColumns = []string{"id", "topic", "key", "payload", "headers", "created_at", "group_id"}

// FirstEventColumns returns the columns that each version of the relay's own table has.
func FirstEventColumns() []string { return slices.Clone(firstEventColumns) }

// LacksEventColumns returns the columns that each version of the relay's own table has, and the table with these columns does not.
func LacksEventColumns(columns []string) (lacks []string) {
	for _, c := range firstEventColumns {
		if !slices.Contains(columns, c) {
			lacks = append(lacks, c)
		}
	}
	return lacks
}

// CannotBeEvents reports whether no statement makes a table with these columns the relay's own: it lacks those that events have a value of their own in.
func CannotBeEvents(columns []string) bool {
	return !slices.Contains(columns, "topic") || !slices.Contains(columns, "payload")
}

// IsEventTable reports whether a table with these columns has those of the relay's own, and no others.
func IsEventTable(columns []string) bool {
	return LacksEventColumns(columns) == nil && !slices.ContainsFunc(columns, func(c string) bool { return !slices.Contains(EventColumns, c) })
}

// UnsentEventColumns returns the columns, of all those of a table that is used as the relay's own, that are not sent. As in
// [CustomTable.Unsent] it leaves out those that [LooksSecret] or that say when a row was changed.
func UnsentEventColumns(columns []string) (unsent []string) {
	for _, c := range columns {
		if !slices.Contains(EventColumns, c) && !LooksSecret(c) && !slices.Contains(bookkeeping, strings.ReplaceAll(strings.ToLower(c), "_", "")) {
			unsent = append(unsent, c)
		}
	}
	return unsent
}

var (
	// literals are texts in quotes, and the comments and quoted names in which a quote begins no text.
	literals = regexp.MustCompile(`--[^\n]*|(?s:/\*.*?\*/)|"(?:[^"]|"")*"|'(?:[^']|'')*'`)
	// eventsAlias is the name that the rows of the batch have.
	eventsAlias = regexp.MustCompile(`(?i)\{events\}\s+(?:AS\s+)?([\pL_][\pL\pN_]*|"[^"]+")`)
	// star is every column. A count of rows is none.
	star = regexp.MustCompile(`(?:^|[^(\s])\s*\.\s*\*|(?i)\b(?:SELECT|DISTINCT|ALL)\s+\*|,\s*\*`)
	name = regexp.MustCompile(`(?:(?:([\pL_][\pL\pN_$]*)|"((?:[^"]|"")*)")\s*\.\s*)?(?:([\pL_][\pL\pN_$]*)|"((?:[^"]|"")*)")`)
)

// bookkeeping are columns that say when or how often a row was changed.
var bookkeeping = []string{"updatedat", "updatedon", "updated", "modifiedat", "modifiedon", "modified", "lockversion"}

type mentioned struct {
	// bare are names alone, of names of a table.
	bare, of map[string]bool
}

// mentions returns the names in a projection, in lower case.
func mentions(text string) mentioned {
	m := mentioned{map[string]bool{}, map[string]bool{}}
	unquoted := func(plain, quoted string) string {
		return strings.ToLower(plain + strings.ReplaceAll(quoted, `""`, `"`))
	}
	for _, found := range name.FindAllStringSubmatch(text, -1) {
		table, column := unquoted(found[1], found[2]), unquoted(found[3], found[4])
		if table == "" {
			m.bare[column] = true
		} else {
			m.of[table+"."+column] = true
		}
	}
	return m
}

// LooksSecret reports whether the name of a column suggests that its values are secrets, such as password_digest or apiKey.
func LooksSecret(column string) bool {
	words := wordsOf(column)
	together := strings.Join(words, "")
	if slices.ContainsFunc(secretParts, func(part string) bool { return strings.Contains(together, part) }) {
		return true
	}
	for i, word := range words {
		if slices.Contains(secretWords, word) || slices.ContainsFunc(secretEnds, func(end string) bool { return strings.HasSuffix(word, end) }) {
			return true
		}
		if slices.Contains(secretLast, word) && i == len(words)-1 {
			return true
		}
	}
	return false
}

var (
	// secretParts are parts of a name without its separators.
	secretParts = []string{
		"password", "passwd", "passphrase", "passcode", "apikey", "privatekey", "secretkey", "accesskey", "signingkey", "encryptionkey", "authkey",
		"creditcard", "cardnumber", "socialsecurity", "recoverycode", "backupcode", "securityanswer", "ciphertext",
	}
	secretWords = []string{
		"hashed", "salt", "otp", "totp", "hotp", "mfa", "ssn", "iban", "cvv", "cvc", "pwd", "jwt", "nonce", "cookie", "cookies", "credential", "credentials",
		"encrypted", "tokens", "secrets", "hashes", "digests",
	}
	// secretEnds end a word, since names are also written without separators.
	secretEnds = []string{"token", "secret", "hash", "digest"}
	secretLast = []string{"pin", "pass", "crypt"}
)

// wordsOf returns the words of a name in lower case, without digits: first_name, firstName and FIRST-NAME have two.
func wordsOf(name string) (words []string) {
	var word []rune
	flush := func() {
		if word != nil {
			words, word = append(words, strings.ToLower(string(word))), nil
		}
	}
	letters := []rune(name)
	for i, c := range letters {
		switch {
		case !unicode.IsLetter(c):
			flush()
			continue
		case unicode.IsUpper(c) && i > 0 && (unicode.IsLower(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1])):
			flush()
		}
		word = append(word, c)
	}
	flush()
	return words
}
