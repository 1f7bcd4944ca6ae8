-- permitsemaphore/resize: set the number of free and acquired permits together.
-- If more are acquired, the number of free permits is below 0 until enough are released.
-- uses     lib/acl, lib/number, lib/publish_permits, lib/remember
-- KEYS[1]  permits_key: free permits
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request
-- KEYS[4]  leases
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- ARGV[3]  wanted (number): permits, free and acquired
-- returns  change: 1
local permits_key, channel, memory_key, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local publish, memory_ttl_ms, wanted = ARGV[1], ARGV[2], ARGV[3]

if redis.call('exists', memory_key) == 1 then
  return 1
end
local acquired, free = redis.call('zcard', leases), read_number(permits_key)
local more = free and wanted - (free + acquired)
local denied = more ~= 0 and publish_denied(publish, channel)
if denied then
  return denied
end
if not free then
  redis.call('set', permits_key, wanted)
  redis.call('del', leases)
elseif more ~= 0 then
  redis.call('incrby', permits_key, more)
end
remember(memory_key, 1, memory_ttl_ms)
if more ~= 0 then
  publish_permits(publish, channel, tonumber(wanted))
end
return 1
