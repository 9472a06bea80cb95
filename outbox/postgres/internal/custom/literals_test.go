package custom

import "testing"

func TestWithoutLiterals(t *testing.T) {
	t.Parallel()
	for project, want := range map[string]string{
		`'app.paid' AS topic`:             `'' AS topic`,
		`'it''s app', app.f('app')`:       `'''', app.f('')`,
		`date 'app' || text'app'`:         `date '' || text''`,
		`"it's" || 'app' || "it's"`:       `"it's" || '' || "it's"`,
		"-- it's app\n'app'":              "-- it's app\n''",
		"-- it's\rapp.f('app') -- '":      "-- it's\rapp.f('') -- '",
		`/* it's **/app.f('app')/* ' */`:  `/* it's **/app.f('')/* ' */`,
		`/* /* */ ' */ app.f() /* ' */`:   `/* /* */ ' */ app.f() /* ' */`,
		`$1, 'app'`:                       `$1, ''`,
		`$$'$$ || app.f() || $$'$$`:       `$$'$$ || app.f() || $$'$$`,
		`$a$'$a$ || app.f() || $a$'$a$`:   `$a$'$a$ || app.f() || $a$'$a$`,
		`$1$$'$$ || app.f() || $$'$$`:     `$1$$'$$ || app.f() || $$'$$`,
		`E'\'' || app.f() || ''`:          `E'\'' || app.f() || ''`,
		`'\'' || app.f() || ''`:           `'\'' || app.f() || ''`,
		`U&'!0061' UESCAPE '!' || E'app'`: `U&'' UESCAPE '' || E''`,
		`range_in('x', 'app.n'::regtype)`: `range_in('x', 'app.n'::regtype)`,
		`e.array_index || 'app'`:          `e.array_index || ''`,
		`'app`:                            `'app`,
		`"app 'app'`:                      `"app 'app'`,
		`'app' /* '`:                      `'app' /* '`,
		`'{events} app'`:                  `'{events} app'`,
		"'app' -- {events} '":             "'app' -- {events} '",
		`'app' FROM {events} e`:           `'' FROM {events} e`,
		`Query_To_XML('SELECT app.f()')`:  `Query_To_XML('SELECT app.f()')`,
		`pg_input_is_valid('1', 'app.n')`: `pg_input_is_valid('1', 'app.n')`,
	} {
		if got := withoutLiterals(project); got != want {
			t.Errorf("%s: %s, want %s", project, got, want)
		}
	}
}
