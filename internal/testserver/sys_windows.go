package testserver

import "syscall"

func attributes(*account, syscall.Signal) *syscall.SysProcAttr { return nil }
