package memredis

import "slices"

// kind is the type of a key, as TYPE names it.
type kind string

const (
	isString kind = "string"
	isHash   kind = "hash"
	isList   kind = "list"
	isZSet   kind = "zset"
)

// item is the value of a key. Only the fields of its kind are used.
type item struct {
	kind    kind
	expires int64 // ms since 1970; 0: it does not

	text   string
	fields []field  // of a hash, in the order in which they were added
	list   []string // of a list
	zset   []member // of a sorted set, in its order
}

type field struct{ name, value string }

type member struct {
	name  string
	score float64
}

func (it *item) clone() *item {
	c := *it
	c.fields, c.list, c.zset = slices.Clone(it.fields), slices.Clone(it.list), slices.Clone(it.zset)
	return &c
}

// isOver reports whether the item has expired. As in Redis, it lasts until the end of its last
// millisecond, in which its TTL is 0.
func (it *item) isOver(now int64) bool { return it.expires != 0 && it.expires < now }

func (it *item) isEmpty() bool {
	return it.kind != isString && len(it.fields)+len(it.list)+len(it.zset) == 0
}

// field returns the index of a field; -1 if there is none. Hashes are small here.
func (it *item) field(name string) int {
	if it == nil {
		return -1
	}
	for i := range it.fields {
		if it.fields[i].name == name {
			return i
		}
	}
	return -1
}

// setField reports whether the field is new.
func (it *item) setField(name, value string) bool {
	if i := it.field(name); i >= 0 {
		it.fields[i].value = value
		return false
	}
	it.fields = append(it.fields, field{name, value})
	return true
}

// member returns the index of a member of a sorted set; -1 if there is none.
func (it *item) member(name string) int {
	if it == nil {
		return -1
	}
	for i := range it.zset {
		if it.zset[i].name == name {
			return i
		}
	}
	return -1
}

// setMember reports whether the member is new.
func (it *item) setMember(name string, score float64) bool {
	i := it.member(name)
	if i >= 0 {
		it.zset = slices.Delete(it.zset, i, i+1)
	}
	m := member{name, score}
	at, _ := slices.BinarySearchFunc(it.zset, m, compareMembers)
	it.zset = slices.Insert(it.zset, at, m)
	return i < 0
}

const wrongType failure = "WRONGTYPE Operation against a key holding the wrong kind of value"

// typed returns the item of a key, nil if there is none, and an error if it is of another kind.
func (s *Server) typed(key string, k kind) (*item, failure) {
	it := s.look(key)
	if it != nil && it.kind != k {
		return nil, wrongType
	}
	return it, ""
}

// made is typed, and makes the item if there is none.
func (s *Server) made(key string, k kind) (*item, failure) {
	it, wrong := s.typed(key, k)
	if it == nil && wrong == "" {
		it = &item{kind: k}
		s.keys[key] = it
	}
	return it, wrong
}

// tidy deletes a key that has become empty.
func (s *Server) tidy(key string, it *item) {
	if it != nil && it.isEmpty() {
		delete(s.keys, key)
	}
}
