-- latch/delete: delete the latch; it will not open any more.
-- uses     lib/acl, lib/number, lib/remember
-- KEYS[1]  count_key
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- returns  change: 1 when there was one, 0 when not
local count_key, channel, memory_key = KEYS[1], KEYS[2], KEYS[3]
local publish, memory_ttl_ms = ARGV[1], ARGV[2]

local memory = redis.call('get', memory_key)
if memory then
  return tonumber(memory)
end
read_number(count_key) -- a key without a number must not be deleted
local denied = publish_denied(publish, channel)
if denied then
  return denied
end
local deleted = remember(memory_key, redis.call('del', count_key), memory_ttl_ms)
if deleted == 1 then
  redis.call(publish, channel, '1')
end
return deleted
