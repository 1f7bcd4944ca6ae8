-- permitsemaphore/shorten: shorten the leases of permits, which are needed for ttl_ms only.
-- See lock/shorten. If some of the permits are lost, the leases of the others are shortened.
-- uses     lib/clock, lib/early_release, lib/fresh, lib/number, lib/primary, lib/publish_permits
-- uses     permitsemaphore/leases
-- KEYS[1]  permits_key: free permits
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of the acquisition; of its release: "rests"
-- KEYS[4]  leases
-- ARGV[1]  ids (text): of 16 bytes each
-- ARGV[2]  publish (command)
-- ARGV[3]  ttl_ms (ms)
-- ARGV[4]  memory_ttl_ms (ms): 0 when no copy of the acquisition can come, or with seen_at
-- ARGV[5]  seen_at (number, optional): when a renewal found the longer leases, by the server's
--          clock, ms
-- returns  number: 1 if the leases end in time now, 2 if they were left as they are, 0 if not all
--          permits were held
local permits_key, channel, memory_key, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ids, publish, ttl_ms, memory_ttl_ms, seen_at = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local is_released = not seen_at
require_primary(channel)
if is_released and redis.call('exists', memory_key) == 1 then
  return 1 -- a copy of this request
end
if seen_at and not is_fresh(seen_at) then
  return 2
end
local now = now_ms()
local own, live = acquired_permits(leases, ids, now)
local has_semaphore = read_number(permits_key)
if #own > 0 then
  redis.call('zrem', leases, '') -- removes nothing; a full Redis allows writes after this one
  shorten_leases(leases, own, now + 1 + ttl_ms) -- now is rounded down
end
if #own > 0 and has_semaphore then
  -- All waiters try, and learn when the leases end: Redisson wakes as many threads.
  publish_permits(publish, channel, 2147483647)
end
if #own > 0 and is_released then
  remember_early_release(memory_key, 'rests', memory_ttl_ms)
end
return has_semaphore and live == #ids / 16 and 1 or 0
