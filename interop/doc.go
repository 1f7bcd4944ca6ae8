// Package interop holds the tests that put this library and Redisson on the same names of one Redis.
//
// The Java side is the Maven project in driver; package redisson builds it, runs it and hands it commands. The tests need java (17 or
// newer) and, the first time, mvn; without them they are skipped, unless REDLATCH_REQUIRE names "redisson".
package interop
