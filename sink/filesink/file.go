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
			return errors.Join(err, o.checkEnd())
		}
		if err := o.close(); err != nil {
			return err
		}
	}
	err := o.rejectLink()
	isNew := errors.Is(err, fs.ErrNotExist)
	if err != nil && !isNew {
		return err
	}
	// With O_NONBLOCK a named pipe without a reader is an error; otherwise open would block. Payloads are for
	// nobody else, so the mode is not left to the umask.
	f, err := os.OpenFile(o.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK|noFollow, 0o600)
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
	case info.Mode().IsRegular() && names(info) > 1:
		return fmt.Errorf("%s is one of %d hard links to a file; expected a file with one name. "+
			"Move it away, and the relay makes a new one, or set url to another file", o.path, names(info))
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

// rejectLink returns an error if the path is a symbolic link. A user who may write to the directory could have the
// relay append to any file that it may write to.
func (o *file) rejectLink() error {
	info, err := os.Lstat(o.path)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		err = fmt.Errorf("%s is a symbolic link; expected a file. Links are not followed; set url to the file itself", o.path)
	}
	return err
}

// warning says what is wrong with the file's mode, or "".
func (o *file) warning() string {
	info, err := os.Lstat(o.path)
	if err != nil || !info.Mode().IsRegular() || !othersMayWrite(info) { // Check says what is wrong with the path
		return ""
	}
	return fmt.Sprintf("%s has mode %04o, so others than its owner may change what was delivered; run chmod go-w %[1]s", o.path, info.Mode().Perm())
}

// sameFile reports whether the path still names the open file.
func (o *file) sameFile() (bool, error) {
	atPath, err := os.Lstat(o.path)
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

// checkEnd looks whether the file ends within a line, if another process has appended to it: that one may have been killed.
// If it is writing at this moment, the file gets an empty line.
func (o *file) checkEnd() error {
	if !o.regular {
		return nil
	}
	end, err := o.f.Seek(0, io.SeekCurrent) // where the last append ended
	if err != nil {
		return err
	}
	info, err := o.f.Stat()
	if err != nil || info.Size() == end {
		return err
	}
	o.lines.partial = false
	if info.Size() > 0 {
		o.lines.partial, err = endsWithinLine(o.path, info.Size())
	}
	return err
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
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|noFollow, 0)
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
