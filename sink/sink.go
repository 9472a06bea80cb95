// Package sink is where batches go: the [Sink] that drivers implement, what a sink may implement
// besides ([Addresser], [Fencer], [Previewer], [Warner] and others), the kinds of its errors, addresses and envelopes, and
// [Register], by which a sink of one's own joins relay.yaml. A driver only sends and classifies; package delivery
// retries, halves and buries, for all of them.
//
// # What a sink owes
//
// [Sink] says all of it. Package sinktest checks it against a real server, one case for each clause; a sink that passes
// loses no event, also when its server is restarted while batches are sent.
package sink

import (
	"context"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Sink is a destination. Implementations are safe for concurrent use by several Sends, Checks and the optional
// methods; they do not retry, and put no secret into an error.
//
// # Events
//
// A batch has from one event to the pipeline's batch_size, with up to as many topics. A sink delivers every event with
// all that its format carries, unchanged:
//
//   - Topic: any text that a database stores, also beyond ASCII ("größe"). A server that cannot take such a name rejects those
//     events, and delivers the others of the batch.
//   - Key: as Topic, but also "" (which differs from nil, NULL), blanks, line breaks and control characters, and text that looks
//     like a placeholder, an escape or a path ("{topic}", "a/b?c", "%20").
//   - Payload: byte for byte. If Batch.PayloadIsJSON is true, it is JSON of any kind and size, possibly with numbers that no float
//     holds, repeated keys, escapes and line breaks between tokens. Otherwise it may be any bytes, also none: a format of JSON sends
//     them in base64, as AppendEnvelope does.
//   - Headers: nil or the text of a JSON object of strings.
//   - the dead letter of the event (Batch.DeadLetter), if the sink is a dead-letter hook: see AppendDeadLetter.
//
// Events of one batch arrive in the order of the batch at each address, and those of consecutive Sends in the order of the
// Sends. Concurrent Sends have no order among each other.
//
// # Addresses
//
// A sink that writes to several streams, subjects, tables or URLs, of which one may fail while the others work, must be an
// [Addresser], and report an outage of one address for the events of this address only.
//
// # Batches that are sent again
//
// The relay sends a batch again, under the same GroupID, when it does not know what became of it, and parts of it under new
// GroupIDs with the old ones in Origins. A sink that drops duplicates does so for both, and only of the very same event:
// AppendDedupeID makes the name of an event for that. A sink need not drop any.
type Sink interface {
	// Send delivers the batch before ctx's deadline, which is 30 s away as a rule. It does not change the batch, and keeps no
	// reference to it or its events after it has returned. Its result is
	//   - nil: every event is durably accepted, by whatever durability the destination has;
	//   - a *BatchError: the events that it names are not accepted, the others are. The error of an event wraps ErrUnavailable if
	//     its address is unavailable, ErrPermanent if it is rejected for good, or neither;
	//   - a *SplitError: nothing was sent, because the batch cannot have one group_id;
	//   - an error that wraps ErrUnavailable: an outage, or it is unknown whether events were accepted. It says nothing about
	//     the events, which wait (UnavailableError can say how long). An outage of all events is this, never a *BatchError that names
	//     all of them, also if the batch has one event or one address. It never wraps ErrPermanent as well;
	//   - ErrFenced: a later owner has given up this group_id (see Fencer);
	//   - any other error: the whole batch was rejected, for good if it wraps ErrPermanent. The relay halves the batch to find
	//     the event that is rejected.
	//
	// When in doubt, an error is an outage: an event that waits is safe, a rejected one becomes a dead letter.
	//
	// Send returns within a second or so after ctx has ended, and at once if ctx is done before it begins. Its error then wraps
	// ErrUnavailable or ctx.Err(), and the same batch can be sent again later. A Send that does not return within 10 s of its deadline is given up, and
	// its result is dropped.
	//
	// If the destination cannot be reached (nothing listens, the host or folder does not exist, the login fails), Send returns an outage
	// in a few seconds, and in 15 s at most, although ctx lasts longer: limit the time to connect. It does not wait for the destination to
	// come back. A later Send connects anew by itself: once the destination is back, a Sink works again within seconds, without being reopened.
	Send(ctx context.Context, b *buffer.Batch) error

	// Check returns nil if the sink can be reached and would accept events: login, address and privilege are good, as far as
	// that can be known. It sends no event and leaves nothing behind. Its error wraps ErrUnavailable if waiting may help, as it
	// does for a destination that is not there. It keeps to ctx and to the 15 s as Send does. The relay calls it before the first Send,
	// and every few seconds while there is an outage.
	Check(ctx context.Context) error

	// Close closes connections, and waits for all goroutines that the sink has started. It is called once, and not during a
	// Send, unless that Send does not return long after its context has ended.
	Close() error
}
