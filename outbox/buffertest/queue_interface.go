package buffertest

import (
	"context"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// Queue is a pipeline's dead letters as the buffer of its dead-letter hook, which is
// a pipeline of its own: from outbox_dead_letters to any sink. It makes each
// dead letter heard at least once, by the same claims, leases, retries and fences as
// those of a [Buffer], in the same ledger, whose rows name another buffer.
//
// A claim stamps a new group_id (hook_group_id) on up to limit dead letters that
// are open, unnotified and unclaimed, with different event ids, in the order of
// these; the batch's events have Event.DeadLetter filled. Settle sets notified_at of
// what is DeliveredEvents and does away with the ledger row; what is Retry waits, a part
// of it under a group_id of its own, as in a Buffer. ListDead is an error: a dead letter
// does not die again. A dead letter that was closed meanwhile is told all the same.
// MarkDelivered, DeferredAddresses, RetryNow, Renew and TakeOver are as those of a Buffer. CountBacklog counts
// unnotified dead letters as Unclaimed and, at the start and every few minutes, frees
// those whose ledger row is gone. Status counts them as Pending.
type Queue interface {
	Check(ctx context.Context) error
	CountBacklog(ctx context.Context, limit int) (buffer.Backlog, error)
	Claim(ctx context.Context, limit int, lease time.Duration) (*buffer.Lease, error)
	TakeOver(ctx context.Context, lease time.Duration) (*buffer.Lease, error)
	Renew(ctx context.Context, b *buffer.Lease, lease time.Duration) error
	Settle(ctx context.Context, b *buffer.Lease, outcomes []buffer.Outcome) error
	MarkDelivered(ctx context.Context, b *buffer.Lease, delivered []int64) error
	DeferredAddresses(ctx context.Context) ([]string, error)
	RetryNow(ctx context.Context, address string, limit int) (int, error)
	Status(ctx context.Context) (buffer.Status, error)
}
