package doctor

import (
	"context"
	"slices"
	"strings"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/acl"
)

// needed returns the commands without which nothing, or one of the kinds, can be acquired.
func needed() []string {
	list := []string{"evalsha", "publish", "time"}
	for _, command := range acl.Scripts {
		list = append(list, strings.Fields(command)[0])
	}
	return list
}

// helpful are the other commands that the library sends, and what does not work without them.
var helpful = []struct{ command, without string }{
	{"eval", "a server that has lost its scripts gets them by SCRIPT LOAD only"},
	{"script", "each script is sent as a whole once, by EVAL"},
	{"subscribe", "waiters are not woken: they look once a second"},
	{"psetex", "the names of clients are not shown"},
	{"wait", "WithReplicas does not work"},
}

// commands asks which commands the server has. An administrator may have renamed them
// (rename-command).
func commands(ctx context.Context, e *exam) ([]Result, error) {
	ctx, cancel := e.bounded(ctx)
	defer cancel()
	wanted := needed()
	for _, h := range helpful {
		wanted = append(wanted, h.command)
	}
	args := []any{"command", "info"}
	for _, command := range wanted {
		args = append(args, command)
	}
	reply, err := e.nodes[0].rdb.Do(ctx, args...).Slice()
	switch {
	case err != nil && !answered(err):
		return nil, err
	case err != nil:
		return warn("see the line primitives for what works", "the server does not tell which commands it has: %s",
			oneLine(err)), nil
	case len(reply) != len(wanted) || !slices.ContainsFunc(reply, func(v any) bool { return v != nil }):
		return warn("see the line primitives for what works", "the server does not tell which commands it has"), nil
	}
	var missing []string
	var results []Result
	for i, command := range wanted {
		switch {
		case reply[i] != nil:
		case i < len(needed()):
			missing = append(missing, strings.ToUpper(command))
		default:
			results = append(results, warn("remove rename-command from the server's configuration",
				"the server has no %s command: %s", strings.ToUpper(command), helpful[i-len(needed())].without)...)
		}
	}
	if lacks := func(name string) bool { return slices.Contains(missing, name) }; len(missing) > 0 {
		all := lacks("EVALSHA") || lacks("PUBLISH")
		e.unfit = e.unfit || all
		effect := "the kinds that use it cannot be acquired: see primitives"
		if all {
			effect = "nothing can be acquired"
		}
		results = append(fail("remove rename-command from the server's configuration, or use another server; some proxies "+
			"and "+
			"services do not have all commands", "the server has no %s command: %s", strings.Join(missing, ", "), effect),
			results...)
	}
	if len(results) == 0 {
		return ok("the server has all commands that the library needs"), nil
	}
	return results, nil
}

// flushes looks whether somebody has emptied the server since it started.
func flushes(ctx context.Context, n *node) ([]Result, error) {
	text, err := n.rdb.Info(ctx, "commandstats").Result()
	switch {
	case err != nil && !answered(err):
		return nil, err
	case err != nil:
		return unchecked(err), nil
	}
	var called []string
	for line := range strings.Lines(text) {
		name, stats, _ := strings.Cut(strings.TrimSpace(line), ":")
		command := strings.ToUpper(strings.TrimPrefix(name, "cmdstat_"))
		if command != "FLUSHALL" && command != "FLUSHDB" {
			continue
		}
		calls, _, _ := strings.Cut(strings.TrimPrefix(stats, "calls="), ",")
		called = append(called, command+" "+calls+" times")
	}
	if len(called) == 0 {
		return ok("nobody has emptied the server since it started"), nil
	}
	return warn("find out who did: each time, all locks were free while they were held. Take the right away from the "+
		"users "+
		"(-flushall -flushdb), and give tests a server of their own", "the server was emptied since it started: %s",
		strings.Join(called, ", ")), nil
}
