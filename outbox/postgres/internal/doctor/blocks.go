package doctor

import "context"

const cacheSQL = `
SELECT seqcache::text, seqincrement::text FROM pg_sequence WHERE seqrelid = $1::regclass`

// sequence adds whether sessions draw the ids of the relay's own table in blocks.
func (d *diagnosis) sequence(ctx context.Context, sequence string) {
	if sequence == "" {
		return
	}
	d.query(ctx, "sequence", cacheSQL, func(v []string) { d.blocks(sequence, v[0], v[1]) }, sequence)
}

// blocks adds what to expect if sessions draw ids in blocks: their events appear behind the cursor, long after others.
func (d *diagnosis) blocks(sequence, cache, increment string) {
	const (
		about = "sequence"
		wait  = "; a scan of all keys finds them every 2 s, less often (up to 5 min) while dead rows make it slow, and order: key cannot be kept"
	)
	if cache != "1" {
		d.warn(about, "sequence "+sequence+" has CACHE "+cache+": each session keeps a block of ids, and its events appear behind later ones"+wait,
			"ALTER SEQUENCE "+sequence+" CACHE 1")
	}
	if increment != "1" {
		d.warn(about, "sequence "+sequence+" has INCREMENT "+increment+": if the application divides it into blocks of ids (an ORM), its events appear behind later ones"+wait,
			"set the ORM's allocation size to 1, and ALTER SEQUENCE "+sequence+" INCREMENT BY 1")
	}
	if cache == "1" && increment == "1" {
		d.ok(about, "sequence "+sequence+" hands out ids one by one")
	}
}
