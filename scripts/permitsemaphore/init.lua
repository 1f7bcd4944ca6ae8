-- permitsemaphore/init: set the number of permits, unless it is set.
-- uses     count, remember, supply
-- KEYS[1]  free permits
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- KEYS[4]  leases
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- ARGV[3]  permits
-- returns  1 when set, 0 when it was set before
local memory = redis.call('get', KEYS[3])
if memory then
  return tonumber(memory)
end
redis.call('zcard', KEYS[4]) -- what are no leases must not be deleted
if count(KEYS[1]) then
  return remember(0)
end
redis.call('set', KEYS[1], ARGV[3])
redis.call('del', KEYS[4])
remember(1)
supply(tonumber(ARGV[3]))
return 1
