package config

import (
	"bytes"
	"crypto/sha256"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/outboxrelay/relay/outbox/buffer"
)

// expandedFile is the file of a ${file:/path}, as it was read.
type expandedFile struct {
	path string
	sum  [sha256.Size]byte
}

func newExpandedFile(path string, text []byte) expandedFile {
	return expandedFile{path, sha256.Sum256(bytes.TrimSpace(text))}
}

// changed reports whether the file has another content now. One that cannot be read may just be replaced, and a pipe is not read again.
func (f expandedFile) changed() bool {
	info, err := os.Stat(f.path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	text, err := readFile(f.path)
	return err == nil && newExpandedFile(f.path, text) != f
}

// outdated says which of the files that a section was expanded from have another content now; "" for none. It is a function, because
// printing by reflection does not show what it holds, and may be nil.
type outdated func() string

// fileHolder is a section that has to know when its files change.
type fileHolder interface{ setOutdated(outdated) }

func (s *Source) setOutdated(o outdated) { s.outdated = o }
func (s *Sink) setOutdated(o outdated)   { s.outdated = o }

func newOutdated(files []expandedFile, started time.Time) outdated {
	if len(files) == 0 {
		return nil
	}
	return func() string {
		var paths []string
		for _, f := range files {
			if f.changed() {
				paths = append(paths, f.path)
			}
		}
		if paths == nil {
			return ""
		}
		slices.Sort(paths)
		return strings.Join(slices.Compact(paths), " and ") + " changed since the relay started at " + started.UTC().Format(time.RFC3339) + "; restart the relay to use the new content"
	}
}

// outdatedFor returns what a pipeline asks while it is not ready because of the database or the sink; see [pipeline.Config].
func (p *Pipeline) outdatedFor(s *Sink) func(class string) string {
	source, sink := p.Source.outdated, s.outdated
	return func(class string) string {
		of := source
		switch class {
		case buffer.NotReadyDatabase:
		case buffer.NotReadySink, buffer.NotReadyRefusing:
			of = sink
		default:
			return ""
		}
		if of == nil {
			return ""
		}
		return of()
	}
}
