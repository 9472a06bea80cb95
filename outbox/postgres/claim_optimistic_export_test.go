package postgres

// Choose says which of n batches of its window an optimistic claim takes.
func Choose(b *Buffer, among func(n int) int) { b.choose = among }

// ChooseFirst makes optimistic claims take the first.
func ChooseFirst(b *Buffer) { Choose(b, func(int) int { return 0 }) }
