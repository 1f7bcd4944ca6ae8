package primitives_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/redlatch/redlatch/primitives"
)

// One process of a service leads. When its context ends, such as on SIGTERM, another one leads at
// once.
func ExampleElection_Run() {
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

// A store that knows the token of the latest term refuses the writes of earlier leaders: see
// package fence.
func ExampleTerm() {
	client, done := exampleClient()
	defer done()
	election := client.Election("example:leader")
	errDone := errors.New("the work is done")
	for range 2 {
		err := election.Run(context.Background(), func(ctx context.Context, term primitives.Term) error {
			fmt.Println(term.Token, term.Hold == primitives.HoldFrom(ctx))
			return errDone // ends Run
		})
		fmt.Println(err)
	}
	// Output:
	// 1 true
	// the work is done
	// 2 true
	// the work is done
}

// Any process can ask who leads.
func ExampleLeader() {
	client, done := exampleClient()
	defer done()
	ctx, stop := context.WithCancel(context.Background())
	election := client.Election("example:leader")
	_ = election.Run(ctx, func(ctx context.Context, term primitives.Term) error {
		leader, err := election.Leader(ctx)
		fmt.Println(leader.ID == term.Hold.ID(), leader.Token, err)
		stop()
		return nil
	})
	leader, err := election.Leader(context.Background())
	fmt.Println(leader == primitives.Leader{}, err)
	// Output:
	// true 1 <nil>
	// true <nil>
}
