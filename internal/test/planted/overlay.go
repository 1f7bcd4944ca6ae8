package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// overlay maps files of the tree to changed contents, for the flag -overlay of the go command. The
// tree itself is never changed.
type overlay struct {
	root  string
	files map[string]string // by path from the root
}

// plant adds a defect. It changes nothing if one of its texts does not occur exactly once.
func (o *overlay) plant(d Defect) error {
	changed := maps.Clone(o.files)
	if changed == nil {
		changed = map[string]string{}
	}
	for _, e := range d.Edits {
		file, text, err := o.locate(changed, e)
		if err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
		changed[file] = strings.Replace(text, e.Old, e.New, 1)
	}
	o.files = changed
	return nil
}

// locate returns the file with the text of an edit, and its content. If the text has moved, it
// looks through the whole tree.
func (o *overlay) locate(changed map[string]string, e Edit) (file, text string, err error) {
	n := 0
	if text, err = o.read(changed, e.File); err == nil {
		n = strings.Count(text, e.Old)
	}
	if n == 1 {
		return e.File, text, nil
	}
	if n == 0 {
		sources, err := o.sources()
		if err != nil {
			return "", "", err
		}
		for _, other := range sources {
			content, err := o.read(changed, other)
			if err != nil {
				return "", "", err
			}
			if found := strings.Count(content, e.Old); found > 0 {
				file, text, n = other, content, n+found
			}
		}
	}
	if n != 1 {
		return "", "", fmt.Errorf("%s, or else the tree, has this text %d times, and should have it once:\n%s",
			e.File, n, e.Old)
	}
	return file, text, nil
}

func (o *overlay) read(changed map[string]string, file string) (string, error) {
	if text, ok := changed[file]; ok {
		return text, nil
	}
	content, err := os.ReadFile(filepath.Join(o.root, file))
	return string(content), err
}

// catalogueDir has the texts of all defects. A defect whose text has changed in the library must
// not be planted there.
var catalogueDir = filepath.Join("internal", "test", "planted")

// sources are the files of the library in which defects may be planted.
func (o *overlay) sources() (out []string, err error) {
	for _, dir := range []string{"primitives", "scripts", "pubsub", "watchdog", "internal"} {
		err := filepath.WalkDir(filepath.Join(o.root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			file, err := filepath.Rel(o.root, path)
			source := strings.HasSuffix(file, ".lua") || strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go")
			if err == nil && source && !entry.IsDir() && !strings.HasPrefix(file, catalogueDir) {
				out = append(out, file)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// write writes the changed files and the description that the go command reads, and returns the
// path of that.
func (o *overlay) write(dir string) (string, error) {
	replace := map[string]string{}
	for file, text := range o.files {
		copied := filepath.Join(dir, strconv.Itoa(len(replace))+filepath.Ext(file))
		if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(o.root, file)] = copied
	}
	description, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, description, 0o600)
}
