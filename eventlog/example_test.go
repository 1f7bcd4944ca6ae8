package eventlog_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/eventlog"
	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
)

// A process writes what happens to its locks. The command "redlatch timeline --text shop.jsonl"
// draws the file, together with the files of other processes if they are given.
func Example() {
	server := locktest.Start() // or a real Redis
	defer server.Close()
	rdb := redis.NewClient(server.Options())
	defer rdb.Close()
	dir, err := os.MkdirTemp("", "eventlog-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "shop.jsonl")

	events, err := eventlog.Open(path, eventlog.WithProcess("shop@host-1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := primitives.New(rdb, primitives.WithObserver(events.Observe))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	err = client.Lock("orders:42").Do(ctx, func(context.Context) error { return nil })
	if err != nil {
		fmt.Println(err)
	}
	client.Close(ctx)
	fmt.Println("close:", events.Close()) // after the client: its last events are written, too

	file, err := os.Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var line struct{ Process, Event string }
		err := json.Unmarshal(lines.Bytes(), &line)
		fmt.Println(line.Process, line.Event, err)
	}
	// Output:
	// close: <nil>
	// shop@host-1 opened <nil>
	// shop@host-1 acquired <nil>
	// shop@host-1 released <nil>
}
