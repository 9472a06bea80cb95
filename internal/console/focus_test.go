package console_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/outboxrelay/relay/internal/testkit"
)

// TestLive_Focus: what has the keyboard's focus keeps it while the figures change, so that a link below the headline can be reached and followed.
func TestLive_Focus(t *testing.T) {
	t.Parallel()
	s := open(t, `
  - {name: bills, source: {url: "sqlite://%s/orders.db", table: bills}, sink: {url: "file://%s/bills.ndjson"}}
`)
	b := newTab(t, s)
	b.logIn()
	s.api.away.Store(true)
	s.insert(t, "good", "1")
	b.see("Live", "orders: sink unavailable")
	for _, place := range []string{"#problems", "#row-orders", "#relays"} {
		value[bool](b, fmt.Sprintf(`window.changes = 0; new MutationObserver(() => changes++).observe(document.querySelector(%q), { subtree: true, childList: true, characterData: true, attributes: true }); true`, place))
		selector := map[string]string{"#problems": "#problems dd a", "#row-orders": "#row-orders th a", "#relays": "#relays"}[place]
		b.do(chromedp.Focus(chromedp.Search(selector)))
		testkit.Eventually(t, func() error {
			s.insert(t, "good", "1")
			if !value[bool](b, fmt.Sprintf("document.activeElement === document.querySelector(%q)", selector)) {
				t.Fatalf("the focus is at %s", value[string](b, "document.activeElement.outerHTML.slice(0, 200)"))
			}
			if n := value[float64](b, "changes"); n < 5 {
				return fmt.Errorf("%s has changed %v times", place, n)
			}
			return nil
		})
	}
	// A card that comes above the one with the focus, and the end of that one.
	value[bool](b, `update(document.querySelector("#problems"), '<h1>two</h1><div id="problem-0"><a href="doctor">b</a></div><div id="problem-1"><a href="dead">a</a><p class="fix"><code>one</code> <button data-copy hidden>Copy</button></p></div>') || true`)
	b.do(chromedp.Focus(chromedp.Search("#problem-1 a")))
	const shifted = `update(document.querySelector("#problems"), '<h1>three</h1><div id="problem-0"><a href="new">c</a></div><div id="problem-1"><a href="doctor">b</a></div><div id="problem-2"><a href="dead">a</a><p class="fix"><code>one</code> <button data-copy hidden>Copy</button></p></div>') || true`
	value[bool](b, shifted)
	testkit.Equal(t, "focus after a card above", value[string](b, "document.activeElement.getAttribute('href')"), "dead")
	b.do(chromedp.Focus(chromedp.Search("#problem-2 button")))
	value[bool](b, `update(document.querySelector("#problems"), '<h1>one</h1><div id="problem-0"><a href="dead">a</a><p class="fix"><code>one</code> <button data-copy hidden>Copy</button></p></div>') || true`)
	testkit.Equal(t, "focus after the cards above have gone", value[string](b, "document.activeElement.closest('#problem-0') && document.activeElement.textContent"), "Copy")
	value[bool](b, `update(document.querySelector("#problems"), '<h1>none</h1>') || true`)
	testkit.Equal(t, "focus after it has gone", value[string](b, "document.activeElement.id"), "problems")

	b.goTo("/")
	b.see("Live", "orders: sink unavailable")
	b.do(chromedp.Focus(chromedp.Search("#problems dd a")))
	before := value[string](b, "document.querySelector('.live').textContent + document.querySelector('#relays').innerText")
	testkit.Eventually(t, func() error {
		if value[string](b, "document.querySelector('.live').textContent + document.querySelector('#relays').innerText") == before {
			return fmt.Errorf("nothing has changed since %s", before)
		}
		return nil
	})
	b.do(chromedp.KeyEvent("\r"))
	b.see("What waits")
	b.expectQuiet()
}

// TestReadAgain: what is read of a page that loads itself again meanwhile is read once more.
func TestReadAgain(t *testing.T) {
	t.Parallel()
	s := open(t, "")
	b := newTab(t, s)
	b.goTo("/login")
	left := false
	path, err := readAgain(func() (string, error) {
		if !left {
			left = true
			return chromedp.Run(b, chromedp.Evaluate[string]("location.reload(); new Promise(() => {})", chromedp.EvalAwaitPromise))
		}
		return evaluate[string](b, "location.pathname")
	})
	testkit.NoError(t, err)
	testkit.Equal(t, "path", path, "/login")
}
