// Package relays has what each database needs to write down and read the reports of relays.
package relays

import (
	"strings"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Class is what a row of outbox_relays has as not_ready_class: the class, and the kind behind a slash if there is one.
func Class(r *buffer.RelayReport) string {
	if r.NotReadyKind == "" {
		return r.NotReadyClass
	}
	return r.NotReadyClass + "/" + r.NotReadyKind
}

// ReadClass reads what Class wrote.
func ReadClass(r *buffer.RelayReport, text string) {
	r.NotReadyClass, r.NotReadyKind, _ = strings.Cut(text, "/")
}
