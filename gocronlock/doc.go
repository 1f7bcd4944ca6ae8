// Package gocronlock runs jobs of gocron v2 on one scheduler at a time, with locks of redlatch.
//
//	locker := gocronlock.NewLocker(client, 30*time.Second)
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//
// There are two ways, and a scheduler uses one of them:
//
//   - A [Locker] takes a lock for each run of a job, under the job's name. Any scheduler may run
//     the next one, so the load is shared. The lock is renewed while the job runs, so a job may
//     take longer than the lock's TTL.
//   - An [Elector] stands for election. The leader runs all jobs until it stops, or loses the
//     leadership. Then another scheduler leads at once.
//
// Give each job a name (gocron.WithName). Without one, gocron uses the name of the Go function,
// which two jobs may share.
//
// # Clocks that differ
//
// Schedulers start a job when their own clock says so. Suppose that a job takes 10 ms and that two
// clocks differ by 50 ms. Without a minimum hold, the second scheduler finds the lock free again
// and runs the job a second time. The minimum hold of [NewLocker] keeps the lock for that long,
// counted from its acquisition, however soon the job ends. Choose more than the clocks differ, and
// less than the interval of the job.
//
// A job that is due once an hour on several hosts, whose clocks differ by a few seconds:
//
//	locker := gocronlock.NewLocker(client, time.Minute)
package gocronlock
