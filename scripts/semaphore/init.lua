-- semaphore/init: set the number of permits, unless it is set.
-- uses     lib/acl, lib/epoch, lib/number, lib/publish_permits, lib/remember
-- KEYS[1]  permits_key: permits left
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request
-- KEYS[4]  epoch_key: of the semaphore
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- ARGV[3]  permits (number)
-- returns  change: 1 when set, 0 when it was set before
local permits_key, channel, memory_key, epoch_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local publish, memory_ttl_ms, permits = ARGV[1], ARGV[2], ARGV[3]

local memory = redis.call('get', memory_key)
if memory then
  return tonumber(memory)
end
if read_number(permits_key) then
  return remember(memory_key, 0, memory_ttl_ms)
end
local denied = publish_denied(publish, channel)
if denied then
  return denied
end
redis.call('set', permits_key, permits)
new_epoch(epoch_key, memory_key)
remember(memory_key, 1, memory_ttl_ms)
publish_permits(publish, channel, tonumber(permits))
return 1
