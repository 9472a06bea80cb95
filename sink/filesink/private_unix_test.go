//go:build unix

package filesink_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/outboxrelay/relay/internal/testkit"
)

// In a directory that others may write to, payloads stay private and go nowhere else.
func TestPrivate(t *testing.T) {
	t.Parallel()
	t.Run("IsPrivate", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "events.ndjson")
		send(t, open(t, path), batch(1, 3))
		info, err := os.Stat(path)
		testkit.NoError(t, err)
		testkit.Equal(t, "mode", info.Mode(), fs.FileMode(0o600))
	})
	t.Run("KeepsItsMode", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "events.ndjson")
		testkit.NoError(t, os.WriteFile(path, nil, 0o600))
		testkit.NoError(t, os.Chmod(path, 0o640))
		send(t, open(t, path), batch(1, 3))
		info, err := os.Stat(path)
		testkit.NoError(t, err)
		testkit.Equal(t, "mode", info.Mode(), fs.FileMode(0o640))
	})
	t.Run("OthersMayWrite", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "events.ndjson")
		testkit.NoError(t, os.WriteFile(path, nil, 0o600))
		s := open(t, path)
		for mode, want := range map[fs.FileMode]string{
			0o600: "[]", 0o644: "[]",
			0o664: "[" + path + " has mode 0664, so others than its owner may change what was delivered; run chmod go-w " + path + "]",
			0o602: "[" + path + " has mode 0602, so others than its owner may change what was delivered; run chmod go-w " + path + "]",
		} {
			testkit.NoError(t, os.Chmod(path, mode))
			testkit.Equal(t, "warnings", fmt.Sprint(s.Warnings(t.Context())), want)
		}
		send(t, s, batch(1, 3))
	})
	t.Run("HardLink", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		path, target := filepath.Join(dir, "events.ndjson"), filepath.Join(dir, "target")
		testkit.NoError(t, os.WriteFile(target, []byte("before\n"), 0o600))
		testkit.NoError(t, os.Link(target, path))
		s := open(t, path)
		for _, err := range []error{s.Check(t.Context()), s.Send(t.Context(), batch(1, 3))} {
			outage(t, err)
			testkit.ErrorContains(t, err, path+" is one of 2 hard links to a file; expected a file with one name")
		}
		text, err := os.ReadFile(target)
		testkit.NoError(t, err)
		testkit.Equal(t, "the file's other name", string(text), "before\n")
		testkit.NoError(t, os.Remove(path))
		send(t, s, batch(1, 3))
	})
	t.Run("SymbolicLink", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		path, target := filepath.Join(dir, "events.ndjson"), filepath.Join(dir, "target")
		testkit.NoError(t, os.WriteFile(target, []byte("before\n"), 0o600))
		testkit.NoError(t, os.Symlink(target, path))
		s := open(t, path)
		for _, err := range []error{s.Check(t.Context()), s.Send(t.Context(), batch(1, 3))} {
			outage(t, err)
			testkit.ErrorContains(t, err, path+" is a symbolic link; expected a file")
		}
		text, err := os.ReadFile(target)
		testkit.NoError(t, err)
		testkit.Equal(t, "the link's target", string(text), "before\n")
		testkit.NoError(t, os.Remove(path))
		send(t, s, batch(1, 3))
	})
	t.Run("SymbolicLinkToNothing", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		path, target := filepath.Join(dir, "events.ndjson"), filepath.Join(dir, "target")
		testkit.NoError(t, os.Symlink(target, path))
		outage(t, open(t, path).Send(t.Context(), batch(1, 3)))
		if _, err := os.Lstat(target); !os.IsNotExist(err) {
			t.Errorf("the link's target: %v; want that it does not exist", err)
		}
	})
	t.Run("BecomesASymbolicLink", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		path, moved := filepath.Join(dir, "events.ndjson"), filepath.Join(dir, "moved")
		s := open(t, path)
		send(t, s, batch(1, 3))
		before, err := os.ReadFile(path)
		testkit.NoError(t, err)
		testkit.NoError(t, os.Rename(path, moved))
		testkit.NoError(t, os.Symlink(moved, path)) // to the open file
		outage(t, s.Send(t.Context(), batch(4, 6)))
		after, err := os.ReadFile(moved)
		testkit.NoError(t, err)
		testkit.Equal(t, "the moved file", string(after), string(before))
	})
}
