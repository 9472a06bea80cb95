package delivery

import (
	"context"
	"errors"
	"fmt"
	"github.com/outboxrelay/relay/sink"
	"maps"

	"github.com/outboxrelay/relay/outbox"
	"github.com/outboxrelay/relay/outbox/buffer"
)

// answer is a Send's error and what it says about addresses.
type answer struct {
	err error
	// address that an outage of the whole batch is about; "" is the sink.
	address string
	// struck: an outage that was taken for a refusal of the batch.
	struck bool
	// sinkIsBack, or the addresses that are, after an outage.
	sinkIsBack bool
	back       []string
}

// hear tells circuits and strikes what a Send's error says of the sink and its
// addresses.
func (w *Worker) hear(ctx context.Context, b *buffer.Lease, err error) answer {
	a := answer{err: err}
	divide, isDivide := errors.AsType[*sink.SplitError](err)
	if isDivide && divide.Valid(len(b.Events)) {
		return a // nothing was sent
	}
	some, isBatch := errors.AsType[*sink.BatchError](err)
	address, one := w.only(b)
	switch {
	case isBatch && some.Valid(len(b.Events)):
		if one && suspect(err) && errors.Is(err, sink.ErrUnavailable) && w.strikes.hit(b.GroupID, address) {
			return w.struckOut(err)
		}
		w.hearEach(b, some, &a)
		return a
	case err == nil || !isBatch && !isDivide && !errors.Is(err, sink.ErrUnavailable): // also a refusal says that the sink is there
		waited := b.Outages > 0 && err == nil
		a.sinkIsBack = w.circuits.took("", waited)
		w.eachAddress(b, waited, func(address string) {
			if w.circuits.took(address, waited) {
				a.back = append(a.back, address)
			}
		})
		w.strikes.over(b.GroupID)
		if err == nil {
			w.eachSuspect(b, nil)
		}
		return a
	}
	if suspect(err) {
		a.address = w.awayAt(ctx, b)
		if w.strikes.hit(b.GroupID, a.address) {
			return w.struckOut(err)
		}
	}
	w.circuits.failed(a.address, b.Outages > 0, err)
	return a
}

// struckOut makes a refusal of an outage.
func (w *Worker) struckOut(err error) answer {
	return answer{err: fmt.Errorf("%w: %d times, while others were accepted", withoutKind{err}, maxStrikes), struck: true}
}

// awayAt returns the address that a 5xx or a time-out is about: the batch's only
// one, if the sink as such is there.
func (w *Worker) awayAt(ctx context.Context, b *buffer.Lease) string {
	address, one := w.only(b)
	if !one {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if w.sink.Check(ctx) != nil {
		return ""
	}
	return address
}

// eachSuspect lets suspects know that the sink took others: all events of the batch
// but those that failed.
func (w *Worker) eachSuspect(b *buffer.Lease, failed map[int]error) {
	if !w.strikes.any.Load() || len(failed) == len(b.Events) {
		return
	}
	w.strikes.took("")
	seen := map[string]struct{}{}
	for i := range b.Events {
		if _, ok := failed[i]; ok {
			continue
		}
		address := w.addressOf(&b.Events[i])
		if _, ok := seen[address]; !ok && address != "" {
			seen[address] = struct{}{}
			w.strikes.took(address)
		}
	}
}

// withoutKind keeps an error's text and drops what errors.Is finds in it.
type withoutKind struct{ err error }

func (w withoutKind) Error() string { return w.err.Error() }

// hearEach takes the answer of a sink that told the events apart. An address is away
// when none of its events got another answer.
func (w *Worker) hearEach(b *buffer.Lease, some *sink.BatchError, a *answer) {
	waited := b.Outages > 0
	failed := make(map[int]error, len(some.Events))
	behind := map[int]struct{}{} // not sent, so they say nothing of their addresses
	for _, e := range some.Events {
		switch {
		case isBehind(e.Err):
			behind[e.Index] = struct{}{}
		case errors.Is(e.Err, sink.ErrUnavailable):
			failed[e.Index] = e.Err
		}
	}
	if w.addresser != nil && (len(failed) > 0 || waited || w.circuits.aways.Load() > 0) {
		away := map[string]error{} // nil: it is there
		for i := range b.Events {
			if _, unsent := behind[i]; unsent {
				continue
			}
			address := w.addressOf(&b.Events[i])
			switch why, known := away[address]; {
			case failed[i] == nil || !known:
				away[address] = failed[i]
			case why != nil:
				away[address] = longest(why, failed[i])
			}
		}
		for address, why := range away {
			switch {
			case address == "":
			case why != nil:
				w.circuits.failed(address, waited, why)
			case w.circuits.took(address, waited):
				a.back = append(a.back, address)
			}
		}
	}
	refused := maps.Clone(failed)
	for _, e := range some.Events {
		refused[e.Index] = e.Err
	}
	w.eachSuspect(b, refused)
	if len(refused) < len(b.Events) || len(failed) == 0 {
		w.strikes.over(b.GroupID) // what is left of it goes by other group_ids
	}
	// Addresses that are away are an answer too, but nothing that waits for the
	// sink goes out because of it.
	a.sinkIsBack = w.circuits.took("", waited && len(failed)+len(behind) < len(b.Events))
}

// addressOf returns the event's address, "" where there is only one or none.
func (w *Worker) addressOf(e *outbox.Event) string {
	if w.addresser == nil {
		return ""
	}
	address, _ := w.addresser.AddressOf(e)
	return address
}

// only returns the batch's only address; one is false when it has several, and ""
// stands for the sink's only one.
func (w *Worker) only(b *buffer.Lease) (address string, one bool) {
	if w.addresser == nil || wrong(b) != nil { // of what is not projected nobody knows where it goes
		return "", false
	}
	address = w.addressOf(&b.Events[0])
	for i := range b.Events[1:] {
		if w.addressOf(&b.Events[1+i]) != address {
			return "", false
		}
	}
	return address, address != ""
}

// eachAddress calls with every address of the batch, each once; with none where
// nobody wants to know: all is well with every address, and always is not set.
func (w *Worker) eachAddress(b *buffer.Lease, always bool, call func(address string)) {
	if w.addresser == nil || !always && w.circuits.aways.Load() == 0 {
		return
	}
	seen := map[string]struct{}{}
	for i := range b.Events {
		address := w.addressOf(&b.Events[i])
		if _, ok := seen[address]; !ok && address != "" {
			seen[address] = struct{}{}
			call(address)
		}
	}
}
