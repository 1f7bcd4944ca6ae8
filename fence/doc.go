// Package fence makes a store refuse writers that come too late.
//
// A holder of a lock may be stopped for longer than its lease: by a pause of the process, the
// migration of its virtual machine, or a slow network. Another holder works meanwhile. When the
// first one goes on, no lock can stop its next write. The store can, if it compares the tokens of
// fenced locks ([github.com/redlatch/redlatch/primitives.Client.FencedLock]) and of elections:
//
//	fences := fence.SQL(fence.Postgres)
//
//	tx, err := db.BeginTx(ctx, nil)
//	...
//	if err := fences.Check(ctx, tx, "orders:42", hold.Token()); err != nil {
//		return err // ErrStale: a later holder has written
//	}
//	_, err = tx.ExecContext(ctx, ...) // the write
//	...
//	return tx.Commit()
//
// A fence is the greatest token that a store has seen for a resource. There is one for each
// resource, and it never expires. If Redis loses its data, tokens begin at 1 again, and the store
// refuses every writer. That is safe and easy to notice. Then delete the fences too, while nobody
// holds the locks.
//
// Resource names may contain any bytes, and are compared exactly.
package fence
