package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// questions are asked on a terminal; the zero value asks nothing.
type questions struct {
	in   *bufio.Reader
	out  io.Writer
	show func(text string) string
	bold func(text string) string
}

// asking asks on standard error, where questions do not get into what is redirected.
func (a *app) asking(in io.Reader) *questions {
	paint := painter(a.stderr)
	return &questions{
		in: bufio.NewReader(in), out: a.stderr,
		show: func(text string) string { return a.redact(text) },
		bold: func(text string) string { return paint(bold, text) },
	}
}

func (q *questions) on() bool { return q.in != nil }

// question is one, and what is known of its answer.
type question struct {
	// flag answers it beforehand; given is what it says.
	flag, given string
	// proposed is what an empty answer means; "" means nothing.
	proposed string
	text     string
}

var errNoAnswer = errors.New("nothing was written: the answers ended")

// ask has take take the answer. What take does not take is asked again, but what a
// flag said is an error.
func (q *questions) ask(what question, take func(answer string) error) error {
	if what.given != "" {
		return take(what.given)
	}
	if !q.on() {
		if what.proposed == "" {
			return usage("%s was expected", what.flag)
		}
		return take(what.proposed)
	}
	for {
		fmt.Fprintf(q.out, "\n%s", q.bold(what.text))
		if what.proposed != "" {
			fmt.Fprintf(q.out, " [%s]", what.proposed)
		}
		fmt.Fprint(q.out, "\n> ")
		answer, err := q.read()
		if err != nil {
			return err
		}
		if answer == "" {
			answer = what.proposed
		}
		if answer == "" {
			continue
		}
		if err := take(answer); err != nil {
			fmt.Fprintf(q.out, "%s\n", wrapped(oneLine(q.show(err.Error()))))
			continue
		}
		return nil
	}
}

// sure asks a question whose answer is no unless it is yes; where nobody is asked, it
// is yes.
func (q *questions) sure(text string) (bool, error) {
	if !q.on() {
		return true, nil
	}
	fmt.Fprintf(q.out, "\n%s [y/N]\n> ", q.bold(text))
	answer, err := q.read()
	answer = strings.ToLower(answer)
	return answer == "y" || answer == "yes", err
}

func (q *questions) read() (string, error) {
	answer, err := q.in.ReadString('\n')
	if errors.Is(err, io.EOF) {
		fmt.Fprintln(q.out)
		return "", errNoAnswer
	}
	return strings.TrimSpace(answer), err
}

// wrapped is text in lines that fit a terminal.
func wrapped(text string) string {
	const widest = 78
	var b strings.Builder
	at := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case at > 0 && at+1+len(word) > widest:
			b.WriteByte('\n')
			at = 0
		case at > 0:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += len(word)
	}
	return b.String()
}
