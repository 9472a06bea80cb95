package scaffold

import "github.com/outboxrelay/relay/outbox/buffer"

// Marks returns the columns of a custom table that look like the marks of a loop. The relay claims rows whatever is in them.
func (s *Source) Marks() (names []string) {
	if s.Table == nil || !s.IsCustom() {
		return nil
	}
	for i := range s.Table.Columns {
		if name := s.Table.Columns[i].Name; buffer.LooksMark(name) {
			names = append(names, name)
		}
	}
	return names
}
