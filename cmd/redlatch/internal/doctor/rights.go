package doctor

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/redlatch/redlatch/cmd/redlatch/internal/acl"
)

// asker is a script that executes nothing. It returns the indexes of the rights that the user does
// not have.
var asker = redis.NewScript(`local denied = {}
for i, commands in ipairs(cjson.decode(ARGV[1])) do
  local granted = false
  for _, command in ipairs(commands) do
    local known, allowed = pcall(redis.acl_check_cmd, unpack(command))
    granted = granted or not known or allowed
  end
  if not granted then
    table.insert(denied, i - 1)
  end
end
return denied`)

// rights asks Redis which rights this user lacks. It tries nothing.
func rights(ctx context.Context, e *exam) ([]Result, error) {
	if e.unfit {
		return skipped()
	}
	ctx, cancel := e.bounded(ctx)
	defer cancel()
	wanted := append(acl.OnNames(e.Prefix, e.name), acl.WithoutKeys(e.Prefix, e.name, e.cluster)...)
	denied, err := e.denied(ctx, wanted)
	if err == nil {
		// A command right can only be asked for with a key that the user may use.
		usable := func(r acl.Right) bool {
			same := func(other acl.Right) bool { return slices.Equal(r.Commands[0], other.Commands[0]) }
			return r.Commands[0][0] == "set" && !slices.ContainsFunc(denied, same)
		}
		if i := slices.IndexFunc(wanted, usable); i >= 0 {
			var more []acl.Right
			more, err = e.denied(ctx, acl.OnKey(wanted[i].Commands[0][1]))
			denied = append(denied, more...)
		}
	}
	switch {
	case err == nil:
	case !answered(err):
		return nil, err
	case strings.Contains(err.Error(), "acl_check_cmd") || strings.Contains(err.Error(), "cjson"):
		return warn("see the line primitives for what works", "the server cannot tell which rights this user has"), nil
	default:
		return unchecked(err), nil
	}
	user := e.user(ctx)
	if len(denied) == 0 {
		return ok("%s has all rights", user), nil
	}
	var results []Result
	required, optional := describe(narrowed(denied))
	if len(required.grants) > 0 {
		fix := e.grantFix(user, required.grants)
		if e.Prefix != "" && slices.Contains(required.grants, "~"+e.Prefix+"*") {
			fix += "; or try names that this user may use: --prefix"
		}
		results = append(results, fail(fix, "%s lacks %s: acquisitions fail", user, strings.Join(required.grants, " "))...)
	}
	if len(optional.grants) > 0 {
		results = append(results, warn(e.grantFix(user, optional.grants),
			"%s lacks %s: %s", user, strings.Join(optional.grants, " "), strings.Join(optional.effects, "; "))...)
	}
	return results, nil
}

// narrowed takes out of the grants what the user has: one that may publish to a channel, but not
// subscribe to it, lacks the command and not the channel.
func narrowed(denied []acl.Right) []acl.Right {
	narrow := slices.Clone(denied)
	for i, r := range denied {
		if !strings.Contains(r.Grant, "&") {
			continue
		}
		command, channel := r.Commands[0][0], r.Commands[0][1]
		other := func(d acl.Right) bool {
			return strings.Contains(d.Grant, "&") && d.Commands[0][0] != command && d.Commands[0][1] == channel
		}
		if !slices.ContainsFunc(denied, other) {
			narrow[i].Grant = "+" + command
		}
	}
	return narrow
}

// grantFix says how to grant these rights. Without a prefix, rights to names would open the whole
// server to whoever pastes them.
func (e *exam) grantFix(user string, grants []string) string {
	if e.Prefix == "" && (slices.Contains(grants, "~*") || slices.Contains(grants, "~{*")) {
		return "try names that this user may use: --prefix P; redlatch acl --prefix P --user " + user + " prints its rights"
	}
	return "ACL SETUSER " + user + " " + strings.Join(grants, " ")
}

// missing is a list of rights, each once.
type missing struct{ grants, effects []string }

func describe(denied []acl.Right) (required, optional missing) {
	add := func(list *[]string, all ...string) {
		for _, s := range all {
			if !slices.Contains(*list, s) {
				*list = append(*list, s)
			}
		}
	}
	for _, r := range denied {
		if r.Without == "" {
			add(&required.grants, strings.Fields(r.Grant)...)
			continue
		}
		add(&optional.grants, strings.Fields(r.Grant)...)
		add(&optional.effects, r.Without)
	}
	return required, optional
}

// denied returns the wanted rights that the user does not have.
func (e *exam) denied(ctx context.Context, wanted []acl.Right) ([]acl.Right, error) {
	commands := make([][][]string, len(wanted))
	for i, r := range wanted {
		commands[i] = r.Commands
	}
	text, err := json.Marshal(commands)
	if err != nil {
		return nil, err
	}
	answer, err := asker.Run(ctx, e.Redis, nil, text).Int64Slice()
	if err != nil {
		return nil, err
	}
	var lacking []acl.Right
	for _, i := range answer {
		lacking = append(lacking, wanted[i])
	}
	return lacking, nil
}

// user returns the name of the user.
func (e *exam) user(ctx context.Context) string {
	if name, err := e.Redis.Do(ctx, "acl", "whoami").Text(); err == nil {
		return name
	}
	if name := e.nodes[0].rdb.Options().Username; name != "" {
		return name
	}
	return "default"
}
