package prometheus_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/locktest"
	"github.com/redlatch/redlatch/primitives"
	redlatchprom "github.com/redlatch/redlatch/prometheus"
)

func ExampleCollector() {
	server := locktest.Start() // or a real Redis
	defer server.Close()
	rdb := redis.NewClient(server.Options())
	defer rdb.Close()

	registry := prometheus.NewRegistry()
	collector := redlatchprom.NewCollector()
	registry.MustRegister(collector)
	client, err := primitives.New(rdb, primitives.WithObserver(collector.Observe))
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	orders := client.Lock("orders:42")
	if err := orders.Do(ctx, func(context.Context) error { return nil }); err != nil {
		panic(err)
	}
	if err := client.Close(ctx); err != nil {
		panic(err)
	}

	families, _ := registry.Gather()
	for _, family := range families {
		if family.GetName() == "redlatch_acquisitions_total" {
			for _, m := range family.GetMetric() {
				if n := m.GetCounter().GetValue(); n > 0 {
					fmt.Println(m.GetLabel()[0].GetValue(), m.GetLabel()[1].GetValue(), n)
				}
			}
		}
	}
	// Output: lock acquired 1
}

// A registerer adds a label that all series of a process share.
func ExampleNewCollector() {
	collector := redlatchprom.NewCollector()
	shared := prometheus.WrapRegistererWith(prometheus.Labels{"redis": "sessions"}, prometheus.NewRegistry())
	fmt.Println(shared.Register(collector))
	// Output: <nil>
}

// The part of a name before the first colon is a label: "orders" for "orders:42".
func ExampleWithLabel() {
	collector := redlatchprom.NewCollector(redlatchprom.WithLabel("lock", func(name string) string {
		group, _, _ := strings.Cut(name, ":")
		return group
	}))
	collector.Observe(primitives.Event{Kind: primitives.EventAcquired, Lock: "lock", Name: "orders:42"})
	// Output:
}

// The options of NewCollector are values of type Option.
func ExampleOption() {
	perTenant := redlatchprom.WithLabel("tenant", func(name string) string { return strings.SplitN(name, "/", 2)[0] })
	options := []redlatchprom.Option{perTenant}
	fmt.Println(redlatchprom.NewCollector(options...) != nil)
	// Output: true
}
