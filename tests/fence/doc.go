// Package fence tests package fence of redlatch on real databases. It is a module of its own,
// because users of the library need no drivers.
package fence
