// Command java shares a lock with a Java program that uses Redisson.
//
// Both programs read the balance of one account, and write it back with a deposit. Without a common
// lock, deposits would be lost. The Java side is src/main/java/example/Deposits.java.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

func main() {
	url := flag.String("redis", "", "`URL` of a Redis server (default: a server inside this process)")
	flag.Parse()
	if err := run(context.Background(), *url); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) (err error) {
	if url == "" {
		url = "redis://" + locktest.Start().Addr()
	}
	options, err := redis.ParseURL(url)
	if err != nil {
		return err
	}
	rdb := redis.NewClient(options)
	defer rdb.Close()
	client, err := primitives.New(rdb)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(closing)) // waits for holds
	}()

	// Open a new account, and wait for the Java program, which counts down both latches.
	if err := rdb.Del(ctx, "example:java:account").Err(); err != nil {
		return err
	}
	ready, done := client.CountDownLatch("example:java:ready"), client.CountDownLatch("example:java:done")
	for _, latch := range []*primitives.CountDownLatch{ready, done} {
		if _, err := latch.Init(ctx, 1); err != nil {
			return err
		}
	}
	fmt.Println("The Go program waits for the Java program. Start it in another terminal:")
	fmt.Printf("mvn -q -f examples/java compile exec:java -Dexec.args=%s\n", url)
	if err := wait(ctx, ready); err != nil {
		return err
	}
	lock := client.Lock("example:java:lock") // Redisson: getLock
	for range 10 {
		if err := lock.Do(ctx, func(ctx context.Context) error { return deposit(ctx, rdb) }); err != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond) // the other side gets its turn
	}
	if err := wait(ctx, done); err != nil {
		return err
	}
	balance, err := rdb.HGet(ctx, "example:java:account", "balance").Int()
	if err != nil {
		return err
	}
	if balance != 20 {
		return fmt.Errorf("the balance is %d after 20 deposits", balance)
	}
	fmt.Println("The balance is 20, and no deposit was lost.")
	return rdb.Del(ctx, "example:java:account").Err()
}

// wait waits for the Java program, but not forever. Maven may have to download Redisson first.
func wait(ctx context.Context, latch *primitives.CountDownLatch) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return latch.Wait(ctx)
}

// deposit reads the account, checks it, and writes it. Only the lock makes this safe.
func deposit(ctx context.Context, rdb *redis.Client) error {
	var account struct {
		Balance int `redis:"balance"`
		Go      int `redis:"go"`
		Java    int `redis:"java"`
	}
	if err := rdb.HGetAll(ctx, "example:java:account").Scan(&account); err != nil {
		return err
	}
	if account.Balance != account.Go+account.Java {
		return fmt.Errorf("a deposit was lost: %+v", account)
	}
	account.Go++
	account.Balance++
	if err := rdb.HSet(ctx, "example:java:account", "go", account.Go, "balance", account.Balance).Err(); err != nil {
		return err
	}
	fmt.Printf("Go makes its deposit %d: the balance is %d.\n", account.Go, account.Balance)
	return nil
}
