package doctor

import "context"

// owner adds whether another pipeline owns the buffer, and dead letters under names that no pipeline has.
func (d *diagnosis) owner(ctx context.Context) {
	const about = "owner"
	if d.state == nil {
		return
	}
	if err := d.Owner(); err != nil {
		d.problem(about, err.Text(), err.Fix())
	} else {
		d.ok(about, "no other pipeline owns the buffer")
	}
	found, err := d.Orphaned(ctx)
	if !d.failed("dead letters", err) {
		d.findings = append(d.findings, found...)
	}
}
