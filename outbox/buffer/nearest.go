package buffer

import "strings"

// Nearest returns the word with the smallest edit distance from text, in lower case, of at most that many characters; "" if all are too
// far.
func Nearest(text string, words []string, most int) string {
	text = strings.ToLower(text)
	found := ""
	for _, w := range words {
		if d := distance(text, strings.ToLower(w)); d <= most {
			found, most = w, d-1
		}
	}
	return found
}

// distance is the Levenshtein distance.
func distance(a, b string) int {
	if len(a) > 100 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// NearestTable returns the name of a table that may be meant by a name that no table has; "" if there is none.
func NearestTable(name string, tables []string) string {
	return Nearest(name, tables, max(2, len(name)/5))
}
