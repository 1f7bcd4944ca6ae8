//go:build !linux

package redistest

// memoryDir returns "": there is no directory in memory that every system has.
func memoryDir() string { return "" }
