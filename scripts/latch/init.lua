-- latch/init: set the count, unless there is one.
-- uses     count, remember
-- KEYS[1]  count
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- ARGV[3]  wanted count
-- returns  1 when set, 0 when there was one
local memory = redis.call('get', KEYS[3])
if memory then
  return tonumber(memory)
end
if count(KEYS[1]) then
  return remember(0)
end
redis.call('set', KEYS[1], ARGV[3])
remember(1)
redis.call(ARGV[1], KEYS[2], '1')
return 1
