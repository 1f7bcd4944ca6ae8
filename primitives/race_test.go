//go:build race

package primitives_test

const raced = true
