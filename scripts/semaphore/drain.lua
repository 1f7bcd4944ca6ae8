-- semaphore/drain: take all permits that are left; a TTL stays.
-- uses     lib/number, lib/remember
-- KEYS[1]  permits_key: permits left
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- returns  change: how many permits were taken; below 0 when so many were missing
local permits_key, memory_key, memory_ttl_ms = KEYS[1], KEYS[3], ARGV[2]

local memory = redis.call('get', memory_key)
if memory then
  return tonumber(memory)
end
local left = read_number(permits_key) or 0
if left ~= 0 then
  redis.call('decrby', permits_key, left)
end
return remember(memory_key, left, memory_ttl_ms)
