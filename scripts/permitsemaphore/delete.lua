-- permitsemaphore/delete: delete the semaphore; its acquired permits are lost.
-- uses     lib/number, lib/remember
-- KEYS[1]  permits_key: free permits
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request
-- KEYS[4]  leases
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- returns  change: 1 when there was one, 0 when not
local permits_key, memory_key, leases, memory_ttl_ms = KEYS[1], KEYS[3], KEYS[4], ARGV[2]

local memory = redis.call('get', memory_key)
if memory then
  return tonumber(memory)
end
-- Keys of another type must not be deleted.
read_number(permits_key)
redis.call('zcard', leases)
redis.call('del', leases)
return remember(memory_key, redis.call('del', permits_key), memory_ttl_ms)
