// Package redisutil contains small helpers for Redis that several packages need.
package redisutil

import "strings"

// Slots is the number of slots of a Redis Cluster.
const Slots = 16384

// Slot returns the cluster slot of a key or channel: the CRC16 (XMODEM) of its hash tag, or of the
// whole key, modulo the number of slots. See "Redis cluster specification", section "Key
// distribution model".
func Slot(key string) uint16 {
	if opening := strings.IndexByte(key, '{'); opening >= 0 {
		if length := strings.IndexByte(key[opening+1:], '}'); length > 0 { // an empty tag does not count
			key = key[opening+1 : opening+1+length]
		}
	}
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return crc % Slots
}
