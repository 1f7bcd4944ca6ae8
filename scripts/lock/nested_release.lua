-- lock/nested_release: set the count of a private hold when a nested one is released.
-- uses     lib/primary, lib/set_count, lib/shared_counts
-- KEYS[1]  lock_hash
-- KEYS[2]  shared_counts
-- ARGV[1]  field (text): of the owner
-- ARGV[2]  wanted (number): count, at least 1
-- ARGV[3]  default_ttl_ms (ms): if the lock hash has none
-- returns  released: 1, or 0 when this owner has no private count any more
local lock_hash, shared_counts = KEYS[1], KEYS[2]
local field, wanted, default_ttl_ms = ARGV[1], ARGV[2], ARGV[3]

local count = tonumber(redis.call('hget', lock_hash, field))
local shared = count and shared_count(shared_counts, field, count)
if not count or count == shared then -- all counts are of acquisitions with WithOwner
  require_primary(lock_hash)
  return 0
end
local ttl_ms = redis.call('pttl', lock_hash)
set_count(lock_hash, field, wanted + shared, ttl_ms < 0 and default_ttl_ms or ttl_ms)
return 1
