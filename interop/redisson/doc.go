// Package redisson runs Redisson, in a Java process of its own, from Go tests.
//
//	func TestBesideJava(t *testing.T) {
//		driver := redisson.Start(t, redisson.Options{})
//		java := driver.Client(t, redisson.Config{Addr: addr})
//		lock := java.Lock("orders")
//		require.NoError(t, lock.On("t1").Lock(t.Context()))
//		waiting := lock.On("t2").Go("lock") // a future: t2 waits in Java
//		...
//	}
//
// A [Driver] is one Java process. A [Client] is one Redisson client in it, with its own id. An object such as [Lock] is one Java
// object; On gives the same object to a Java thread, made at its first use. One thread runs its commands in order, threads run side
// by side, and each keeps its id, so ownership and re-entry are as in any Java program. A thread's name counts within its client:
// tests that share a driver do not meet.
//
// Any method of Redisson's own API can be called by name (Call, Go); the usual ones have typed helpers. A Java exception arrives as
// an [*Exception]. Every [Answer] says when the call itself began and ended, on this machine's clock.
//
// A [Load] has many threads of many clients at work within Java, and is measured there: a command a step would measure the way to Java.
// A program that is no test has [Open] and [Driver.Connect], and closes what they gave.
//
// A [Shared] driver serves all tests of a test binary, because a Java process takes about half a second to start.
package redisson
