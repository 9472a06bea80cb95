package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/outboxrelay/relay/internal/scaffold"
)

// questions asks questions on a terminal. The zero value asks nothing.
type questions struct {
	in   *bufio.Reader
	out  io.Writer
	show func(text string) string
	bold func(text string) string
}

// newQuestions asks on standard error, because standard output may be redirected.
func (a *app) newQuestions(in io.Reader) *questions {
	paint := painter(a.stderr)
	return &questions{
		in: bufio.NewReader(in), out: a.stderr,
		show: func(text string) string { return a.redact(text) },
		bold: func(text string) string { return paint(bold, text) },
	}
}

func (q *questions) enabled() bool { return q.in != nil }

type question struct {
	// given is the value of the flag, if the flag is set.
	flag, given string
	// proposed is the meaning of an empty answer; "" if an answer is required.
	proposed string
	text     string
}

var errNoAnswer = errors.New("end of input, nothing was written")

// ask passes the answer to accept. It asks again if accept returns an error, unless a flag gave the answer.
func (q *questions) ask(what question, accept func(answer string) error) error {
	if what.given != "" {
		return accept(what.given)
	}
	if !q.enabled() {
		if what.proposed == "" {
			return usage("%s is missing; expected a value", what.flag)
		}
		return accept(what.proposed)
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
		if err := accept(answer); err != nil {
			fmt.Fprintf(q.out, "%s\n", wrapped(oneLine(q.show(err.Error()))))
			continue
		}
		return nil
	}
}

// confirm asks for a yes. The default is no on a terminal, yes otherwise.
func (q *questions) confirm(text string) (bool, error) {
	if !q.enabled() {
		return true, nil
	}
	fmt.Fprintf(q.out, "\n%s [y/N]\n> ", q.bold(text))
	answer, err := q.read()
	answer = strings.ToLower(answer)
	return answer == "y" || answer == "yes", err
}

// propose asks for a yes to a guess. The default is no, without a terminal as well.
func (q *questions) propose(text string) (bool, error) {
	if !q.enabled() {
		return false, nil
	}
	return q.confirm(text)
}

func (q *questions) read() (string, error) {
	answer, err := q.in.ReadString('\n')
	if errors.Is(err, io.EOF) {
		fmt.Fprintln(q.out)
		return "", errNoAnswer
	}
	return strings.TrimSpace(answer), err
}

// wrapped is text in lines of at most 78 characters.
func wrapped(text string) string { return strings.Join(scaffold.Wrap(text, 78), "\n") }
