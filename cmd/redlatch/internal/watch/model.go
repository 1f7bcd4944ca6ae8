package watch

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// model is the state of the view. Its methods do no I/O and read no clock.
type model struct {
	where, pattern string // for the title

	snap    *Snapshot       // nil before the first one
	names   map[string]bool // of the locks in snap
	since   map[holderKey]seen
	history []sample
	fault   error     // why the last look failed; nil: it did not
	faultAt time.Time // when the first of the failed looks failed

	filter   string // shows only names that contain it
	typing   bool   // the keys go to the filter
	order    order
	selected string // the name of the selected lock
	top      int    // index of the first row on the screen
	page     int    // rows that fit on the screen; set by render
	inspect  string // the name that is shown alone; "": the list
	scroll   int    // of the inspected name's lines
}

type holderKey struct{ name, id string }

// seen is when a holder was first seen. It may have held for longer if the look before was not
// whole.
type seen struct {
	at      time.Time
	atLeast bool
}

// sample is what changed between two looks.
type sample struct {
	elapsed        time.Duration
	acquired, lost int
}

// rateWindow is how many of the latest samples make a rate.
const rateWindow = 10

// order is how the rows are sorted. Rows that are equal are sorted by name.
type order int

const (
	byName order = iota
	byTTL
	byWaiting
	byAge
	orders
)

func (o order) String() string { return [...]string{"name", "ttl", "waiting", "held"}[o] }

// apply shows a new snapshot.
func (m *model) apply(s *Snapshot) {
	if m.snap != nil {
		acquired, lost := changes(m.snap, s)
		m.history = append(m.history, sample{s.At.Sub(m.snap.At), acquired, lost})
		m.history = m.history[max(len(m.history)-rateWindow, 0):]
	}
	since := make(map[holderKey]seen, len(s.Held))
	mayHaveBeenMissed := func(name string) bool { return m.snap == nil || !m.snap.Whole && !m.knows(name) }
	for i := range s.Held {
		for _, h := range s.Held[i].Holders {
			k := holderKey{s.Held[i].Name, h.ID}
			first, ok := m.since[k]
			if !ok {
				first = seen{s.At, mayHaveBeenMissed(k.name)}
			}
			since[k] = first
		}
	}
	m.snap, m.since, m.fault = s, since, nil
	m.names = make(map[string]bool, len(s.Held))
	for i := range s.Held {
		m.names[s.Held[i].Name] = true
	}
}

// knows reports whether the last snapshot has a lock of that name.
func (m *model) knows(name string) bool { return m.names[name] }

// fail shows that a look failed. The last snapshot stays on the screen.
func (m *model) fail(err error, at time.Time) {
	if m.fault == nil {
		m.faultAt = at
	}
	m.fault = err
}

// rates returns acquisitions and losses a second. known is false until there are two snapshots.
func (m *model) rates() (acquired, lost float64, known bool) {
	var all sample
	for _, s := range m.history {
		all.elapsed += s.elapsed
		all.acquired += s.acquired
		all.lost += s.lost
	}
	if all.elapsed <= 0 {
		return 0, 0, false
	}
	return float64(all.acquired) / all.elapsed.Seconds(), float64(all.lost) / all.elapsed.Seconds(), true
}

// held returns the lock with that name in the last snapshot, or nil.
func (m *model) held(name string) *Lock {
	if m.snap == nil {
		return nil
	}
	for i := range m.snap.Held {
		if m.snap.Held[i].Name == name {
			return &m.snap.Held[i]
		}
	}
	return nil
}

// rows returns the locks that pass the filter, in order.
func (m *model) rows() []*Lock {
	if m.snap == nil {
		return nil
	}
	var rows []*Lock
	for i := range m.snap.Held {
		if l := &m.snap.Held[i]; m.filter == "" || strings.Contains(l.Name, m.filter) {
			rows = append(rows, l)
		}
	}
	slices.SortFunc(rows, func(a, b *Lock) int {
		c := 0
		switch m.order {
		case byTTL:
			c = cmp.Compare(uint64(a.TTL), uint64(b.TTL)) // no expiry, which is negative, comes last
		case byWaiting:
			c = cmp.Compare(b.Waiting, a.Waiting)
		case byAge:
			c = m.oldest(a).Compare(m.oldest(b))
		default: // by name, below
		}
		return cmp.Or(c, strings.Compare(a.Name, b.Name))
	})
	return rows
}

// oldest is when the lock's longest holder was first seen.
func (m *model) oldest(l *Lock) time.Time {
	first := m.since[holderKey{l.Name, l.Holders[0].ID}].at
	for _, h := range l.Holders[1:] {
		if at := m.since[holderKey{l.Name, h.ID}].at; at.Before(first) {
			first = at
		}
	}
	return first
}

// cursor returns the index of the selected row. If that lock is gone, the next one is selected.
func (m *model) cursor(rows []*Lock) int {
	for i, l := range rows {
		if l.Name == m.selected {
			return i
		}
	}
	i := max(min(m.top, len(rows)-1), 0)
	if m.order == byName && m.selected != "" {
		i, _ = slices.BinarySearchFunc(rows, m.selected, func(l *Lock, name string) int {
			return strings.Compare(l.Name, name)
		})
		i = max(min(i, len(rows)-1), 0)
	}
	return i
}

// press handles a key. It returns true if the view is to end.
func (m *model) press(k key) (quit bool) {
	switch {
	case k == keyInterrupt:
		return true
	case m.typing:
		m.edit(k)
	case k == 'q':
		return true
	case m.inspect != "":
		m.pressInspect(k)
	default:
		m.pressList(k)
	}
	return false
}

// edit changes the filter. It is in effect while it is typed.
func (m *model) edit(k key) {
	switch {
	case k == keyEnter:
		m.typing = false
	case k == keyEsc:
		m.typing, m.filter = false, ""
	case k == keyBackspace:
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	case k > 0:
		m.filter += string(rune(k))
	}
}

func (m *model) pressInspect(k key) {
	switch k {
	case keyEsc, keyEnter, keyBackspace:
		m.inspect = ""
	case keyUp, 'k':
		m.scroll--
	case keyDown, 'j':
		m.scroll++
	case keyPageUp:
		m.scroll -= m.page
	case keyPageDown, ' ':
		m.scroll += m.page
	case keyHome:
		m.scroll = 0
	case keyEnd:
		m.scroll = 1 << 30 // render cuts it
	default: // means nothing here
	}
	m.scroll = max(m.scroll, 0)
}

func (m *model) pressList(k key) {
	rows := m.rows()
	at := m.cursor(rows)
	switch k {
	case '/':
		m.typing = true
	case 's':
		m.order = (m.order + 1) % orders
	case keyEsc:
		m.filter = ""
	case keyUp, 'k':
		at--
	case keyDown, 'j':
		at++
	case keyPageUp:
		at -= m.page
	case keyPageDown, ' ':
		at += m.page
	case keyHome:
		at = 0
	case keyEnd:
		at = len(rows) - 1
	case keyEnter:
		if len(rows) > 0 {
			m.inspect, m.scroll = rows[at].Name, 0
		}
	default: // means nothing here
	}
	if len(rows) > 0 {
		m.selected = rows[max(min(at, len(rows)-1), 0)].Name
	}
}
