-- fairlock/info: read who holds the lock, and its waiters.
-- uses     lib/holder
-- KEYS[1]  lock_hash
-- KEYS[2]  queue
-- returns  {pttl number, fields {field text, value text}, waiters {id text}}: the fields of the
--          hash, and the ids in the queue
local lock_hash, queue = KEYS[1], KEYS[2]

local _, foreign_data = exclusive_holder_of(lock_hash)
if foreign_data then
  return foreign_data
end
local pttl, fields = redis.call('pttl', lock_hash), redis.call('hgetall', lock_hash)
return {pttl, fields, redis.call('lrange', queue, 0, -1)}
