-- latch/init: set the count, unless there is one.
-- uses     lib/acl, lib/number, lib/remember
-- KEYS[1]  count_key
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- ARGV[3]  wanted (number): count
-- returns  change: 1 when set, 0 when there was one
local count_key, channel, memory_key = KEYS[1], KEYS[2], KEYS[3]
local publish, memory_ttl_ms, wanted = ARGV[1], ARGV[2], ARGV[3]

local memory = redis.call('get', memory_key)
if memory then
  return tonumber(memory)
end
if read_number(count_key) then
  return remember(memory_key, 0, memory_ttl_ms)
end
local denied = publish_denied(publish, channel)
if denied then
  return denied
end
redis.call('set', count_key, wanted)
remember(memory_key, 1, memory_ttl_ms)
redis.call(publish, channel, '1')
return 1
