package console

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxrelay/relay/internal/access"
	"github.com/outboxrelay/relay/internal/diagnosis"
	"github.com/outboxrelay/relay/internal/testkit"
)

// TestDoctor_Cost: whatever users ask for, the databases are checked every ten seconds at most, and by nobody at all while nobody looks.
func TestDoctor_Cost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		s := New(Config{Guard: access.New(), Diagnose: func(context.Context, func(string) string) diagnosis.Report {
			runs++
			return diagnosis.Report{}
		}})
		look := func(query string, want int) string {
			t.Helper()
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/doctor"+query, nil))
			testkit.Equal(t, "status", w.Code, http.StatusOK)
			testkit.Equal(t, "diagnoses", runs, want)
			return w.Body.String()
		}
		look("", 1)
		look("", 1)
		if page := look("?again=1", 1); !strings.Contains(page, "another one can be made") {
			t.Errorf("the page does not say that the diagnosis is not new: %s", page)
		}
		time.Sleep(doctorPause + time.Second) //nolint:forbidigo // in a synctest bubble
		look("", 1)
		look("?again=1", 2)
		time.Sleep(doctorKept + time.Second) //nolint:forbidigo // in a synctest bubble
		look("", 3)
	})
}
