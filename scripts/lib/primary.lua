-- lib/primary: make sure that an answer without a write comes from a server that accepts writes.
--
-- Because of such an answer, a client goes on waiting or holding. But a former primary may still
-- answer. It is a read-only replica now, and its data is old. Redis refuses every write command
-- there (READONLY), even a command without an effect. It refuses write commands for other
-- reasons, too (MISCONF, NOREPLICAS), and then nobody can acquire or release. A script that would
-- answer without a write therefore deletes a field that no hash has. That changes nothing, and a
-- full Redis allows it. Other errors, such as that of a key of another type, are ignored here.
-- defines  require_primary(key): key is one of the KEYS of the script, and a hash or missing;
--          prefer_primary(key): the same in a script that users without that right may run. For
--          them it does nothing

local no_field = 'redlatch: no such field'
local refusals = {READONLY = true, MISCONF = true, NOREPLICAS = true}

local function require_primary(key)
  local answer = redis.pcall('hdel', key, no_field)
  if type(answer) == 'table' and refusals[string.match(answer.err, '^%-?(%u+)')] then
    redis.call('hdel', key, no_field) -- raises the same error
  end
end

local function prefer_primary(key)
  if not redis.acl_check_cmd or redis.acl_check_cmd('hdel', key, no_field) then
    require_primary(key)
  end
end
