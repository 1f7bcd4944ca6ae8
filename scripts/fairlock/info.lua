-- fairlock/info: read who holds the lock, and its waiters.
-- uses     lib/holders, lib/primary
-- KEYS[1]  lock_hash
-- KEYS[2]  queue
-- returns  holders {waiters {id text}}: the holder, if there is one; the ids in the queue
local lock_hash, queue = KEYS[1], KEYS[2]

prefer_primary(lock_hash)
local pttl, holders, foreign_data = holders_of(lock_hash)
if foreign_data then
  return foreign_data
end
return {pttl, holders, redis.call('lrange', queue, 0, -1)}
