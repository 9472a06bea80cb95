//go:build unix

package testserver

import "syscall"

func attributes(as *account, death syscall.Signal) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{}
	if as != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(as.uid), Gid: uint32(as.gid)}
	}
	dieWithParent(attr, death)
	return attr
}
