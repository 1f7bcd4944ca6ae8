-- permitsemaphore/delete: no pool any more; the permits that are out are lost.
-- uses     count, remember
-- KEYS[1]  free permits
-- KEYS[2]  channel
-- KEYS[3]  memory of this request
-- KEYS[4]  leases
-- ARGV[1]  publish command
-- ARGV[2]  memory ttl, ms
-- returns  1 when there was one, 0 when not
local memory = redis.call('get', KEYS[3])
if memory then
  return tonumber(memory)
end
count(KEYS[1]) -- what is no number must not be deleted, nor what are no leases
redis.call('zcard', KEYS[4])
redis.call('del', KEYS[4])
return remember(redis.call('del', KEYS[1]))
