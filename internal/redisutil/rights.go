package redisutil

import (
	"errors"
	"regexp"
	"strings"

	"github.com/redis/go-redis/v9"
)

// LacksRights reports whether Redis refused a command because of the user's ACL rules. Within
// scripts, Redis 7.0 says so without NOPERM.
func LacksRights(err error) bool {
	refusal, ok := errors.AsType[redis.Error](err)
	if !ok {
		return false
	}
	text := refusal.Error()
	return strings.Contains(text, "NOPERM") || strings.Contains(text, "The user executing the script can't")
}

// loginWords match the answers of servers and proxies if a password is wrong or missing: NOAUTH,
// WRONGPASS, "invalid password", "invalid username-password pair", "Client sent AUTH, but no
// password is set", "unauthenticated".
var loginWords = regexp.MustCompile(`(?i)noauth|wrongpass|password|\bauth\b|authenticat`)

// RefusesLogin reports whether the server refused a command, or a connection, because a password is
// missing or wrong.
func RefusesLogin(err error) bool {
	refusal, ok := errors.AsType[redis.Error](err)
	return ok && loginWords.MatchString(refusal.Error())
}
