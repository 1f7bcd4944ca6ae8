package watch

import (
	"errors"
	"testing"
	"time"
	"unicode"
)

// FuzzRender draws screens of any size with names, ids and errors of any content. Each line has the
// width of the screen, and nothing that a terminal would obey.
func FuzzRender(f *testing.F) {
	for _, s := range []string{"orders:42", "", "\x1b[2J", "a\r\nb\t", "\x9b31m", "\xff", "注文", "e\u0301", "\u202e",
		"\u0301"} {
		f.Add(s, s, 80, 12, 1)
		f.Add(s, "x", 3, 1, -1)
		f.Add("x", s, 21, 40, 1<<30)
	}
	f.Fuzz(func(t *testing.T, name, id string, columns, height, n int) {
		columns, height = 1+abs(columns)%300, 1+abs(height)%100
		m := &model{where: id, pattern: name, filter: id}
		draw := func() {
			for _, l := range render(m, columns, height, noon) {
				total := 0
				for _, r := range l.text {
					if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
						t.Fatalf("%q in %q", r, l.text)
					}
					total += width(r)
				}
				if total != columns {
					t.Fatalf("%d columns, not %d: %q", total, columns, l.text)
				}
			}
		}
		draw()
		m.filter = ""
		lock := plainLock(name, time.Duration(n), id, name)
		lock.Holders[0].Client, lock.Holders[0].Count, lock.Waiters, lock.Waiting = id, n, []string{id, name}, n
		m.apply(snapshot(noon.Add(-time.Second), plainLock(id, time.Second, name)))
		m.apply(snapshot(noon, lock))
		draw()
		m.inspect = name
		draw()
		m.inspect = id
		m.fail(errors.New(name), noon)
		draw()
	})
}

func abs(n int) int { return max(n, -(n + 1)) }
