package filesink

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
)

// file is an output at a path.
type file struct {
	path    string
	f       *os.File // nil: not open
	regular bool     // f is neither a device nor a named pipe
	lines   stream   // writes to f
}

// open opens the file, and again if the path now names another file.
func (o *file) open() error {
	if o.f != nil {
		if same, err := o.sameFile(); same || err != nil {
			return err
		}
		if err := o.close(); err != nil {
			return err
		}
	}
	_, err := os.Stat(o.path)
	isNew := errors.Is(err, fs.ErrNotExist)
	// With O_NONBLOCK a named pipe without a reader is an error; otherwise open would block.
	f, err := os.OpenFile(o.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	if err := o.use(f, isNew); err != nil {
		return errors.Join(err, f.Close())
	}
	return nil
}

// use makes f the open file.
func (o *file) use(f *os.File, isNew bool) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	lines := stream{w: f}
	switch {
	case isNew:
		err = syncDir(filepath.Dir(o.path))
	case info.Mode().IsRegular() && info.Size() > 0:
		lines.partial, err = endsWithinLine(o.path, info.Size())
	}
	if err != nil {
		return err
	}
	o.f, o.regular, o.lines = f, info.Mode().IsRegular(), lines
	return nil
}

// sameFile reports whether the path still names the open file.
func (o *file) sameFile() (bool, error) {
	atPath, err := os.Stat(o.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	opened, err := o.f.Stat()
	if err != nil {
		return false, err
	}
	return os.SameFile(atPath, opened), nil
}

// syncDir makes the name of a new file durable.
func syncDir(path string) error {
	if runtime.GOOS == "windows" {
		return nil // Windows cannot sync a directory
	}
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// endsWithinLine reports whether the last line is partial, as after a killed process.
func endsWithinLine(path string, size int64) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	var last [1]byte
	_, err = f.ReadAt(last[:], size-1)
	return last[0] != '\n', errors.Join(err, f.Close())
}

func (o *file) write(lines []byte) error {
	if err := o.open(); err != nil {
		return err
	}
	partial := o.lines.partial
	n, err := o.lines.append(lines)
	if err == nil || !o.regular {
		return err
	}
	if truncateErr := o.truncate(int64(n)); truncateErr != nil {
		// The next open checks how the file ends.
		return errors.Join(err, truncateErr, o.close())
	}
	o.lines.partial = partial
	return err
}

// truncate removes the last n bytes, unless another process has appended to the file.
func (o *file) truncate(n int64) error {
	if n == 0 {
		return nil
	}
	end, err := o.f.Seek(0, io.SeekCurrent) // where the last append ended
	if err != nil {
		return err
	}
	info, err := o.f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != end {
		return fmt.Errorf("%s: part of a batch remains, because another process has appended to the file", o.path)
	}
	return o.f.Truncate(end - n)
}

func (o *file) close() error {
	if o.f == nil {
		return nil
	}
	err := o.f.Close()
	o.f = nil
	return err
}
