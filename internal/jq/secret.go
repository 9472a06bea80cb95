package jq

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/itchyny/gojq"
)

// secretVariable is the object of the secrets that a program reads.
const secretVariable = "$secret"

// Secrets returns the names that a program reads as $secret.NAME or $secret["NAME"], sorted. It returns a *Error
// if text is not a jq program, or uses $secret in another way.
func Secrets(text string) ([]string, error) {
	query, err := parse(text)
	if err != nil {
		return nil, err
	}
	return secretsOf(query)
}

// secretsOf refuses what cannot be resolved before the program runs, and the environment, which is empty here: a
// program that reads it would send null for a secret.
func secretsOf(query *gojq.Query) (names []string, err error) {
	fail := func(format string, a ...any) {
		if err == nil {
			err = &Error{Text: fmt.Sprintf(format, a...)}
		}
	}
	walk(query, func(node any) {
		switch n := node.(type) {
		case *gojq.Pattern:
			if n.Name == secretVariable {
				fail("the program gives another value to %s; expected another variable", secretVariable)
			}
		case *gojq.FuncDef:
			if slices.Contains(n.Args, secretVariable) {
				fail("the program gives another value to %s; expected another variable", secretVariable)
			}
		case *gojq.ObjectKeyVal:
			if n.Key == secretVariable {
				fail("{%s} is all secrets; expected one, such as %s.API_KEY", secretVariable, secretVariable)
			}
		case *gojq.Term:
			switch {
			case n.Type != gojq.TermTypeFunc:
			case n.Func.Name == "$ENV", n.Func.Name == "env" && len(n.Func.Args) == 0:
				fail("%s is empty in a program; expected %s.NAME for the environment variable NAME", n.Func.Name, secretVariable)
			case n.Func.Name == secretVariable:
				name, ok := secretName(n)
				if !ok {
					fail("%s is used without the name of a secret; expected %s.NAME, or %s[\"file:/path\"] for a file", secretVariable, secretVariable, secretVariable)
				}
				names = append(names, name)
			}
		}
	})
	slices.Sort(names)
	return slices.Compact(names), err
}

// secretName returns NAME of $secret.NAME, $secret."NAME" or $secret["NAME"].
func secretName(t *gojq.Term) (string, bool) {
	if len(t.SuffixList) == 0 || t.SuffixList[0].Index == nil {
		return "", false
	}
	index := t.SuffixList[0].Index
	text := index.Str
	if start := index.Start; start != nil && !index.IsSlice && start.Term != nil && len(start.Term.SuffixList) == 0 {
		text = start.Term.Str
	}
	switch {
	case index.Name != "":
		return index.Name, true
	case text != nil && len(text.Queries) == 0 && text.Str != "":
		return text.Str, true
	}
	return "", false
}

// walk calls visit for each node of a program: every pointer to a struct of the syntax tree, parents first.
func walk(node any, visit func(any)) { walkValue(reflect.ValueOf(node), visit) }

func walkValue(v reflect.Value, visit func(any)) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		visit(v.Interface())
		walkValue(v.Elem(), visit)
	case reflect.Struct:
		for i := range v.NumField() {
			walkValue(v.Field(i), visit)
		}
	case reflect.Slice:
		for i := range v.Len() {
			walkValue(v.Index(i), visit)
		}
	}
}
