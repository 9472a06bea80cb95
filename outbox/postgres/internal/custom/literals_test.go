package custom

import "testing"

func TestQualifiers(t *testing.T) {
	t.Parallel()
	for project, want := range map[string]struct{ code, literals string }{
		`app.f(e.id) AS topic, 'x.y' AS payload`: {`app. e.`, `'x.y`},
		`'it''s app', app.f('my ''x''')`:         {`app.`, `'it's app'my 'x'`},
		`date 'app', text'app'`:                  {``, `'app'app`},
		"app\n\t.f(), \"a\"\"b.c\" . d":          {"app\n\t. \"a\"\"b.c\" .", ""},
		"app\v.f()":                              {"app\v.", ""},
		`größe.f(), a.größe.f(), $1`:             {`größe. a. größe.`, ``},
		`"it's".f('app') || "it's".f()`:          {`"it's". "it's".`, `'app`},
		`U&'!0061' UESCAPE '!' || E'app'`:        {``, `'!0061'!'app`},
		`'app' FROM {events} e`:                  {``, `'app`},
		`app/* */.f('x')`:                        {`app/* */.f('')`, `'x`},
		"app --\n.f('x')":                        {"app --\n.f('')", "'x"},
		"-- it's app\n'app'":                     {"-- it's app\n''", "'app"},
		"-- it's\rapp.f('app') -- '":             {"-- it's\rapp.f('') -- '", "'app"},
		`/* it's **/app.f('app')/* ' */`:         {`/* it's **/app.f('')/* ' */`, `'app`},
		`e.array_index || 'app'`:                 {`e.`, `'app`},
	} {
		if code, with := qualifiers(project); code != want.code || with != want.code+want.literals {
			t.Errorf("%s: %s and %s, want %s", project, code, with, want)
		}
	}
}

// TestQualifiers_All: these may run a literal, or where one ends is not certain.
func TestQualifiers_All(t *testing.T) {
	t.Parallel()
	for _, project := range []string{
		`Query_To_XML('app')`,
		`pg_input_is_valid('app')`,
		`range_in('app')`,
	} {
		if code, with := qualifiers(project); code != "'app" || with != code {
			t.Errorf("%s: %s and %s", project, code, with)
		}
	}
	for _, project := range []string{
		`/* /* */ ' */ app.f() /* ' */`,
		`$$'$$ || app.f() || $$'$$`,
		`$a$'$a$ || app.f() || $a$'$a$`,
		`$1$$'$$ || app.f() || $$'$$`,
		`E'\'' || app.f() || ''`,
		`'\'' || app.f() || ''`,
		`'app`,
		`"app 'app'`,
		`'app' /* '`,
		`'{events} app'`,
		"'app' -- {events} '",
	} {
		if code, with := qualifiers(project); code != project || with != project {
			t.Errorf("%s: %s and %s", project, code, with)
		}
	}
}
