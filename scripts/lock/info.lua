-- lock/info: who holds the lock.
-- KEYS[1]  lock hash
-- returns  {pttl, field, value, field, value, ...}
local answer = redis.call('hgetall', KEYS[1])
table.insert(answer, 1, redis.call('pttl', KEYS[1]))
return answer
