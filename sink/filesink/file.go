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

// file is an output that is opened by its path.
type file struct {
	path    string
	f       *os.File // nil: not open
	regular bool     // f is neither a device nor a named pipe
	lines   stream   // into f
}

// open opens the file, anew when the path leads to another one by now.
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
	// O_NONBLOCK: a named pipe without a reader is an error, not a long wait.
	f, err := os.OpenFile(o.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	if err := o.take(f, isNew); err != nil {
		return errors.Join(err, f.Close())
	}
	return nil
}

// take makes f the open file.
func (o *file) take(f *os.File, isNew bool) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	lines := stream{w: f}
	switch {
	case isNew:
		err = syncFolder(filepath.Dir(o.path))
	case info.Mode().IsRegular() && info.Size() > 0:
		lines.torn, err = endsWithinLine(o.path, info.Size())
	}
	if err != nil {
		return err
	}
	o.f, o.regular, o.lines = f, info.Mode().IsRegular(), lines
	return nil
}

// sameFile tells whether the path still leads to the open file.
func (o *file) sameFile() (bool, error) {
	there, err := os.Stat(o.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	here, err := o.f.Stat()
	if err != nil {
		return false, err
	}
	return os.SameFile(there, here), nil
}

// syncFolder makes the name of a new file durable.
func syncFolder(path string) error {
	if runtime.GOOS == "windows" {
		return nil // a folder cannot be synced there
	}
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// endsWithinLine looks for what a process that was killed may have left behind.
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
	torn := o.lines.torn
	n, err := o.lines.append(lines)
	if err == nil || !o.regular {
		return err
	}
	if cutErr := o.cutBack(int64(n)); cutErr != nil {
		// Opening it again will look at how it ends.
		return errors.Join(err, cutErr, o.close())
	}
	o.lines.torn = torn
	return err
}

// cutBack takes the last n bytes away, unless they are not the last any more.
func (o *file) cutBack(n int64) error {
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
		return fmt.Errorf("%s: another process has written behind a part of a batch, which stays", o.path)
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
