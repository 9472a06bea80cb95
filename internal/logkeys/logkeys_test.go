// Package logkeys checks that docs/logs.md has every key of the log.
package logkeys

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// before is the number of arguments before the keys and values of a method of slog.Logger.
var before = map[string]int{
	"With": 0, "Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "DebugContext": 2, "InfoContext": 2, "WarnContext": 2, "ErrorContext": 2, "Log": 3,
}

// keysOf calls found for each key that is written out in a node: in a call of a logger, in a slog.Attr and, if lists is true, in a list
// of keys and values.
func keysOf(n ast.Node, lists bool, found func(key ast.Expr)) {
	switch n := n.(type) {
	case *ast.CompositeLit:
		if array, ok := n.Type.(*ast.ArrayType); ok && lists {
			if element, ok := array.Elt.(*ast.Ident); ok && element.Name == "any" {
				for i := 0; i+1 < len(n.Elts); i += 2 {
					found(n.Elts[i])
				}
			}
		}
	case *ast.CallExpr:
		switch f := n.Fun.(type) {
		case *ast.Ident:
			if f.Name == "add" && len(n.Args) == 3 && lists { // see attrs of package supervisor
				found(n.Args[0])
			}
		case *ast.SelectorExpr:
			if x, ok := f.X.(*ast.Ident); ok && x.Name == "slog" && len(n.Args) == 2 {
				found(n.Args[0])
			} else if from, ok := before[f.Sel.Name]; ok {
				args := n.Args[min(from, len(n.Args)):]
				if list, ok := last(args).(*ast.CallExpr); ok && n.Ellipsis.IsValid() { // append(attrs, ...)...
					args = list.Args[min(1, len(list.Args)):]
				}
				for i := 0; i+1 < len(args); i += 2 {
					found(args[i])
				}
			}
		}
		if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "append" && lists {
			for i := 1; i+1 < len(n.Args); i += 2 {
				found(n.Args[i])
			}
		}
	}
}

func last(args []ast.Expr) ast.Expr {
	if len(args) == 0 {
		return nil
	}
	return args[len(args)-1]
}

var key = regexp.MustCompile(`^[a-z][a-z_]*$`)

// logged are the keys that the program's source has, with a place of each.
func logged(t *testing.T) map[string]string {
	t.Helper()
	keys, files := map[string]string{}, token.NewFileSet()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"bench", "chaos", "examples", "tools", "testserver", "testkit", "testdb", "testdata", "mutants"}, d.Name()) {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		// Elsewhere a list of any has other things, such as the arguments of a statement.
		lists := strings.Contains(path, "/pipeline/") || strings.Contains(path, "/supervisor/")
		ast.Inspect(file, func(n ast.Node) bool {
			keysOf(n, lists, func(e ast.Expr) {
				if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if text, err := strconv.Unquote(l.Value); err == nil && key.MatchString(text) {
						keys[text] = files.Position(l.Pos()).String()
					}
				}
			})
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestKeys_AreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/logs.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Keys\n")
	table, _, _ = strings.Cut(table, "\n## ")
	documented := map[string]bool{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
			documented[m[1]] = true
		}
	}
	keys := logged(t)
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		if !documented[name] {
			t.Errorf("docs/logs.md lacks the key %s of %s", name, keys[name])
		}
	}
	for name := range documented {
		if keys[name] == "" && !slices.Contains([]string{"time", "level", "msg"}, name) {
			t.Errorf("docs/logs.md has the key %s, which no line has", name)
		}
	}
	if len(keys) < 40 {
		t.Errorf("found %d keys", len(keys))
	}
}
