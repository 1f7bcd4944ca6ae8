-- lock/info: read who holds the lock.
-- KEYS[1]  lock hash
-- returns  {pttl, field, value, field, value, ...}
local lock_hash = KEYS[1]

local answer = redis.call('hgetall', lock_hash)
table.insert(answer, 1, redis.call('pttl', lock_hash))
return answer
