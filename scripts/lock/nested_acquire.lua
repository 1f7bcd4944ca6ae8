-- lock/nested_acquire: set the count of a private hold when another one nests in it.
-- uses     lib/extend, lib/shared_counts
-- KEYS[1]  lock hash
-- KEYS[2]  shared counts
-- ARGV[1]  field of the owner
-- ARGV[2]  wanted count
-- ARGV[3]  ttl, ms; a longer one stays
-- returns  1, or 0 when this owner does not hold the lock any more
local lock_hash, shared_counts = KEYS[1], KEYS[2]
local field, wanted, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

local count = tonumber(redis.call('hget', lock_hash, field))
if not count then
  return 0
end
-- Set the count instead of adding to it: a copy of this request then changes nothing.
redis.call('hset', lock_hash, field, wanted + shared_count(shared_counts, field, count))
extend(lock_hash, ttl_ms)
return 1
