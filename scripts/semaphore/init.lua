-- semaphore/init: set the number of permits, unless it is set.
-- uses     count, remember, supply
-- KEYS[1]  permits left
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- ARGV[3]  permits
-- returns  1 when set, 0 when it was set before
local memory = redis.call('get', KEYS[3])
if memory then
  return tonumber(memory)
end
if count(KEYS[1]) then
  return remember(0)
end
redis.call('set', KEYS[1], ARGV[3])
remember(1)
supply(tonumber(ARGV[3]))
return 1
