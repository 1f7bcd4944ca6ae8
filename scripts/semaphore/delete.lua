-- semaphore/delete: delete the semaphore.
-- uses     lib/number, lib/remember
-- KEYS[1]  permits_key: permits left
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request
-- KEYS[4]  epoch_key: of the semaphore
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- returns  change: 1 when there was one, 0 when not
local permits_key, memory_key, epoch_key, memory_ttl_ms = KEYS[1], KEYS[3], KEYS[4], ARGV[2]

local memory = redis.call('get', memory_key)
if memory then
  return tonumber(memory)
end
read_number(permits_key) -- a key without a number must not be deleted
redis.call('del', epoch_key)
return remember(memory_key, redis.call('del', permits_key), memory_ttl_ms)
