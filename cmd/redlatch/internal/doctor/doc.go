// Package doctor checks whether a Redis server is fit for locks, and says what to do about what is
// not.
//
// Each check asks the server, or tries what the library does with throw-away names. A check that
// the server forbids is a warning that says what is not known, never a failure. Nothing is left
// behind.
package doctor
