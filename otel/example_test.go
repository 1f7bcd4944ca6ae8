package otel_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/redlatch/redlatch/locktest"
	redlatchotel "github.com/redlatch/redlatch/otel"
	"github.com/redlatch/redlatch/primitives"
)

func ExampleObserver() {
	server := locktest.Start() // or a real Redis
	defer server.Close()
	rdb := redis.NewClient(server.Options())
	defer rdb.Close()

	exporter := tracetest.NewInMemoryExporter() // or one that sends
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	observer, err := redlatchotel.NewObserver(redlatchotel.WithTracerProvider(tracers))
	if err != nil {
		panic(err)
	}
	client, err := primitives.New(rdb, primitives.WithObserver(observer.Observe))
	if err != nil {
		panic(err)
	}

	ctx, request := tracers.Tracer("example").Start(context.Background(), "request")
	if err := client.Lock("orders:42").Do(ctx, func(context.Context) error { return nil }); err != nil {
		panic(err)
	}
	request.End()
	if err := client.Close(ctx); err != nil {
		panic(err)
	}
	for _, span := range exporter.GetSpans() {
		fmt.Println(span.Name)
	}
	// Output:
	// redlatch.hold
	// request
}

// Without options, the observer uses the global providers of OpenTelemetry.
func ExampleNewObserver() {
	observer, err := redlatchotel.NewObserver()
	fmt.Println(observer != nil, err)
	// Output: true <nil>
}

// Metrics only.
func ExampleWithMeterProvider() {
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	_, err := redlatchotel.NewObserver(
		redlatchotel.WithMeterProvider(meters),
		redlatchotel.WithTracerProvider(tracenoop.NewTracerProvider()),
	)
	fmt.Println(err)
	// Output: <nil>
}

// Spans only.
func ExampleWithTracerProvider() {
	_, err := redlatchotel.NewObserver(
		redlatchotel.WithTracerProvider(sdktrace.NewTracerProvider()),
		redlatchotel.WithMeterProvider(metricnoop.NewMeterProvider()),
	)
	fmt.Println(err)
	// Output: <nil>
}

// The part of a name before the first colon is an attribute: "orders" for "orders:42".
func ExampleWithAttribute() {
	_, err := redlatchotel.NewObserver(redlatchotel.WithAttribute(func(name string) attribute.KeyValue {
		group, _, _ := strings.Cut(name, ":")
		return attribute.String("lock.group", group)
	}))
	fmt.Println(err)
	// Output: <nil>
}

// The options of NewObserver are values of type Option.
func ExampleOption() {
	options := []redlatchotel.Option{redlatchotel.WithTracerProvider(tracenoop.NewTracerProvider())}
	_, err := redlatchotel.NewObserver(options...)
	fmt.Println(err)
	// Output: <nil>
}
