package app

import (
	"fmt"
	"os"
)

// MaxLog is how long a log may be when the part that writes it starts: a longer one is
// kept under its name and ".1", in place of the one before, and a new one is begun.
const MaxLog = 8 << 20

// openLog opens the log of a part that is about to start.
func openLog(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && info.Size() > MaxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("log: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	return f, nil
}
