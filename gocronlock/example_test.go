package gocronlock_test

import (
	"context"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/gocronlock"
	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// Each scheduler of a service is made like this. A run of the job takes place on one of them.
func ExampleNewLocker() {
	server := locktest.Start() // or a real Redis
	defer server.Close()
	rdb := redis.NewClient(server.Options())
	defer rdb.Close()
	client, err := primitives.New(rdb)
	if err != nil {
		panic(err)
	}
	defer client.Close(context.Background())

	locker := gocronlock.NewLocker(client, 30*time.Second) // clocks may differ by up to 30 s
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		panic(err)
	}
	done := make(chan struct{})
	_, err = scheduler.NewJob(
		gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
		gocron.NewTask(func() {
			fmt.Println("report sent")
			close(done)
		}),
		gocron.WithName("report"), // the name of the lock
	)
	if err != nil {
		panic(err)
	}
	scheduler.Start()
	<-done
	if err := scheduler.Shutdown(); err != nil {
		panic(err)
	}
	// Output: report sent
}

// The leader runs all jobs of the service.
func ExampleNewElector() {
	server := locktest.Start() // or a real Redis
	defer server.Close()
	rdb := redis.NewClient(server.Options())
	defer rdb.Close()
	client, err := primitives.New(rdb)
	if err != nil {
		panic(err)
	}
	defer client.Close(context.Background())

	elector := gocronlock.NewElector(client, "report scheduler")
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		panic(err)
	}
	scheduler.Start()
	fmt.Println(elector.IsLeader(context.Background()))
	if err := scheduler.Shutdown(); err != nil {
		panic(err)
	}
	if err := elector.Close(context.Background()); err != nil { // the next leader need not wait
		panic(err)
	}
	// Output: <nil>
}
