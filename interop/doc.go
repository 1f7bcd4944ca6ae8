// Package interop contains tests in which this library and Redisson share locks on one Redis.
//
// The Java side is the Maven project in the directory driver. Package redisson builds it, runs it
// and sends it commands. The tests need java (17 or newer) and, for the first build, mvn. Without
// them the tests are skipped, or fail if REDLATCH_REQUIRE contains "redisson".
package interop
