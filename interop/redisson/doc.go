// Package redisson runs Redisson in a Java process and controls it from Go tests.
//
//	func TestWithJava(t *testing.T) {
//		driver := redisson.Start(t, redisson.Options{})
//		java := driver.Client(t, redisson.Config{Addr: addr})
//		lock := java.Lock("orders")
//		require.NoError(t, lock.On("t1").Lock(t.Context()))
//		waiting := lock.On("t2").Go("lock") // a future: t2 waits in Java
//		...
//	}
//
// A [Driver] is one Java process. A [Client] is one Redisson client in it, with its own id. A value
// such as [Lock] refers to one Java object. Its method On selects the Java thread that uses the
// object; the first use starts the thread. A thread runs its commands in order, and different
// threads run concurrently. A thread keeps its id, so ownership and re-entry work as in any Java
// program. Thread names belong to a client, so tests that share a driver do not share threads.
//
// Call and Go call any method of Redisson's API by its name. The usual methods have typed helpers.
// A Java exception is returned as an [*Exception]. Every [Answer] contains the start and end time
// of the call, by the clock of this machine.
//
// A [Load] runs many threads of many clients inside Java and measures them there. Sending a command
// for each step would measure the communication with Java.
//
// A program that is not a test uses [Open] and [Driver.Connect], and closes the results.
//
// A [Shared] driver serves all tests of a test binary, because starting a Java process takes about
// half a second.
package redisson
