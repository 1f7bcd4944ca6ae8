package memredis

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// The commands of hashes, lists and sorted sets.

func (s *Server) hget(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isHash)
	if wrong != "" {
		return wrong
	}
	if i := it.field(args[2]); i >= 0 {
		return it.fields[i].value
	}
	return nil
}

func (s *Server) hset(_ *Conn, args []string) any {
	if len(args)%2 != 0 {
		return failure("ERR wrong number of arguments for 'hset' command")
	}
	it, wrong := s.made(args[1], isHash)
	if wrong != "" {
		return wrong
	}
	n := int64(0)
	for i := 2; i < len(args); i += 2 {
		if it.setField(args[i], args[i+1]) {
			n++
		}
	}
	return n
}

func (s *Server) hdel(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isHash)
	if wrong != "" {
		return wrong
	}
	n := int64(0)
	for _, name := range args[2:] {
		if i := it.field(name); i >= 0 {
			it.fields = slices.Delete(it.fields, i, i+1)
			n++
		}
	}
	s.tidy(args[1], it)
	return n
}

func (s *Server) hexists(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isHash)
	switch {
	case wrong != "":
		return wrong
	case it.field(args[2]) >= 0:
		return int64(1)
	}
	return int64(0)
}

func (s *Server) hlen(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isHash)
	switch {
	case wrong != "":
		return wrong
	case it == nil:
		return int64(0)
	}
	return int64(len(it.fields))
}

func (s *Server) hmget(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isHash)
	if wrong != "" {
		return wrong
	}
	out := make([]any, len(args)-2)
	for n, name := range args[2:] {
		if i := it.field(name); i >= 0 {
			out[n] = it.fields[i].value
		}
	}
	return out
}

func (s *Server) hgetall(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isHash)
	if wrong != "" {
		return wrong
	}
	out := pairs{}
	if it != nil {
		for _, f := range it.fields {
			out = append(out, f.name, f.value)
		}
	}
	return out
}

func (s *Server) hkeys(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isHash)
	if wrong != "" {
		return wrong
	}
	out := []any{}
	if it != nil {
		for _, f := range it.fields {
			out = append(out, f.name)
		}
	}
	return out
}

func (s *Server) hincrby(_ *Conn, args []string) any {
	by, err := strconv.ParseInt(args[3], 10, 64)
	if err != nil {
		return notInteger
	}
	it, wrong := s.typed(args[1], isHash)
	if wrong != "" {
		return wrong
	}
	old := int64(0)
	if i := it.field(args[2]); i >= 0 {
		if old, err = strconv.ParseInt(it.fields[i].value, 10, 64); err != nil {
			return failure("ERR hash value is not an integer")
		}
	}
	it, _ = s.made(args[1], isHash)
	it.setField(args[2], strconv.FormatInt(old+by, 10))
	return old + by
}

// hscan returns everything at once, as Redis does for small hashes.
func (s *Server) hscan(c *Conn, args []string) any {
	all := s.hgetall(c, []string{"hgetall", args[1]})
	if wrong, ok := all.(failure); ok {
		return wrong
	}
	return []any{"0", []any(all.(pairs))}
}

func (s *Server) hrandfield(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isHash)
	if wrong != "" {
		return wrong
	}
	n := 1
	if len(args) > 2 {
		var err error
		if n, err = strconv.Atoi(args[2]); err != nil || n < 0 {
			return notInteger
		}
	}
	out := []any{}
	if it != nil {
		for _, i := range s.rand.Perm(len(it.fields))[:min(n, len(it.fields))] {
			out = append(out, it.fields[i].name)
		}
	}
	switch {
	case len(args) > 2:
		return out
	case len(out) == 0:
		return nil
	}
	return out[0]
}

func (s *Server) rpush(_ *Conn, args []string) any {
	it, wrong := s.made(args[1], isList)
	if wrong != "" {
		return wrong
	}
	it.list = append(it.list, args[2:]...)
	return int64(len(it.list))
}

func (s *Server) lpop(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isList)
	switch {
	case wrong != "":
		return wrong
	case it == nil:
		return nil
	}
	first := it.list[0]
	it.list = it.list[1:]
	s.tidy(args[1], it)
	return first
}

func (s *Server) llen(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isList)
	switch {
	case wrong != "":
		return wrong
	case it == nil:
		return int64(0)
	}
	return int64(len(it.list))
}

func (s *Server) lindex(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isList)
	if wrong != "" {
		return wrong
	}
	if it == nil {
		return nil
	}
	i, err := strconv.Atoi(args[2])
	if err != nil {
		return notInteger
	}
	if i < 0 {
		i += len(it.list)
	}
	if i < 0 || i >= len(it.list) {
		return nil
	}
	return it.list[i]
}

func (s *Server) lrange(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isList)
	if wrong != "" {
		return wrong
	}
	var list []string
	if it != nil {
		list = it.list
	}
	from, to, bad := bounds(args[2], args[3], len(list))
	if bad != "" {
		return bad
	}
	return texts(list[from:to])
}

// lrem knows the count 0, which removes all, and positive ones.
func (s *Server) lrem(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isList)
	if wrong != "" {
		return wrong
	}
	count, err := strconv.Atoi(args[2])
	if err != nil || count < 0 {
		return notInteger
	}
	if it == nil {
		return int64(0)
	}
	n := 0
	it.list = slices.DeleteFunc(it.list, func(each string) bool {
		if each != args[3] || count > 0 && n == count {
			return false
		}
		n++
		return true
	})
	s.tidy(args[1], it)
	return int64(n)
}

