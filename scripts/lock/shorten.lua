-- lock/shorten: shorten the TTL of a lock, which lasts longer than its holder has promised.
-- The server's clock was set back. It does nothing if others have counts, too: their leases may be
-- longer.
-- uses     lib/fresh, lib/shared_counts
-- KEYS[1]  lock_hash
-- KEYS[2]  shared_counts
-- ARGV[1]  field (text): of the owner
-- ARGV[2]  counts (number): that belong to the holder
-- ARGV[3]  ttl_ms (ms)
-- ARGV[4]  seen_at (number): when a renewal found the longer TTL, by the server's clock, ms
-- ARGV[5]  memory_key (text, optional): of the holder's acquisition with WithOwner
-- returns  number: 1 if it did, else 0
local lock_hash, shared_counts = KEYS[1], KEYS[2]
local field, counts, ttl_ms, seen_at, memory_key = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- The holder may have released meanwhile, and another acquisition of its owner may have as many
-- counts.
if memory_key and not is_only_shared_count(shared_counts, field, memory_key) then
  return 0
end
local fields = redis.call('hlen', lock_hash) - redis.call('hexists', lock_hash, 'mode')
if fields ~= 1 or redis.call('hget', lock_hash, field) ~= counts or not is_fresh(seen_at)
  or redis.call('pttl', lock_hash) <= tonumber(ttl_ms) then
  return 0
end
return redis.call('pexpire', lock_hash, ttl_ms)
