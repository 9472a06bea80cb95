//go:build unix && !linux

package chaos

// trialsOfSystem are trials of this operating system.
var trialsOfSystem map[string]func(*trial)
