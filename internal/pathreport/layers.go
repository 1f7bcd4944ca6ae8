package main

import (
	"cmp"
	"go/token"
	"go/types"
	"maps"
	"path"
	"path/filepath"
	"slices"
)

// layers lists the files of the measured packages, from general to particular. A name with
// a folder, such as "engine/hold.go", applies to that folder only and takes precedence. The table
// may name files that do not exist. The report names files that the table lacks.
var layers = [][]string{
	// Values without behavior.
	0: {"names.go", "info.go", "errors.go", "loss.go", "event.go", "options.go", "ids.go", "doc.go", "presence/tag.go"},
	// The client's machinery.
	1: {
		"core.go", "background.go", "contact.go", "holdlist.go", "wire.go", "client.go", "publishing.go", "replicas.go",
		"duty/lanes.go", "presence/presence.go", "presence/notices.go", "presence/asking.go",
		"presence/lingering.go",
	},
	// Code shared by all kinds.
	2: {
		"driver.go", "handle.go", "renewal.go", "takeover.go",
		"waitq/event.go", "waitq/line.go", "waitq/queue.go", "waitq/turn.go", "waitq/waiter.go",
	},
	// One acquisition.
	3: {
		"acquire.go", "wait.go", "waitqueue.go", "poll.go", "waitline.go", "handoff.go", "cohort.go", "ownership.go",
		"lease.go", "forgotten.go", "nest.go", "hold.go", "context.go", "log.go", "member.go", "token.go", "linger.go",
		"minhold.go", "shorten.go", "reach.go",
	},
	// The kinds.
	4: {
		"lock.go", "mutex.go", "fairlock.go", "fairqueue.go", "rwlock.go", "semaphore.go",
		"permitsemaphore.go", "latch.go",
	},
	// Joint locks.
	5: {
		"joint.go", "multilock.go", "redlock.go", "striped.go",
		"joint/doc.go", "joint/fanout.go", "joint/lock.go", "joint/ownership.go", "joint/retake.go", "joint/multi.go",
		"joint/whole.go",
		"joint/red.go", "joint/asked.go", "joint/reserve.go",
	},
	6: {"locker.go", "keyed.go", "locks.go", "inspect.go"},
}

// layerOf returns the layer of a file, such as "engine/hold.go".
func layerOf(file string) (layer int, known bool) {
	for _, name := range []string{file, path.Base(file)} {
		for i, names := range layers {
			if slices.Contains(names, name) {
				return i, true
			}
		}
	}
	return 0, false
}

type layerFigures struct {
	Pairs   int         `json:"pairs"`   // pairs of files in which the first refers to the second
	Against []reference `json:"against"` // pairs that point from a general layer to a particular one
	Unknown []string    `json:"unknown"` // files without a layer
}

// reference is the use of a file's declarations by another file.
type reference struct {
	From string   `json:"from"`
	To   string   `json:"to"`
	Uses []string `json:"uses"` // identifiers
}

func measureLayers(m *module) layerFigures {
	f := layerFigures{Against: []reference{}, Unknown: []string{}}
	uses := map[[2]string]map[string]bool{}
	designed := m.designed()
	for _, p := range designed {
		for name := range p.files {
			if _, known := layerOf(path.Join(path.Base(p.name), name)); !known {
				f.Unknown = append(f.Unknown, path.Join(p.name, name))
			}
		}
		for ident, used := range p.info.Uses {
			if !declared(used) || !slices.ContainsFunc(designed, func(p *pkg) bool { return p.types == used.Pkg() }) {
				continue
			}
			pair := [2]string{m.file(ident.Pos()), m.file(used.Pos())}
			if pair[0] == pair[1] {
				continue
			}
			if uses[pair] == nil {
				uses[pair] = map[string]bool{}
			}
			uses[pair][used.Name()] = true
		}
	}
	f.Pairs = len(uses)
	for pair, names := range uses {
		from, known := layerOf(pair[0])
		to, toKnown := layerOf(pair[1])
		if known && toKnown && from < to && path.Dir(pair[0]) == path.Dir(pair[1]) {
			f.Against = append(f.Against, reference{pair[0], pair[1], slices.Sorted(maps.Keys(names))})
		}
	}
	slices.Sort(f.Unknown)
	slices.SortFunc(f.Against, func(a, b reference) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	return f
}

// declared reports whether obj is a package-level identifier or a method.
func declared(obj types.Object) bool {
	if fn, ok := obj.(*types.Func); ok && fn.Signature().Recv() != nil {
		return true
	}
	return obj.Pkg() != nil && obj.Parent() == obj.Pkg().Scope()
}

// file returns the file that contains pos, such as "engine/hold.go".
func (m *module) file(pos token.Pos) string {
	dir, name := filepath.Split(m.fset.Position(pos).Filename)
	return path.Join(filepath.Base(dir), name)
}
