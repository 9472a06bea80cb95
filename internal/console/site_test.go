package console_test

import (
	"context"
	"database/sql"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	_ "modernc.org/sqlite"

	"github.com/outboxrelay/relay"
	"github.com/outboxrelay/relay/internal/testkit"
)

const token = "0123456789abcdef-token"

// site is a running relay with its console, whose one pipeline, orders, sends to an API.
type site struct {
	url string
	db  *sql.DB
	api *api
}

// api is a bulk API.
type api struct {
	away   atomic.Bool // it answers 503
	server *httptest.Server
}

// newAPI refuses each event whose topic begins with "bad".
func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{}
	a.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.away.Load() {
			http.Error(w, "closed for <b>maintenance</b>", http.StatusServiceUnavailable)
			return
		}
		var body struct {
			Events []struct{ ID, Topic string }
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		errors := []map[string]string{}
		for _, e := range body.Events {
			if strings.HasPrefix(e.Topic, "bad") {
				errors = append(errors, map[string]string{"id": e.ID, "error": "no such tenant " + e.ID})
			}
		}
		if err := json.NewEncoder(w).Encode(map[string]any{"errors": errors}); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(a.server.Close)
	return a
}

// open runs a relay on new SQLite files. more are pipelines besides orders; %s in them is the folder of the files.
func open(t *testing.T, more string) *site { t.Helper(); return openWith(t, "", more) }

// openWith is open with more keys of admin, behind a comma.
func openWith(t *testing.T, keys, more string) *site {
	t.Helper()
	dir, s := t.TempDir(), &site{api: newAPI(t)}
	text := fmt.Sprintf(`
admin: {listen: "", token: %s%s}
pipelines:
  - name: orders
    source: {url: "sqlite://%s/orders.db"}
    sink: {url: "%s/batch", results: '[select(.status < 500) | .body.errors[]? | {id, error}]'}
`, token, keys, dir, s.api.server.URL) + strings.ReplaceAll(more, "%s", dir)
	r, err := relay.Open(filepath.Join(dir, "relay.yaml"), relay.Options{Text: []byte(text), Log: slog.New(slog.DiscardHandler)})
	testkit.NoError(t, err)
	_, err = r.Migrate(t.Context())
	testkit.NoError(t, err)
	server := httptest.NewServer(r.Handler())
	s.url = server.URL
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	s.db, err = sql.Open("sqlite", "file:"+dir+"/orders.db?_pragma=busy_timeout(20000)")
	testkit.NoError(t, err)
	t.Cleanup(func() {
		testkit.NoError(t, s.db.Close())
		cancel()
		testkit.NoError(t, <-ended)
		server.Close()
		testkit.NoError(t, r.Close())
	})
	return s
}

func (s *site) insert(t *testing.T, topic, payload string) {
	t.Helper()
	_, err := s.db.ExecContext(t.Context(), "INSERT INTO outbox_events (topic, payload) VALUES (?, ?)", topic, payload)
	testkit.NoError(t, err)
}

func (s *site) count(t *testing.T, query string) (n int) {
	t.Helper()
	testkit.NoError(t, s.db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// expectDead waits until there are so many dead letters. An event that is refused for good dies when the API accepts another one after that.
func (s *site) expectDead(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, func() error {
		s.insert(t, "good", "1")
		if n := s.count(t, "SELECT count(*) FROM outbox_dead_letters"); n != want {
			return fmt.Errorf("%d dead letters, want %d", n, want)
		}
		return nil
	})
}

// tab is a tab of the browser, in a profile of its own.
type tab struct {
	context.Context //nolint:containedctx // the tab's own, which chromedp identifies it by
	t               *testing.T
	site            *site

	last     string // text of the page
	mu       sync.Mutex
	messages []string // of the browser's console: exceptions, and what the policy blocked
}

// newTab opens a tab. It has five minutes for its test, because all tabs share a browser. What the browser's console says fails the test.
func newTab(t *testing.T, s *site) *tab {
	t.Helper()
	b := &tab{t: t, site: s}
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b.Context, cancel = context.WithTimeout(ctx, 5*time.Minute)
	t.Cleanup(cancel)
	b.do(chromedp.EmulateViewport(1280, 900))
	go func() {
		for message, err := range chromedp.Console(b) {
			if err != nil {
				return
			}
			if message.Type != "log" && message.Type != "info" && message.Type != "debug" {
				b.mu.Lock()
				b.messages = append(b.messages, message.Text)
				b.mu.Unlock()
			}
		}
	}()
	return b
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b, steps...); err != nil {
		b.t.Fatalf("%v; the page is\n%s", err, b.text())
	}
}

func (b *tab) text() string {
	text, err := evaluate[string](b, "document.body ? document.body.innerText : ''")
	if err != nil { // it is loading
		return ""
	}
	b.last = text
	return text
}

// see waits until the page, which may be another one by then, has each of these texts.
func (b *tab) see(texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		for !strings.Contains(b.text(), text) {
			b.waitFor(text)
		}
	}
}

// seeEither waits until the page has one of two texts.
func (b *tab) seeEither(one, other string) {
	b.t.Helper()
	for text := b.text(); !strings.Contains(text, one) && !strings.Contains(text, other); text = b.text() {
		b.waitFor(one + " or " + other)
	}
}

