package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// overlay maps files of the tree to changed contents, for the flag -overlay of the go command. The tree itself
// is never changed.
type overlay struct {
	root  string
	files map[string]string // by path from the root
}

// plant adds a defect. It changes nothing if one of its texts does not occur exactly once.
func (o *overlay) plant(d Defect) error {
	changed := map[string]string{}
	for _, e := range d.Edits {
		text, ok := changed[e.File]
		if !ok {
			text, ok = o.files[e.File]
		}
		if !ok {
			content, err := os.ReadFile(filepath.Join(o.root, e.File))
			if err != nil {
				return fmt.Errorf("%s: %w", d.Name, err)
			}
			text = string(content)
		}
		if n := strings.Count(text, e.Old); n != 1 {
			return fmt.Errorf("%s: %s has this text %d times, and should have it once:\n%s", d.Name, e.File, n, e.Old)
		}
		changed[e.File] = strings.Replace(text, e.Old, e.New, 1)
	}
	if o.files == nil {
		o.files = map[string]string{}
	}
	for file, text := range changed {
		o.files[file] = text
	}
	return nil
}

// write writes the changed files and the description that the go command reads, and returns the path of that.
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
