//go:build unix && !linux

package chaos

import "os/exec"

// dieWithTest does nothing, because only Linux supports it.
func dieWithTest(*exec.Cmd) {}
