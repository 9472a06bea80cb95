package console_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/chromedp/chromedp"
)

// browser is shared by all tests. Each has a profile of its own in it: see newTab.
var browser context.Context

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	options := chromedp.DefaultExecAllocatorOptions[:]
	if os.Geteuid() == 0 { // Chromium's sandbox does not work as root
		options = append(options, chromedp.NoSandbox)
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	defer cancel()
	browser, cancel = chromedp.NewContext(allocator)
	defer cancel()
	if err := chromedp.Do(browser); err != nil {
		fmt.Fprintln(os.Stderr, "Chromium does not start; run `make servers`, which installs what the tests need:", err)
		return 1
	}
	return m.Run()
}
