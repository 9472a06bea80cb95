package console

import (
	"crypto/rand"
	"net/http"
	"net/url"
	"sync"
	"time"
)

const (
	// flashFor is how long a message waits for the page that it is for, maxFlashes how many wait.
	flashFor   = time.Minute
	maxFlashes = 1000
)

// flash is what the next page says of what a user did.
type flash struct {
	Text string
	// Nothing: nothing was changed.
	Nothing bool
	at      time.Time
}

// flashes are messages by a number that nobody can guess. A URL has the number, not the text, so that no link has the console say what it does not. Each is shown
// once. It is safe for concurrent use.
type flashes struct {
	mu  sync.Mutex
	all map[string]flash
}

// put keeps a message for the page that a redirect leads to, and returns the query that names it.
func (f *flashes) put(text string, nothing bool) (query string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for id, one := range f.all {
		if now.Sub(one.at) > flashFor {
			delete(f.all, id)
		}
	}
	if f.all == nil || len(f.all) >= maxFlashes {
		f.all = map[string]flash{}
	}
	id := rand.Text()
	f.all[id] = flash{Text: text, Nothing: nothing, at: now}
	return url.Values{"done": {id}}.Encode()
}

// take returns the message that a request names, once.
func (f *flashes) take(r *http.Request) flash {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := r.URL.Query().Get("done")
	one := f.all[id]
	delete(f.all, id)
	return one
}
