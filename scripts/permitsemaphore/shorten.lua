-- permitsemaphore/shorten: shorten the leases of permits, which last longer than their holder has
-- promised. See lock/shorten.
-- uses     lib/clock, lib/fresh, permitsemaphore/leases
-- KEYS[1]  permits_key: free permits
-- KEYS[2]  leases
-- ARGV[1]  ids (text): of 16 bytes each
-- ARGV[2]  ttl_ms (ms)
-- ARGV[3]  seen_at (number): when a renewal found the longer leases, by the server's clock, ms
-- returns  number: 1 if it did, else 0
local leases, ids, ttl_ms, seen_at = KEYS[2], ARGV[1], ARGV[2], ARGV[3]

if not is_fresh(seen_at) then
  return 0
end
local now = now_ms()
redis.call('zrem', leases, '') -- removes nothing; a full Redis allows writes after this one
shorten_leases(leases, (acquired_permits(leases, ids, now)), now + 1 + ttl_ms)
return 1
