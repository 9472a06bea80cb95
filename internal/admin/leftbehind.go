package admin

import "context"

// Leaver finds events that a pipeline left behind, in tables that its configuration does not name any more; see postgres.Buffer.
type Leaver interface {
	LeftBehind(ctx context.Context) (events int64, err error)
}

// leftBehind counts what each pipeline left behind, concurrently; nil where nobody knows.
func (all snapshots) leftBehind(ctx context.Context) []func() (int64, error) {
	return readSlow(ctx, all, func(s *snapshot) (*slow[int64], func(context.Context) (int64, error)) {
		leaver, ok := s.pipeline.Inspector.(Leaver)
		if !ok {
			return nil, nil
		}
		return &s.left, leaver.LeftBehind
	})
}

func (c collecting) left(events int64, err error) {
	c.unknown = err != nil
	c.known(leftBehindDesc, float64(events))
}
