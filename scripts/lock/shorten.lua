-- lock/shorten: shorten the TTL of a lock, which lasts longer than its holder has promised.
-- The server's clock was set back. It does nothing if others have counts, too: their leases may be
-- longer.
-- uses     lib/fresh
-- KEYS[1]  lock_hash
-- ARGV[1]  field (text): of the owner
-- ARGV[2]  counts (number): that belong to the holder
-- ARGV[3]  ttl_ms (ms)
-- ARGV[4]  seen_at (number): when a renewal found the longer TTL, by the server's clock, ms
-- returns  number: 1 if it did, else 0
local lock_hash, field, counts, ttl_ms, seen_at = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local fields = redis.call('hlen', lock_hash) - redis.call('hexists', lock_hash, 'mode')
if fields ~= 1 or redis.call('hget', lock_hash, field) ~= counts or not is_fresh(seen_at)
  or redis.call('pttl', lock_hash) <= tonumber(ttl_ms) then
  return 0
end
return redis.call('pexpire', lock_hash, ttl_ms)
