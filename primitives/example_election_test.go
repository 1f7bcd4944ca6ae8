package primitives_test

import (
	"context"
	"fmt"

	"github.com/redlatch/redlatch/primitives"
)

// One process of a service leads. When its context ends, such as on SIGTERM, another one leads at once.
func ExampleClient_Election() {
	client, done := exampleClient()
	defer done()
	ctx, stop := context.WithCancel(context.Background()) // or signal.NotifyContext
	err := client.Election("example:leader").Run(ctx, func(ctx context.Context, term primitives.Term) error {
		fmt.Println("leads, with token", term.Token)
		stop()
		<-ctx.Done()
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// leads, with token 1
	// <nil>
}
