package redisutil

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// LacksRights reports whether Redis refused a command because of the user's ACL rules. Within scripts, Redis 7.0
// says so without NOPERM.
func LacksRights(err error) bool {
	refusal, ok := errors.AsType[redis.Error](err)
	if !ok {
		return false
	}
	text := refusal.Error()
	return strings.Contains(text, "NOPERM") || strings.Contains(text, "The user executing the script can't")
}
