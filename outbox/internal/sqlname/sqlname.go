// Package sqlname splits and quotes the names of tables. It imports the standard library only, because the packages that
// applications insert with use it.
package sqlname

import "strings"

// Split is buffer.SplitTable.
func Split(name string) (schema, table string, ok bool) {
	first, rest, ok := unquoted(name)
	if !ok {
		return "", name, false
	}
	if rest == "" {
		return "", first, true
	}
	table = rest[1:]
	if strings.HasPrefix(table, `"`) {
		var left string
		if table, left, ok = unquoted(table); !ok || left != "" {
			return first, rest[1:], false
		}
	}
	return first, table, true
}

// Quote is buffer.QuoteName.
func Quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// unquoted returns the first part of a name, and the rest from its dot on.
func unquoted(name string) (part, rest string, ok bool) {
	if !strings.HasPrefix(name, `"`) {
		if i := strings.IndexByte(name, '.'); i >= 0 {
			return name[:i], name[i:], true
		}
		return name, "", true
	}
	var b strings.Builder
	for i := 1; i < len(name); i++ {
		if name[i] != '"' {
			b.WriteByte(name[i])
			continue
		}
		if i+1 < len(name) && name[i+1] == '"' {
			b.WriteByte('"')
			i++
			continue
		}
		rest = name[i+1:]
		return b.String(), rest, rest == "" || rest[0] == '.'
	}
	return "", "", false
}
