// Command redlock holds a lock on a majority of three independent servers, so one of them may fail.
//
// Output:
//
//	the lock is held, though server 3 is down
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

func main() {
	err := run(context.Background())
	if err != nil {
		log.Fatal(err)
	}
}
func run(ctx context.Context) error {
	var locks []*primitives.Lock
	for _, addr := range servers() { // never replicas of each other
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		// If the servers keep their data in memory only, OnConnect:
		// primitives.MinUptime(30*time.Second) refuses one that has just been restarted, and has
		// forgotten its locks.
		client, err := primitives.New(rdb)
		if err != nil {
			return err
		}
		locks = append(locks, client.Lock("example:redlock"))
	}
	lock := primitives.NewRedLock(locks)
	return lock.Do(ctx, func(context.Context) error { // this context ends if the majority is lost
		fmt.Println("the lock is held, though server 3 is down")
		return nil
	}, primitives.WithWait(2*time.Second))
}

// servers returns three addresses: those of two servers of $REDIS_ADDR, such as
// "host1:6379,host2:6379", or of two inside this process, and one where no Redis is.
func servers() []string {
	up := os.Getenv("REDIS_ADDR")
	if up == "" {
		up = locktest.Start().Addr() + "," + locktest.Start().Addr()
	}
	return append(strings.Split(up, ","), "127.0.0.1:1")
}
