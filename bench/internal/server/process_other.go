//go:build !linux

package server

import "syscall"

func diesWithUs() *syscall.SysProcAttr { return nil }