func (s *Server) zadd(_ *Conn, args []string) any {
	onlyNew, onlyOld, changes := false, false, false
	i := 2
options:
	for ; i < len(args); i++ {
		switch strings.ToLower(args[i]) {
		case "nx":
			onlyNew = true
		case "xx":
			onlyOld = true
		case "ch":
			changes = true
		default:
			break options
		}
	}
	if len(args) == i || (len(args)-i)%2 != 0 {
		return syntaxError
	}
	var all []member
	for ; i < len(args); i += 2 {
		score, err := strconv.ParseFloat(args[i], 64)
		if err != nil || math.IsNaN(score) {
			return failure("ERR value is not a valid float")
		}
		all = append(all, member{args[i+1], score})
	}
	it, wrong := s.typed(args[1], isZSet)
	switch {
	case wrong != "":
		return wrong
	case it == nil && onlyOld:
		return int64(0)
	}
	it, _ = s.made(args[1], isZSet)
	n := int64(0)
	for _, m := range all {
		at := it.member(m.name)
		if at >= 0 && onlyNew || at < 0 && onlyOld {
			continue
		}
		changed := at < 0 || it.zset[at].score != m.score
		added := it.setMember(m.name, m.score)
		if added || changes && changed {
			n++
		}
	}
	return n
}

func (s *Server) zrem(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isZSet)
	if wrong != "" {
		return wrong
	}
	n := int64(0)
	for _, name := range args[2:] {
		if i := it.member(name); i >= 0 {
			it.zset = slices.Delete(it.zset, i, i+1)
			n++
		}
	}
	s.tidy(args[1], it)
	return n
}

func (s *Server) zscore(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isZSet)
	if wrong != "" {
		return wrong
	}
	if i := it.member(args[2]); i >= 0 {
		return formatNumber(it.zset[i].score)
	}
	return nil
}

func (s *Server) zcard(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isZSet)
	switch {
	case wrong != "":
		return wrong
	case it == nil:
		return int64(0)
	}
	return int64(len(it.zset))
}

// scores is a range of scores.
type scores struct {
	low, high             float64
	withoutLow, withoutHi bool
}

func parseScores(low, high string) (r scores, bad failure) {
	low, r.withoutLow = strings.CutPrefix(low, "(")
	high, r.withoutHi = strings.CutPrefix(high, "(")
	var err1, err2 error
	r.low, err1 = strconv.ParseFloat(low, 64)
	r.high, err2 = strconv.ParseFloat(high, 64)
	if err1 != nil || err2 != nil {
		return r, notFloat
	}
	return r, ""
}

func (r scores) contains(score float64) bool {
	return (score > r.low || score == r.low && !r.withoutLow) && (score < r.high || score == r.high && !r.withoutHi)
}

// between returns the members with scores in a range.
func (s *Server) between(key, low, high string) ([]member, failure) {
	r, bad := parseScores(low, high)
	if bad != "" {
		return nil, bad
	}
	it, wrong := s.typed(key, isZSet)
	if it == nil || wrong != "" {
		return nil, wrong
	}
	return slices.DeleteFunc(slices.Clone(it.zset), func(m member) bool { return !r.contains(m.score) }), ""
}

func (s *Server) zcount(_ *Conn, args []string) any {
	all, bad := s.between(args[1], args[2], args[3])
	if bad != "" {
		return bad
	}
	return int64(len(all))
}

func (s *Server) zrange(_ *Conn, args []string) any {
	it, wrong := s.typed(args[1], isZSet)
	if wrong != "" {
		return wrong
	}
	withScores := len(args) > 4
	if withScores && !strings.EqualFold(args[4], "withscores") {
		return syntaxError
	}
	var all []member
	if it != nil {
		all = it.zset
	}
	from, to, bad := bounds(args[2], args[3], len(all))
	if bad != "" {
		return bad
	}
	return listed(all[from:to], withScores)
}

func listed(all []member, withScores bool) []any {
	out := []any{}
	for _, m := range all {
		out = append(out, m.name)
		if withScores {
			out = append(out, formatNumber(m.score))
		}
	}
	return out
}

func (s *Server) zrangeByScore(_ *Conn, args []string) any {
	all, bad := s.between(args[1], args[2], args[3])
	if bad != "" {
		return bad
	}
	withScores := false
	for i := 4; i < len(args); i++ {
		switch strings.ToLower(args[i]) {
		case "withscores":
			withScores = true
		case "limit":
			if i+2 >= len(args) {
				return syntaxError
			}
			offset, err1 := strconv.Atoi(args[i+1])
			count, err2 := strconv.Atoi(args[i+2])
			if err1 != nil || err2 != nil || offset < 0 {
				return notInteger
			}
			all = all[min(offset, len(all)):]
			if count >= 0 {
				all = all[:min(count, len(all))]
			}
			i += 2
		default:
			return syntaxError
		}
	}
	return listed(all, withScores)
}

func (s *Server) zremRangeByScore(_ *Conn, args []string) any {
	all, bad := s.between(args[1], args[2], args[3])
	if bad != "" {
		return bad
	}
	it := s.look(args[1])
	for _, m := range all {
		i := it.member(m.name)
		it.zset = slices.Delete(it.zset, i, i+1)
	}
	s.tidy(args[1], it)
	return int64(len(all))
}
