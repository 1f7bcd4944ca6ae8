-- lock/info: read who holds the lock.
-- uses     lib/holder
-- KEYS[1]  lock_hash
-- KEYS[2]  token_key (optional): fencing token, for a fenced lock only
-- returns  {pttl number, token text, fields (field text, value text)...}: the last token or ''; the
--          fields of the hash
local lock_hash, token_key = KEYS[1], KEYS[2]

local _, foreign_data = exclusive_holder_of(lock_hash)
if foreign_data then
  return foreign_data
end
local answer = redis.call('hgetall', lock_hash)
table.insert(answer, 1, redis.call('pttl', lock_hash))
table.insert(answer, 2, token_key and redis.call('get', token_key) or '')
return answer