// seeAt loads a page until it has a text: what a page without a live stream shows can be between two states.
func (b *tab) seeAt(path, text string) {
	b.t.Helper()
	for b.goTo(path); !strings.Contains(b.text(), text); b.goTo(path) {
		b.waitFor(text)
	}
}

// waitFor waits a moment for a text that the page does not have yet.
func (b *tab) waitFor(text string) {
	b.t.Helper()
	select {
	case <-b.Done():
		b.t.Fatalf("%q was not seen; the page was\n%s", text, b.last)
	case <-time.After(20 * time.Millisecond):
	}
}

// goTo opens a page.
func (b *tab) goTo(path string) { b.t.Helper(); b.do(chromedp.Navigate(b.site.url + path)) }

// logIn logs in with the token.
func (b *tab) logIn() { b.t.Helper(); b.logInWith(token) }

func (b *tab) logInWith(token string) {
	b.t.Helper()
	b.goTo("/login")
	b.do(chromedp.SendKeys(chromedp.Search("[name=token]"), token+"\r"), chromedp.WaitVisible(chromedp.Search("#problems")))
}

// value evaluates an expression in the page.
func value[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := readAgain(func() (T, error) { return evaluate[T](b, expression) })
	testkit.NoError(b.t, err)
	return v
}

// evaluate is value, and returns the error of a page that changes meanwhile.
func evaluate[T any](b *tab, expression string) (T, error) {
	return chromedp.Run(b, chromedp.Evaluate[T](expression))
}

// readAgain reads something of the page, once more if the page was left meanwhile: a live page loads itself again when rows come or go.
func readAgain[T any](read func() (T, error)) (T, error) {
	v, err := read()
	if isLeft(err) {
		return read()
	}
	return v, err
}

// isLeft reports whether an error says that the page was left while it was read.
func isLeft(err error) bool {
	said, ok := errors.AsType[*cdproto.Error](err)
	return ok && said.Code == -32000 && strings.Contains(said.Message, "navigated or closed")
}

// has reports whether a selector finds an element in the page, which may be loading.
func (b *tab) has(selector string) bool {
	found, err := chromedp.Run(b, chromedp.Evaluate[bool](fmt.Sprintf("document.readyState != 'loading' && !!document.querySelector(%q)", selector)))
	return found && err == nil // otherwise the page changes
}

// click clicks the first element that a selector finds, once it is there: the page may be loading.
func (b *tab) click(selector string) {
	b.t.Helper()
	for !b.has(selector) {
		b.text()
		b.waitFor(selector)
	}
	if _, err := evaluate[bool](b, fmt.Sprintf("document.querySelector(%q).click() || true", selector)); !isLeft(err) { // otherwise it leads to another page
		testkit.NoError(b.t, err)
	}
}

// clickAt loads a page until it has an element that a selector finds, and clicks it: a batch has a form only while no relay has it.
func (b *tab) clickAt(path, selector string) {
	b.t.Helper()
	for b.goTo(path); !b.has(selector); b.goTo(path) {
		b.text()
		b.waitFor(selector)
	}
	b.click(selector)
}

// expectQuiet fails the test if the browser's console said anything.
func (b *tab) expectQuiet() { b.t.Helper(); b.expectQuietBut("\x00") }

// expectQuietBut is expectQuiet but for messages with a text.
func (b *tab) expectQuietBut(text string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, message := range b.messages {
		if !strings.Contains(message, text) {
			b.t.Errorf("the browser's console says %s", message)
		}
	}
}

//go:embed testdata/axe.min.js
var axe string

// expectAccessible fails the test for each rule of axe-core that the page breaks, in light and dark, and wide and narrow, and
// keeps a screenshot of each.
func (b *tab) expectAccessible(name string) {
	b.t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 400} {
			b.expectAccessibleAs(name, scheme, width)
		}
	}
}

// expectAccessibleAs is expectAccessible in one colour scheme and width.
func (b *tab) expectAccessibleAs(name, scheme string, width int64) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, 900))
	_, err := chromedp.Call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	testkit.NoError(b.t, err)
	found, err := readAgain(func() (string, error) {
		if value[bool](b, "typeof window.axe === 'undefined'") {
			value[bool](b, axe+"; true")
		}
		return chromedp.Run(b, chromedp.Evaluate[string](`axe.run().then(r => r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html.slice(0, 200)).join(" | ")).join("\n"))`, chromedp.EvalAwaitPromise))
	})
	testkit.NoError(b.t, err)
	if found != "" {
		b.t.Errorf("%s, %s, %d wide:\n%s", name, scheme, width, found)
	}
	if scroll := value[float64](b, "document.documentElement.scrollWidth - document.documentElement.clientWidth"); scroll > 0 {
		b.t.Errorf("%s, %s, %d wide: the page scrolls sideways by %v px", name, scheme, width, scroll)
	}
	png, err := chromedp.Run(b, chromedp.FullScreenshot(100))
	testkit.NoError(b.t, err)
	testkit.NoError(b.t, os.WriteFile(filepath.Join(b.t.ArtifactDir(), fmt.Sprintf("%s-%s-%d.png", name, scheme, width)), png, 0o600))
	b.do(chromedp.EmulateViewport(1280, 900))
}
