package testserver

import "syscall"

func dieWithParent(attr *syscall.SysProcAttr, death syscall.Signal) { attr.Pdeathsig = death }
