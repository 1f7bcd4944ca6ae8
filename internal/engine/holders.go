package engine

import (
	"errors"
	"sync"
)

// The holders that waiters wait for, so that the error of a waiter that gives up can name the
// holder's client. The server names a holder by its id only. The client's presence asks for the
// names, off the path of any acquisition, and remembers them.

// waitedFor has the contacts of a client's waiters, which know the holders. It is a part of Core.
type waitedFor struct {
	mu       sync.Mutex // guards contacts; Contact.mu may be taken while it is held
	contacts map[*Contact]*waitersOf
}

// waitersOf are the waiters that share a contact: their number, and the resource that they wait
// for.
type waitersOf struct {
	n        int
	resource *Resource
}

// add adds the contact of a waiter for r.
func (f *waitedFor) add(k *Contact, r *Resource) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.contacts == nil {
		f.contacts = map[*Contact]*waitersOf{}
	}
	if f.contacts[k] == nil {
		f.contacts[k] = &waitersOf{resource: r}
	}
	f.contacts[k].n++
}

// remove undoes add.
func (f *waitedFor) remove(k *Contact) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.contacts[k].n--
	if f.contacts[k].n == 0 {
		delete(f.contacts, k)
	}
}

// HoldersWaitedFor returns the ids of the holders that have refused the waiters of this client,
// other than its own.
func (c *Core) HoldersWaitedFor() (ids []string) {
	f := &c.waitedFor
	f.mu.Lock()
	defer f.mu.Unlock()
	for k := range f.contacts {
		k.mu.Lock()
		id := holderOf(k.holder, k.reason)
		k.mu.Unlock()
		if id == "" {
			continue
		}
		if own, known := c.Owners.IsOwn(id); known && own {
			continue
		}
		ids = append(ids, id)
	}
	return ids
}

// holderOf returns a holder's id, or that of the holder of a joint lock's member: the reason of a
// refusal has it.
func holderOf(holder string, reason error) string {
	if holder != "" || reason == nil {
		return holder
	}
	if member, ok := errors.AsType[*gaveUpError](reason); ok {
		return member.holder
	}
	return ""
}
