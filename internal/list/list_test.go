package list_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"

	"github.com/redlatch/redlatch/internal/list"
)

type element struct {
	list.Links[element]
	n int
}

// forward and backward return the elements of a list in both directions.
func forward(l *list.List[element, *element]) (all []*element) {
	for e := l.First; e != nil; e = e.Next {
		all = append(all, e)
	}
	return all
}

func backward(l *list.List[element, *element]) (all []*element) {
	for e := l.Last; e != nil; e = e.Prev {
		all = append([]*element{e}, all...)
	}
	return all
}

func TestListBehavesLikeASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l list.List[element, *element]
		var want []*element
		t.Repeat(map[string]func(*rapid.T){
			"append": func(*rapid.T) {
				e := &element{n: len(want)}
				l.Append(e)
				want = append(want, e)
			},
			"remove": func(t *rapid.T) {
				if len(want) == 0 {
					t.Skip("empty")
				}
				i := rapid.IntRange(0, len(want)-1).Draw(t, "index")
				e := want[i]
				want = append(want[:i:i], want[i+1:]...)
				l.Remove(e)
				assert.Nil(t, e.Prev)
				assert.Nil(t, e.Next)
			},
			"": func(t *rapid.T) {
				assert.Len(t, forward(&l), len(want))
				for i, e := range want {
					assert.Same(t, e, forward(&l)[i])
					assert.Same(t, e, backward(&l)[i])
				}
			},
		})
	})
}
