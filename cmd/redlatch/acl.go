package main

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"github.com/urfave/cli/v3"
)

// The command acl prints the rights that doc/operations.md lists, for any prefix. A test keeps the two equal,
// and the tests of the library run with exactly these rights.

func aclCommand() *cli.Command {
	return &cli.Command{
		Name:  "acl",
		Usage: "print the Redis rights that a service needs",
		Description: withExamples(
			"Prints one ACL SETUSER command, on one line, for redis-cli. It gives a user the rights that a service\n"+
				"needs for the names that begin with --prefix, and no others. It takes away what the user could do\n"+
				"before, and leaves its passwords. Set a password for a new user: ACL SETUSER USER >PASSWORD.\n"+
				"With --cluster, the rights for a cluster are included. It needs no Redis.",
			"redlatch acl --prefix orders: --user shop",
			"redlatch acl --prefix orders: --user shop --cluster"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "user", Value: "locks", Usage: "`USER` of Redis that the service logs in as"},
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if _, err := arguments(c); err != nil {
				return err
			}
			user, prefix := c.String("user"), c.String("prefix")
			if user == "" {
				return badUsage("--user is empty")
			}
			for flag, value := range map[string]string{"--user": user, "--prefix": prefix} {
				if strings.ContainsFunc(value, cannotBePasted) {
					return badUsage("%s %q: a blank, a quote or a control character cannot stand in a rule", flag, value)
				}
			}
			line := "ACL SETUSER " + user + " " + strings.Join(serviceRights(prefix, c.Bool("cluster")), " ")
			if c.Bool("json") {
				return printJSON(c, map[string]string{"command": line})
			}
			_, err := fmt.Fprintln(c.Root().Writer, line)
			return err
		},
	}
}

// cannotBePasted reports whether r would end or change a word of redis-cli.
func cannotBePasted(r rune) bool {
	return unicode.IsSpace(r) || unicode.IsControl(r) || r == '"' || r == '\''
}

// serviceRights returns the rules for a service whose names begin with prefix.
func serviceRights(prefix string, cluster bool) []string {
	rules := []string{"on", "resetkeys", "resetchannels", "-@all", "clearselectors"}
	prefix = globEscaper.Replace(prefix)
	rules = append(rules, "~"+prefix+"*", "~{"+prefix+"*")
	for _, key := range serviceKeys {
		rules = append(rules, both("~"+key, prefix)...)
	}
	for _, channel := range serviceChannels {
		rules = append(rules, both("~"+channel, prefix)...) // scripts get the channel as a key
		rules = append(rules, both("&"+channel, prefix)...)
	}
	rules = append(rules, "~redlatch_client:*", "&redlatch_holder:*")
	rules = append(rules, strings.Fields(serviceCommands)...)
	if cluster {
		rules = append(rules, strings.Fields(clusterCommands)...)
	}
	return rules
}

// globEscaper escapes the special characters of ACL patterns.
var globEscaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// both returns the two patterns for a key of all names with that prefix: keys put a name in braces, unless it
// contains an opening brace itself.
func both(key, prefix string) []string {
	if strings.Contains(prefix, "{") {
		return []string{key + prefix + "*"}
	}
	return []string{key + "{" + prefix + "*", key + prefix + "*"}
}

var (
	// serviceKeys are the prefixes of the keys besides the main key, which is the name itself.
	serviceKeys = []string{
		"redisson_unlock_latch:", "redisson_lock_token:", "redisson_lock_queue:", "redisson_lock_timeout:",
		"redlatch_lock_waiters:", "redlatch_lock_clients:", "redlatch_rwlock_claim:",
	}
	serviceChannels = []string{
		"redisson_lock__channel:", "redisson_rwlock:", "redisson_sc:", "redisson_countdownlatch__channel__",
	}
)

const (
	serviceCommands = "+evalsha +eval +script|load +publish +subscribe +unsubscribe +ping +time " +
		"+exists +del +type +pttl +pexpire +persist +get +set +incrby +decr +decrby " +
		"+hget +hset +hdel +hexists +hincrby +hkeys +hlen +hmget +hgetall +hscan " +
		"+lindex +llen +lpop +lrange +lrem +rpush " +
		"+zadd +zcard +zcount +zrange +zrangebyscore +zrem +zremrangebyscore +zscore " +
		"+psetex +getdel"
	clusterCommands = "+cluster|slots +cluster|shards +cluster|nodes +command " +
		"+pubsub|shardnumsub +spublish +ssubscribe +sunsubscribe"
)
