-- lock/info: read who holds the lock.
-- uses     lib/holder
-- KEYS[1]  lock hash
-- KEYS[2]  fenced lock: token
-- returns  {pttl, the last token or '', field, value, field, value, ...}
local lock_hash, token_key = KEYS[1], KEYS[2]

local _, foreign_data = holder_of(lock_hash)
if foreign_data then
  return foreign_data
end
local answer = redis.call('hgetall', lock_hash)
table.insert(answer, 1, redis.call('pttl', lock_hash))
table.insert(answer, 2, token_key and redis.call('get', token_key) or '')
return answer
