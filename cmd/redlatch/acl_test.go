package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redlatch/redlatch/internal/test/fixture"
	"github.com/redlatch/redlatch/internal/test/redistest"
	"github.com/redlatch/redlatch/primitives"
)

// rulesOf returns the rules in the output of redlatch acl.
func rulesOf(t *testing.T, user string, args ...string) []string {
	t.Helper()
	stdout, _ := exits(t, 0, append([]string{"acl", "--user", user}, args...)...)
	require.Equal(t, 1, strings.Count(stdout, "\n"), stdout)
	rules, found := strings.CutPrefix(strings.TrimSpace(stdout), "ACL SETUSER "+user+" ")
	require.True(t, found, stdout)
	return strings.Fields(rules)
}

// The printed rules match doc/operations.md, whose rules the tests of the library run with.
func TestACLPrintsTheDocumentedRules(t *testing.T) {
	t.Parallel()
	documented := slices.Concat(redistest.DocumentedRules(t, "locks")...)
	printed := rulesOf(t, "locks", "--prefix", "orders:")
	for _, rule := range documented {
		if rule != "reset" && rule != ">"+redistest.Password {
			require.Contains(t, printed, rule)
		}
	}
	for _, rule := range printed {
		withBrace := strings.Replace(rule, "orders:", "{orders:", 1) // of names that contain a brace
		require.True(t, slices.Contains(documented, rule) || slices.Contains(documented, withBrace) ||
			slices.Contains([]string{"resetkeys", "resetchannels", "-@all", "clearselectors"}, rule),
			"%s is not documented", rule)
	}
}

// Redis refuses other key patterns beside that for all keys, so the rules have none without a
// prefix.
func TestACLWithoutAPrefix(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	s.SetUser(t, "all", append([]string{">" + redistest.Password}, rulesOf(t, "all")...)...)
	c := client(t, s.As("all"))
	for _, name := range []string{"x", "{x}y"} {
		hold := fixture.Acquire(t, t.Context(), c.FairLock(name))
		fixture.Release(t, hold)
	}
}

func TestACLGrantsThePrefixAndNothingElse(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	s.SetUser(t, "shop", "reset", "on", ">"+redistest.Password, "allkeys", "allchannels", "+@all")
	// SetUser adds no password: the old one stays.
	s.SetUser(t, "shop", rulesOf(t, "shop", "--prefix", "a*b:")...)
	user := s.As("shop")
	for _, name := range []string{"x", "{x}y"} {
		c := client(t, user, primitives.WithPrefix("a*b:"))
		for kind, lock := range map[string]*primitives.Lock{
			"lock": c.Lock("1" + name), "fair": c.FairLock("2" + name), "fenced": c.FencedLock("3" + name),
			"read": c.RWLock("4" + name).Reader(), "write": c.RWLock("5" + name).Writer(),
		} {
			hold, err := lock.Acquire(t.Context())
			require.NoError(t, err, "%s %s", kind, name)
			require.NoError(t, hold.Release(t.Context()), "%s %s", kind, name)
		}
		pool := c.PermitExpirableSemaphore("6" + name)
		fixture.InitPool(t, pool, 1)
		hold := fixture.Acquire(t, t.Context(), pool)
		fixture.Release(t, hold)
	}
	_, err := client(t, user, primitives.WithPrefix("axb:")).Lock("x").TryAcquire(t.Context())
	require.ErrorContains(t, err, "NOPERM", "the star of the prefix is no wildcard")
	rdb := user.Client(t)
	defer rdb.Close()
	require.ErrorContains(t, rdb.FlushAll(t.Context()).Err(), "NOPERM", "earlier rights are taken away")
}

func TestACLOfACluster(t *testing.T) {
	t.Parallel()
	require.NotContains(t, rulesOf(t, "locks"), "+spublish")
	require.Contains(t, rulesOf(t, "locks", "--cluster"), "+spublish")
}

func TestACLRefusesWhatCannotBePasted(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"blank in the prefix":   {"--prefix", "a b"},
		"blank in the user":     {"--user", "a b"},
		"newline in the prefix": {"--prefix", "a\nb"},
		"quote in the user":     {"--user", `a"b`},
		"empty user":            {"--user", ""},
		"argument":              {"orders"},
	} {
		t.Run(name, func(t *testing.T) {
			stdout, _ := exits(t, exitUsage, append([]string{"acl"}, args...)...)
			require.Empty(t, stdout)
		})
	}
}

// A user with the rights of redlatch acl cannot list locks, nor find a kind by its keys. The
// message says what is missing, and what else to do.
func TestMessagesToAUserOfALimitedACL(t *testing.T) {
	t.Parallel()
	s := redistest.Fresh(t)
	s.SetUser(t, "shop", append([]string{">" + redistest.Password}, rulesOf(t, "shop", "--prefix", "a:")...)...)
	url := "redis://shop:" + redistest.Password + "@" + s.Addr()
	const otherName = "this user may not use the name: check --prefix"
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"ls":             {[]string{"ls"}, "ls needs +scan and +getrange"},
		"inspect":        {[]string{"inspect"}, "without --kind, inspect needs +getrange"},
		"inspect a pool": {[]string{"inspect", "--kind", "semaphore"}, "and for semaphores, permits and latches"},
		"semaphore":      {[]string{"semaphore info"}, "semaphore info needs +getrange"},
		"permits":        {[]string{"permits info"}, "permits info needs +getrange"},
		"another name":   {[]string{"inspect", "--kind", "lock", "--prefix", "b:"}, otherName},
		"run elsewhere":  {[]string{"run", "--nonblock", "--prefix", "b:"}, otherName},
	} {
		t.Run(name, func(t *testing.T) {
			args := append(strings.Fields(tt.args[0]), "--redis", url, "--prefix", "a:")
			args = append(append(args, tt.args[1:]...), "name")
			if tt.args[0] == "run" {
				args = append(args, "--", "true")
			}
			_, stderr := exits(t, exitUnreachable, args...)
			require.Contains(t, stderr, tt.want)
		})
	}
	// What the message names is enough.
	s.SetUser(t, "shop", "+scan", "+getrange")
	fixture.Acquire(t, t.Context(), client(t, s, primitives.WithPrefix("a:")).Lock("held"))
	stdout, _ := exits(t, 0, "ls", "--redis", url, "--prefix", "a:")
	require.Contains(t, stdout, "held")
	exits(t, 0, "inspect", "--redis", url, "--prefix", "a:", "held")
	// Somebody who may run no script lacks more than +getrange.
	s.SetUser(t, "shop", "-evalsha")
	_, _, stderr := redlatch(t.Context(), "inspect", "--redis", url, "--prefix", "a:", "held")
	require.Contains(t, stderr, "redlatch doctor names the rights")
}
