package redistest

import "syscall"

// memoryDir returns a directory in memory with at least a gigabyte free, or "".
func memoryDir() string {
	const dir, enough = "/dev/shm", 1 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < enough {
		return ""
	}
	return dir
}
