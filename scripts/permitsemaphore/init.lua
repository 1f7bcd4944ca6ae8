-- permitsemaphore/init: set the number of permits, unless it is set.
-- uses     lib/acl, lib/number, lib/publish_permits, lib/remember
-- KEYS[1]  permits_key: free permits
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request
-- KEYS[4]  leases
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- ARGV[3]  permits (number)
-- returns  change: 1 when set, 0 when it was set before
local permits_key, channel, memory_key, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local publish, memory_ttl_ms, permits = ARGV[1], ARGV[2], ARGV[3]

local memory = redis.call('get', memory_key)
if memory then
  return tonumber(memory)
end
redis.call('zcard', leases) -- a key of another type must not be deleted
if read_number(permits_key) then
  return remember(memory_key, 0, memory_ttl_ms)
end
local denied = publish_denied(publish, channel)
if denied then
  return denied
end
redis.call('set', permits_key, permits)
redis.call('del', leases)
remember(memory_key, 1, memory_ttl_ms)
publish_permits(publish, channel, tonumber(permits))
return 1
