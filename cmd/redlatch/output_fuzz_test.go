package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redlatch/redlatch/primitives"
)

// requireHarmless checks that a text has so many lines, and nothing that a terminal would obey.
func requireHarmless(t *testing.T, text string, lines int) {
	t.Helper()
	if !utf8.ValidString(text) || strings.Count(text, "\n") != lines {
		t.Fatalf("%d lines in %q", lines, text)
	}
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Fatalf("%q in %q", r, text)
		}
	}
}

// FuzzOutput prints names, ids and error messages of any content: they come from whoever uses the
// Redis.
func FuzzOutput(f *testing.F) {
	for _, s := range []string{
		"orders:42", "", "a b", "\x1b]0;title\a", "a\r\nb", "a\tb", "\x9b31m", "\xff\xff", "\u202e", "\u2028",
		"\u0085", `"`, "日本",
	} {
		f.Add(s, s, s, 1)
		f.Add("x", s, "y", -1)
	}
	f.Fuzz(func(t *testing.T, name, id, client string, n int) {
		info := primitives.Info{
			Name: name, TTL: time.Duration(n), Permits: n, Available: n, Token: int64(n), Waiters: []string{id},
			Holders: []primitives.Holder{{ID: id, Client: client, Count: n, TTL: time.Duration(n)}},
		}
		for _, kind := range []string{kindFair, kindPermits, kindSemaphore} {
			e := newEntry(info, kind)
			var table, facts strings.Builder
			printTable(&table, []*entry{e})
			rows := 1 + len(e.Holders)
			if e.Available != nil {
				rows++
			}
			requireHarmless(t, table.String(), rows)
			printEntry(&facts, e)
			requireHarmless(t, facts.String(), strings.Count(facts.String(), "\n"))
			if holders := strings.Count(facts.String(), "\nholder"); holders != len(e.Holders) {
				t.Fatalf("%d holders in %q", holders, facts.String())
			}
		}
		var message strings.Builder
		finish(context.Background(), errors.New(name+id), false, &message)
		requireHarmless(t, message.String(), 1)
	})
}

// FuzzArguments gives flags any value. A bad one is bad use; with others the command finds no
// Redis.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{"", "0", "-1", "1ns", "-1s", "1s", "1e9h", "9223372036854775807ns", "2562048h", "x",
		"\x00", "NaN"} {
		for command := range byte(4) {
			f.Add(command, s)
		}
	}
	f.Fuzz(func(t *testing.T, command byte, value string) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if strings.HasPrefix(value, "-") {
			value = " " + value
		}
		const nobody = "redis://127.0.0.1:1"
		args := [][]string{
			{"run", "--redis", nobody, "--wait=1ms", "--lease=" + value, "x", "--", "true"},
			{"run", "--redis", nobody, "--wait=1ms", "--watchdog=" + value, "--max-hold=" + value, "x", "--", "true"},
			{"run", "--redis", nobody, "--wait=1ms", "--permits=" + value, "--kind=permits", "x", "--", "true"},
			{"release", "--redis", nobody, "--timeout=100ms", "x", "--id=" + value},
		}[int(command)%4]
		code, _, stderr := redlatch(ctx, args...)
		switch code {
		case exitFailed, exitUsage, exitUnreachable, exitNotAcquired:
		default:
			t.Fatalf("%q: exit code %d: %s", args, code, stderr)
		}
		requireHarmless(t, stderr, strings.Count(stderr, "\n"))
	})
}
