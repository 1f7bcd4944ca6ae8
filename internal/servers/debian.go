package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The families of servers, as in the names of their packages.
const (
	redis  = "redis"
	valkey = "valkey"
	redict = "redict"
)

// debian is a Debian package that contains a server.
type debian struct {
	family string
	suites []string // the release of the package, then those that have its libraries
}

// packages lists the packages, the newest of each family first.
var packages = []debian{
	{redis, []string{"experimental", "sid"}},
	{redis, []string{"sid"}},
	{redis, []string{"trixie"}},
	{valkey, []string{"sid"}},
	{valkey, []string{"trixie"}},
	{valkey, []string{"bookworm-backports", "bookworm"}},
	{redict, []string{"bookworm-backports", "bookworm"}}, // a fork of Redis 7.2.4
}

func (p debian) name() string { return p.family + "-tools" }

func (p debian) String() string { return "Debian " + p.suites[0] + ", " + p.name() }

// keyring has the keys with which Debian signs its releases.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// archive downloads packages of Debian.
type archive struct {
	cache  string
	mirror string // found by the first call if empty

	updated map[string]error // by release: the result of apt-get update
}

// server returns the server of a package. It downloads the package and its dependencies unless the
// cache has that version. If the lists of packages cannot be updated, the last lists are used.
func (a *archive) server(ctx context.Context, p debian) (*server, error) {
	apt, err := a.open(ctx, p.suites)
	if err != nil {
		return nil, err
	}
	version, err := apt.version(ctx, p.name())
	if err != nil {
		return nil, err
	}
	// The loader separates directories by colons.
	base := strings.ReplaceAll(fmt.Sprintf("%s_%s_%s", p.suites[0], p.name(), version), ":", "-")
	dir := filepath.Join(a.cache, base)
	script := filepath.Join(dir, p.family+"-server")
	if _, err := os.Stat(script); err != nil {
		if err := apt.unpack(ctx, p.name(), dir); err != nil {
			return nil, err
		}
		// The script is written last, so a directory with a script is complete.
		if err := writeScript(script, filepath.Join(dir, "root")); err != nil {
			return nil, err
		}
	}
	return identify(ctx, script, fmt.Sprintf("%s %s", p, version))
}

// open returns a private apt directory for a release, with current lists of packages.
func (a *archive) open(ctx context.Context, suites []string) (*aptDir, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, fmt.Errorf("%w; unpack images such as redis:7.2, redis:7.4, redis:8, valkey/valkey:8 and "+
			"valkey/valkey:9 and name them in %s (see -help)", err, envServers)
	}
	if _, err := os.Stat(keyring); err != nil {
		return nil, fmt.Errorf("%w; install the package debian-archive-keyring", err)
	}
	apt := &aptDir{dir: filepath.Join(a.cache, "apt-"+suites[0]), release: suites[0]}
	if err, known := a.updated[suites[0]]; known {
		return apt, err
	}
	if a.updated == nil {
		a.updated = map[string]error{}
	}
	err := a.update(ctx, apt, suites)
	a.updated[suites[0]] = err
	return apt, err
}

func (a *archive) update(ctx context.Context, apt *aptDir, suites []string) error {
	if a.mirror == "" {
		var err error
		if a.mirror, err = findMirror(ctx); err != nil {
			return err
		}
	}
	var sources strings.Builder
	for _, suite := range suites {
		fmt.Fprintf(&sources, "deb [signed-by=%s] %s %s main\n", keyring, a.mirror, suite)
	}
	if err := apt.create(sources.String()); err != nil {
		return err
	}
	_, err := apt.run(ctx, "apt-get", "-q", "--error-on=any", "update")
	if err == nil {
		return nil
	}
	if lists, _ := filepath.Glob(filepath.Join(apt.dir, "var/lib/apt/lists/*_Packages*")); len(lists) < len(suites) {
		return err
	}
	fmt.Printf("Debian %s: the lists of packages are old: %v\n", suites[0], err)
	return nil
}

// findMirror returns the URI of the Debian archive that apt uses on this machine.
func findMirror(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)").Output()
	if err != nil {
		return "", fmt.Errorf("apt-get indextargets: %w", err)
	}
	for uri := range strings.Lines(string(out)) {
		if uri = strings.TrimRight(strings.TrimSpace(uri), "/"); strings.HasSuffix(uri, "/debian") {
			return uri, nil
		}
	}
	return "", errors.New("apt uses no Debian archive on this machine; name one with -mirror")
}

// aptDir is a private directory of apt's: apt uses neither the sources nor the packages of this
// machine, and installs nothing.
type aptDir struct {
	dir     string
	release string // whose packages are preferred; apt would not take those of experimental by itself
}

func (a *aptDir) create(sources string) error {
	for _, dir := range []string{
		"etc/apt/apt.conf.d", "etc/apt/preferences.d", "etc/apt/sources.list.d", "etc/apt/trusted.gpg.d",
		"var/lib/apt/lists/partial", "var/cache/apt/archives/partial",
	} {
		if err := os.MkdirAll(filepath.Join(a.dir, dir), 0o755); err != nil {
			return err
		}
	}
	// An empty status file means that no package is installed, so apt downloads all dependencies.
	return errors.Join(
		os.WriteFile(filepath.Join(a.dir, "status"), nil, 0o600),
		os.WriteFile(filepath.Join(a.dir, "etc/apt/sources.list"), []byte(sources), 0o600),
	)
}

// run runs one of apt's commands and returns its output.
func (a *aptDir) run(ctx context.Context, command string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command, append([]string{
		"-o", "Dir=" + a.dir,
		"-o", "Dir::State::status=" + filepath.Join(a.dir, "status"),
		"-o", "APT::Sandbox::User=root",
		"-o", "APT::Default-Release=" + a.release,
		"-o", "Acquire::Languages=none",
		"-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
	}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", command, strings.Join(args, " "), err, lastLine(out))
	}
	return string(out), nil
}

// version returns the version of a package that apt would install.
func (a *aptDir) version(ctx context.Context, name string) (string, error) {
	out, err := a.run(ctx, "apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if version, found := strings.CutPrefix(line, "Version: "); found {
			return strings.TrimSpace(version), nil
		}
	}
	return "", fmt.Errorf("apt-cache show %s prints no version", name)
}

// unpack downloads a package with its dependencies and unpacks them into dir/root.
func (a *aptDir) unpack(ctx context.Context, name, dir string) error {
	fmt.Printf("downloading %s into %s\n", name, dir)
	archives := filepath.Join(dir, "archives")
	if err := os.MkdirAll(filepath.Join(archives, "partial"), 0o755); err != nil {
		return err
	}
	_, err := a.run(ctx, "apt-get", "-q", "-y", "--no-install-recommends", "--download-only",
		"-o", "Dir::Cache::archives="+archives, "install", name)
	if err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range debs {
		cmd := exec.CommandContext(ctx, "dpkg", "-x", deb, filepath.Join(dir, "root"))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", cmd.Args, err, lastLine(out))
		}
	}
	return os.RemoveAll(archives)
}
