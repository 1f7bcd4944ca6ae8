package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// server is a server binary, or a script that runs one.
type server struct {
	name    string // Redis, Valkey or Redict
	version string
	from    string
	path    string
}

func (s *server) String() string { return s.name + " " + s.version }

// versionLine is the beginning of what redis-server --version prints.
var versionLine = regexp.MustCompile(`^(\w+) server v=(\S+)`)

// identify asks a server binary for its version.
func identify(ctx context.Context, path, from string) (*server, error) {
	out, err := exec.CommandContext(ctx, path, "--version").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w: %s", path, err, lastLine(out))
	}
	found := versionLine.FindStringSubmatch(string(out))
	if found == nil {
		return nil, fmt.Errorf("%s is not a Redis server: --version prints %q", path, lastLine(out))
	}
	return &server{name: found[1], version: found[2], from: from, path: path}, nil
}

// writeScript writes a script that runs the server in a directory of unpacked packages, or of the
// files of an image, with the loader and the libraries in that directory. The server keeps the
// script's process id, on which package redistest relies.
func writeScript(script, root string) error {
	binary, name, err := findBinary(root)
	if err != nil {
		return err
	}
	loader, err := first(root, "usr/lib/*/ld-linux-*.so.*", "lib/*/ld-linux-*.so.*", "lib64/ld-linux-*.so.*")
	if err != nil {
		return err
	}
	var libraries []string
	for _, pattern := range []string{"usr/lib/*-linux-gnu", "lib/*-linux-gnu", "usr/local/lib"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern))
		libraries = append(libraries, found...)
	}
	text := fmt.Sprintf("#!/bin/sh\nexec %s --library-path %s --argv0 %s %s \"$@\"\n",
		quote(loader), quote(strings.Join(libraries, ":")), name, quote(binary))
	return os.WriteFile(script, []byte(text), 0o755)
}

// findBinary returns the server binary in root, and the name to run it by. In Debian's packages the
// server and the tool that checks dump files are one binary.
func findBinary(root string) (path, name string, err error) {
	for _, family := range []string{valkey, redis, redict} {
		name := family + "-server"
		path, err := first(root, "usr/local/bin/"+name, "usr/bin/"+family+"-check-rdb", "usr/bin/"+name)
		if err == nil {
			return path, name, nil
		}
	}
	return "", "", fmt.Errorf("%s contains no server", root)
}

// first returns the first file in root that matches one of the patterns.
func first(root string, patterns ...string) (string, error) {
	for _, pattern := range patterns {
		if found, _ := filepath.Glob(filepath.Join(root, pattern)); len(found) > 0 {
			return found[0], nil
		}
	}
	return "", fmt.Errorf("%s does not contain %s: %w", root, strings.Join(patterns, " or "), fs.ErrNotExist)
}

// quote quotes a word for the shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}
