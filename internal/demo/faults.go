package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// errInterrupted ends the script.
var errInterrupted = errors.New("interrupted")

// wait waits unless ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return errInterrupted
	case <-timer.C:
		return nil
	}
}

// until waits for a condition that arrivals make true.
func (d *Demo) until(ctx context.Context, condition func() bool) error {
	err := d.audit.waitUntil(ctx, condition)
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return errInterrupted
	case !condition():
		return fmt.Errorf("no event arrived for %v", Timeout)
	}
	return nil
}

// caughtUp waits until what is in flight now has been delivered, and returns how much that was.
func (d *Demo) caughtUp(ctx context.Context) (events int, err error) {
	n, _, _ := d.audit.snapshot()
	return n.inFlight, d.until(ctx, d.audit.settled())
}

// showEvent shows a row and the message that it becomes.
func (d *Demo) showEvent(ctx context.Context) error {
	r, err := d.shop.placeOne(ctx, usual)
	if err != nil {
		return err
	}
	if err := d.screen.event(bold, "One transaction inserted order 1 and, into outbox_events, this row:"); err != nil {
		return err
	}
	if err := d.screen.quote(fmt.Sprintf("id       %d\ntopic    %s\nkey      %s\npayload  %s", r.id, r.topic, r.key, r.payload)); err != nil {
		return err
	}
	pid, err := d.relays.start()
	if err != nil {
		return err
	}
	select {
	case m := <-d.first:
		if err := d.screen.event(bold, fmt.Sprintf("The relay has started (process %d). The stream has this message:", pid)); err != nil {
			return err
		}
		return d.screen.quote(fmt.Sprintf("subject      %s\nNats-Msg-Id  %s\nRelay-Key    %s\ndata         %s",
			m.Subject(), m.Headers().Get(nats.MsgIdHdr), m.Headers().Get("Relay-Key"), m.Data()))
	case <-d.audit.failed:
		return d.audit.failure()
	case <-ctx.Done():
		return nil
	case <-time.After(Timeout):
		return errors.New("the first event did not arrive")
	}
}

// faults plays the faults until ctx ends.
func (d *Demo) faults(ctx context.Context) error {
	for _, act := range []func(context.Context) error{d.killRelay, d.stopBroker, d.poison, d.interimCount} {
		err := wait(ctx, 3*time.Second)
		if err == nil {
			err = act(ctx)
		}
		if errors.Is(err, errInterrupted) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// killRelay kills the relay, while it has claimed events if possible.
func (d *Demo) killRelay(ctx context.Context) error {
	for range 100 {
		_, events, err := d.shop.claimed(ctx)
		if ctx.Err() != nil {
			return errInterrupted
		}
		if err != nil {
			return err
		}
		if events > 0 {
			break
		}
		if err := wait(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	if err := d.relays.kill(); err != nil {
		return err
	}
	_, events, err := d.shop.claimed(context.WithoutCancel(ctx))
	if err != nil {
		return err
	}
	if err := d.screen.event(red, fmt.Sprintf("FAULT 1  The relay is killed (SIGKILL). Claimed events: %d. Orders go on.", events)); err != nil {
		return err
	}
	if err := wait(ctx, 2*time.Second); err != nil {
		return err
	}
	pid, err := d.relays.start()
	if err != nil {
		return err
	}
	if err := d.screen.event(yellow, fmt.Sprintf("A new relay starts (process %d). It takes over claims after %v.", pid, lease)); err != nil {
		return err
	}
	n, err := d.caughtUp(ctx)
	if err != nil {
		return err
	}
	return d.screen.event(green, fmt.Sprintf("Caught up: the %d events that waited are delivered.", n))
}

// stopBroker is an outage of the broker.
func (d *Demo) stopBroker(ctx context.Context) error {
	if err := d.broker.stop(); err != nil {
		return err
	}
	if err := d.screen.event(red, "FAULT 2  The broker is stopped for 4 seconds. Orders go on."); err != nil {
		return err
	}
	if err := wait(ctx, 4*time.Second); err != nil {
		return err
	}
	if err := d.broker.start(ctx); err != nil {
		if ctx.Err() != nil {
			return errors.Join(errInterrupted, d.broker.stop())
		}
		return err
	}
	if err := d.screen.event(yellow, "The broker is back. An outage is not an attempt: no event is dead."); err != nil {
		return err
	}
	n, err := d.caughtUp(ctx)
	if err != nil {
		return err
	}
	return d.screen.event(green, fmt.Sprintf("Caught up: the %d events that waited are delivered.", n))
}

// poison commits an event that the broker rejects, and shows its dead letter.
func (d *Demo) poison(ctx context.Context) error {
	r, err := d.shop.placeOne(ctx, poisoned)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("FAULT 3  Event %d has %d bytes. The stream takes at most %d.", r.id, len(r.payload), maxMessage)
	if err := d.screen.event(red, text); err != nil {
		return err
	}
	if err := d.until(ctx, func() bool { n, _, _ := d.audit.snapshot(); return n.dead > 0 }); err != nil {
		return err
	}
	show := []string{"dead", "show", "--id", fmt.Sprint(r.id), "-c"}
	cmd, err := command(ctx, append(show, d.relays.config)...)
	if err != nil {
		return err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	shown, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return errInterrupted
	case err != nil:
		return fmt.Errorf("relay dead show: %w: %s", err, stderr.String())
	}
	if err := d.screen.event(green, fmt.Sprintf("It is a dead letter; the others went on. relay dead show --id %d prints:", r.id)); err != nil {
		return err
	}
	return d.screen.quote(string(shown))
}

// interimCount counts while the shop pauses, if it has no end.
func (d *Demo) interimCount(ctx context.Context) error {
	if d.config.Events > 0 {
		return nil
	}
	resume := d.shop.pause()
	defer resume()
	if _, err := d.caughtUp(ctx); err != nil {
		return err
	}
	result, err := d.count(ctx)
	if ctx.Err() != nil {
		return errInterrupted
	}
	if err != nil {
		return err
	}
	verdict := green
	if result.Check() != nil {
		verdict = red
	}
	if err := d.screen.event(verdict, "The shop pauses for the count:"); err != nil {
		return err
	}
	if err := d.screen.quote(result.String()); err != nil {
		return err
	}
	return d.screen.event(bold, "That was all. Orders go on until you press Ctrl-C.")
}
