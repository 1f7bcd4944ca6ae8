-- lock/nested_acquire: set the count of a private hold when another one nests in it.
-- uses     lib/extend, lib/primary, lib/shared_counts
-- KEYS[1]  lock_hash
-- KEYS[2]  shared_counts
-- KEYS[3]  memory_key (optional): of this owner's release, for a wanted count of 1; exists if a
--          late copy must not count
-- ARGV[1]  field (text): of the owner
-- ARGV[2]  wanted (number): count; 1 confirms an acquisition that was granted again
-- ARGV[3]  ttl_ms (ms): a longer one stays
-- returns  number: 1, or 0 when this owner has no private count any more
local lock_hash, shared_counts, memory_key = KEYS[1], KEYS[2], KEYS[3]
local field, wanted, ttl_ms = ARGV[1], ARGV[2], ARGV[3]

local count = tonumber(redis.call('hget', lock_hash, field))
local shared = count and shared_count(shared_counts, field, count)
-- If all counts belong to acquisitions with WithOwner, this is a late copy that comes after the
-- owner's release. But a wanted count of 1 belongs to an acquisition that took their hold for its
-- own.
if not count or (count == shared and wanted ~= '1') then
  require_primary(lock_hash)
  return 0
end
if memory_key and redis.call('exists', memory_key) == 1 then
  require_primary(lock_hash)
  return 0
end
-- Set the count instead of adding to it: a copy of this request then changes nothing.
redis.call('hset', lock_hash, field, wanted + shared)
extend(lock_hash, ttl_ms)
return 1
