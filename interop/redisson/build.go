package redisson

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/interop/driver"
)

// Version is a release of Redisson.
type Version string

// The newest release of each major version.
const (
	Redisson4 Version = "4.7.0" // the default, also selected by ""
	Redisson3 Version = "3.52.0"
)

// ErrMissing means that java or mvn is not installed.
var ErrMissing = errors.New("not installed")

// Build returns the directory with the driver's jar files. The first call builds them with Maven.
// They are cached in os.UserCacheDir, by the hash of the driver's sources. Concurrent builds of
// several test binaries wait for each other. If a build is necessary and mvn is missing, the test
// ends as described at [redistest.Missing].
func Build(t testing.TB, version Version) string {
	t.Helper()
	needed(t)
	dir, err := build(t.Context(), version)
	requireBuilt(t, err)
	return dir
}

// needed skips t unless tests with Java are wanted: all tests run, or $REDLATCH_REQUIRE contains
// redisson. They take minutes.
func needed(t testing.TB) {
	t.Helper()
	if !redistest.Required(t, redistest.NeedRedisson) {
		redistest.NeedFull(t, "Java")
	}
}

// requireBuilt ends the test if err is not nil.
func requireBuilt(t testing.TB, err error) {
	t.Helper()
	switch {
	case errors.Is(err, ErrMissing):
		redistest.Missing(t, redistest.NeedRedisson, err.Error())
	case err != nil:
		t.Fatal(err)
	}
}

func build(ctx context.Context, version Version) (string, error) {
	if version == "" {
		version = Redisson4
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	hash, err := hashOf(driver.Sources)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, hash+"-redisson-"+string(version))
	if isDir(dir) {
		return dir, nil
	}
	unlock, err := LockMaven()
	if err != nil {
		return "", err
	}
	defer unlock()
	// Another process may have finished the build while this one waited for the lock.
	if isDir(dir) {
		return dir, nil
	}
	return dir, buildInto(ctx, dir, version)
}

// LockMaven waits until no other test binary runs Maven, whose local repository does not support
// concurrent builds.
func LockMaven() (unlock func(), err error) {
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("redisson: %w", err)
	}
	return lockFile(filepath.Join(cache, "lock"))
}

func cacheDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("redisson: %w", err)
	}
	return filepath.Join(cache, "redlatch-interop"), nil
}

// buildInto builds in a temporary directory and renames the result to dir, so dir is either
// complete or does not exist.
func buildInto(ctx context.Context, dir string, version Version) error {
	mvn, err := lookPath("mvn")
	if err != nil {
		return err
	}
	project, err := os.MkdirTemp(filepath.Dir(dir), "build-")
	if err != nil {
		return fmt.Errorf("redisson: %w", err)
	}
	defer func() { _ = os.RemoveAll(project) }()
	if err := os.CopyFS(project, driver.Sources); err != nil {
		return fmt.Errorf("redisson: %w", err)
	}
	cmd := exec.CommandContext(ctx, mvn, "--batch-mode", "--quiet", "--no-transfer-progress",
		"-Dredisson.version="+string(version), "package")
	cmd.Dir = project
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("redisson: %v: %w\n%s", cmd.Args, err, out)
	}
	if err := os.Rename(filepath.Join(project, "target", "lib"), dir); err != nil {
		return fmt.Errorf("redisson: %w", err)
	}
	return nil
}

// hashOf returns a hash of the names and contents of all files.
func hashOf(sources fs.FS) (string, error) {
	hash := sha256.New()
	err := fs.WalkDir(sources, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(sources, path)
		fmt.Fprintf(hash, "%s %d\n%s", path, len(content), content)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("redisson: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("redisson: %s: %w", name, ErrMissing)
	}
	return path, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
