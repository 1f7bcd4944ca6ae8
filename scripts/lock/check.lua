-- lock/check: ask whether the owner still holds the lock.
-- KEYS[1]  lock hash
-- ARGV[1]  owner id
-- returns  1 or 0
local lock_hash, owner = KEYS[1], ARGV[1]

return redis.call('hexists', lock_hash, owner)
