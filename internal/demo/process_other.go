//go:build !unix

package demo

import "syscall"

func ownGroup() *syscall.SysProcAttr { return nil }
