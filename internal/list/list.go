// Package list provides a doubly linked list whose elements contain their own links. Adding an
// element allocates nothing, and removing one needs no search.
package list

// Links connect an element with its neighbors. The elements of a list of T embed Links[T]. An
// element is in one list at a time. Lists are not safe for concurrent use: their owner's mutex
// guards them and the links.
type Links[T any] struct{ Prev, Next *T }

// ListLinks returns the links of an element that embeds them.
func (l *Links[T]) ListLinks() *Links[T] { return l }

// List is a list of elements of type T, which embeds Links[T]. The zero value is empty.
type List[T any, P interface {
	*T
	ListLinks() *Links[T]
}] struct{ First, Last *T }

// Append adds an element at the end.
func (l *List[T, P]) Append(e *T) {
	links := P(e).ListLinks()
	links.Prev = l.Last
	if l.Last != nil {
		P(l.Last).ListLinks().Next = e
	} else {
		l.First = e
	}
	l.Last = e
}

// Prepend adds an element at the beginning.
func (l *List[T, P]) Prepend(e *T) {
	links := P(e).ListLinks()
	links.Next = l.First
	if l.First != nil {
		P(l.First).ListLinks().Prev = e
	} else {
		l.Last = e
	}
	l.First = e
}

// Remove removes an element that is in the list.
func (l *List[T, P]) Remove(e *T) {
	links := P(e).ListLinks()
	if links.Prev != nil {
		P(links.Prev).ListLinks().Next = links.Next
	} else {
		l.First = links.Next
	}
	if links.Next != nil {
		P(links.Next).ListLinks().Prev = links.Prev
	} else {
		l.Last = links.Prev
	}
	*links = Links[T]{}
}
